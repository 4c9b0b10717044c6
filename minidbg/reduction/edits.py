"""Small passes for small graphs: outputs, modes, single nodes, inputs. Their last round is the certificate.

A graph inside the graph is put in the place of what runs it, or made smaller where it is.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, TypeAlias

import torch
from torch import fx

from minidbg.graphs import nested, pieces
from minidbg.graphs.effects import Mode, fact_of, is_call, mode_of
from minidbg.graphs.pieces import alike, is_unpacking
from minidbg.graphs.record import Recording
from minidbg.graphs.runs import EagerFailure
from minidbg.reduction.candidate import Candidate, OwnGraph
from minidbg.reduction.problem import ReductionProblem


def drop_modes(problem: ReductionProblem) -> None:
    """Try without autocast and grad-mode changes, then without each. Cost: one call for all, one for each if there are more."""
    if problem.consider(_without_modes(problem, _mode_changes(problem))):
        return
    for name in [node.name for node in _mode_changes(problem)]:
        problem.consider(
            _without_modes(problem, [node for node in _mode_changes(problem) if node.name == name])
        )


def _mode_changes(problem: ReductionProblem) -> list[fx.Node]:
    """What opens a block or sets grad mode; the ends of blocks go with their beginnings."""
    return [node for node in problem.best.calls if mode_of(node) in (Mode.ENTER, Mode.GRAD)]


def _without_modes(problem: ReductionProblem, changes: list[fx.Node]) -> Candidate | None:
    return problem.extract(set(problem.best.calls), without_modes=set(changes)) if changes else None


def drop_outputs(problem: ReductionProblem) -> None:
    """Try with only the outputs that nothing else uses, then without each one. Cost: one call for each output."""
    recording = problem.recording
    spare = [
        node for node in recording.outputs if node.users.keys() - {recording.nodes[-1]} or not is_call(node)
    ]
    if len(recording.outputs) > 1 and len(spare) > 1:
        needed = set(recording.outputs) - set(spare)
        if problem.consider(problem.extract(set(problem.best.calls), outputs=needed)):
            return
    for name in [node.name for node in spare] if len(recording.outputs) > 1 else []:
        outputs = {node for node in problem.recording.outputs if node.name != name}
        if outputs:
            problem.consider(problem.extract(set(problem.best.calls), outputs=outputs))


def drop_nodes(problem: ReductionProblem) -> None:
    """Try to put each node's recorded value in its place, from both ends inwards. Cost: one call for each node.

    What was cut out of a larger graph has more at its ends than it needs, and each success asks anew what was asked before it.
    First of all go parts of results that nothing needs, which came along with the others.
    """
    calls = [node.name for node in reversed(problem.best.calls) if mode_of(node) is Mode.NONE]
    parts = [node.name for node in problem.best.calls if is_unpacking(node, problem.recording.facts)]
    inwards = (name for pair in zip(calls, reversed(calls), strict=True) for name in pair)
    names = list(dict.fromkeys([*parts, *inwards]))
    for place, name in enumerate(names):
        problem.ask_ahead(_without_node(problem, other) for other in names[place:])
        candidate = _without_node(problem, name)
        if candidate is not None and not problem.consider(candidate):
            problem.remember_passing(problem.bits([node for node in problem.best.calls if node.name != name]))
            if problem.followed and len(problem.best.calls) <= FEW_NODES:
                bypass_node(problem, name)  # what a frame holds together hangs together


def _without_node(problem: ReductionProblem, name: str) -> Candidate | None:
    node = problem.best.call(name)  # None: it went with another one
    return problem.extract(set(problem.best.calls) - {node}, whole_tuples=True) if node else None


def bypass_nodes(problem: ReductionProblem) -> None:
    """Try to put a same-shaped input of a node in its place. Cost: one call for each such input."""
    for name in reversed([node.name for node in problem.best.calls if mode_of(node) is Mode.NONE]):
        bypass_node(problem, name)


def bypass_node(problem: ReductionProblem, name: str) -> None:
    """Try to put each same-shaped input of a node in its place, results of other nodes first."""
    node = problem.best.call(name)
    if node is None or not any(map(is_call, node.users)):
        return
    left = set(problem.best.calls) - {node}
    for source in sorted(node.all_input_nodes, key=lambda source: not is_call(source)):
        if alike(problem.recording.facts, source, node) and problem.consider(
            problem.extract(left, stand_ins={node: source})
        ):
            return


def drop_inputs_at_once(problem: ReductionProblem) -> None:
    """Try without all inputs that eager can do without, one by one and together. Cost: one call.

    Before the nodes: each input that goes later asks anew for every node.
    """
    spare = set()
    for node in problem.recording.placeholders:
        candidate = _without_input(problem, node.name)
        if candidate is not None and problem.is_valid(candidate):
            spare.add(node)
    if len(spare) > 1:
        problem.consider(problem.extract(set(problem.best.calls), without=spare))


def drop_inputs(problem: ReductionProblem) -> None:
    """Try to do without each input: an element of a list, or an argument that may be None. Cost: one call for each."""
    names = [node.name for node in reversed(problem.recording.placeholders)]
    for place, name in enumerate(names):
        problem.ask_ahead(_without_input(problem, other) for other in names[place:])
        problem.consider(_without_input(problem, name))


def _without_input(problem: ReductionProblem, name: str) -> Candidate | None:
    node = next((node for node in problem.recording.placeholders if node.name == name), None)
    return (
        problem.extract(set(problem.best.calls), without={node}) if node is not None and node.users else None
    )


FEW_NODES = 5
"""Nodes of a result up to which its inputs are merged."""


def merge_alike_inputs(problem: ReductionProblem) -> None:
    """Try with one input for all of the same shape and dtype. Cost: one call, none where no two are alike.

    Culprits far apart each take a recorded value of their own, and few of them care which. Not in a graph of many nodes: each
    would have to be proven necessary anew.
    """
    if len(problem.best.calls) > FEW_NODES:
        return
    values = problem.recording.input_of
    first: dict[Hashable, fx.Node] = {}
    stand_ins: dict[fx.Node, fx.Node] = {}
    for node in problem.recording.placeholders:
        if isinstance(values[node], torch.Tensor):
            kept = first.setdefault(fact_of(values[node]).like, node)
            if kept is not node:
                stand_ins[node] = kept
    problem.consider(merged(problem, stand_ins) if stand_ins else None)


def merged(problem: ReductionProblem, stand_ins: Mapping[fx.Node, fx.Node]) -> Candidate:
    """``best`` with one placeholder in the place of another, for each pair."""
    best = problem.best
    left = [place for place, node in enumerate(problem.recording.placeholders) if node not in stand_ins]
    return Candidate(
        OwnGraph(pieces.rewritten(best.graph_module, stand_ins=stand_ins)),
        tuple(best.inputs[place] for place in left),
        tuple(best.tokens[place] for place in left),
        epoch=best.epoch,
        variant=None,
    )


def merge_inputs(problem: ReductionProblem) -> None:
    """Try to use one input for two of the same shape and dtype. Cost: one call for each such pair."""
    for name in reversed([node.name for node in problem.recording.placeholders]):
        for other in [node.name for node in problem.recording.placeholders]:
            if name == other or problem.consider(_merged(problem, name, other)):
                break


def _merged(problem: ReductionProblem, name: str, other: str) -> Candidate | None:
    by_name = {node.name: node for node in problem.recording.placeholders}
    gone, kept = by_name.get(name), by_name.get(other)
    if gone is None or kept is None:
        return None
    values = problem.recording.input_of
    if fact_of(values[gone]).like != fact_of(values[kept]).like or not isinstance(values[gone], torch.Tensor):
        return None
    return merged(problem, {gone: kept})


def inline_branches(problem: ReductionProblem) -> None:
    """Try each nested graph in the place of the op that runs it. Cost: one call for each nested graph."""
    for name in _holders(problem):
        for node, path, _ in _branches_of(problem, name):
            if problem.consider(_edited(problem, nested.inlined(problem.best.graph_module, node, path))):
                break


def _holders(problem: ReductionProblem) -> list[str]:
    return [node.name for node in nested.holders(problem.best.graph_module)]


_Branch: TypeAlias = tuple[fx.Node, str, fx.GraphModule]
"""A node, the path to a graph that it runs, and that graph."""


def _branches_of(problem: ReductionProblem, name: str) -> list[_Branch]:
    """The nested graphs of the node called ``name``, while it is there."""
    nodes = [node for node in nested.holders(problem.best.graph_module) if node.name == name]
    return [(node, *branch) for node in nodes for branch in nested.branches(node)]


def _edited(problem: ReductionProblem, graph_module: fx.GraphModule | None) -> Candidate | None:
    """A candidate with the inputs of ``best``, without those that the edited graph does not use."""
    if graph_module is None:
        return None
    graph = graph_module.graph
    inputs, tokens = [], []
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for node, value, token in zip(placeholders, problem.best.inputs, problem.best.tokens, strict=True):
        # a symbolic size stays: shapes of other inputs may be made of it
        if node.users or isinstance(node.meta.get("example_value"), torch.SymInt):
            inputs.append(value)
            tokens.append(token)
        else:
            graph.erase_node(node)
    return Candidate(
        OwnGraph(graph_module), tuple(inputs), tuple(tokens), epoch=problem.best.epoch, variant=None
    )


def drop_nested_nodes(problem: ReductionProblem) -> None:
    """Try to put a same-shaped value in the place of each node of a nested graph, last first.

    First without its settings of grad mode. Cost: one call for each such value, and one. A nested graph cannot get new inputs, so only values inside it will do.
    """
    for name in _holders(problem):
        for path in [path for _, path, _ in _branches_of(problem, name)]:
            if found := _branch(problem, name, path):
                problem.consider(_with_branch(problem, path, nested.without_grad_modes(found[2])))
            found = _branch(problem, name, path)
            calls = [inner.name for inner in found[2].graph.nodes if is_call(inner)] if found else []
            for inner in reversed(calls):
                _bypass_inner(problem, name, path, inner)


def _branch(problem: ReductionProblem, name: str, path: str = "") -> _Branch | None:
    """The nested graph of that node at ``path``, or its first one."""
    return next((found for found in _branches_of(problem, name) if path in ("", found[1])), None)


def _with_branch(problem: ReductionProblem, path: str, branch: fx.GraphModule | None) -> Candidate | None:
    return _edited(problem, nested.with_branch(problem.best.graph_module, path, branch)) if branch else None


def _bypass_inner(problem: ReductionProblem, name: str, path: str, inner: str) -> None:
    """Try each value of the shape of the node ``inner`` that is there before it: what it takes, and the inputs."""
    found = _branch(problem, name, path)
    values = _operand_values(problem, found[0], found[2]) if found else None
    if found is None or values is None:
        return
    branch, recording = found[2], Recording(found[2], values)
    node = next((node for node in branch.graph.nodes if node.name == inner), None)
    if node is None:
        return
    for source in dict.fromkeys([*node.all_input_nodes, *recording.placeholders]):
        if alike(recording.facts, source, node) and problem.consider(
            _with_branch(problem, path, nested.without_node(branch, node, source))
        ):
            return


def _operand_values(problem: ReductionProblem, node: fx.Node, branch: fx.GraphModule) -> list[Any] | None:
    if nested.gets_other_values(node, branch):
        return nested.values_like_examples(branch)
    given, recording = nested.operands(node, branch), problem.recording
    if given is None:
        return None
    wanted = [value for value in given if isinstance(value, fx.Node)]
    try:
        values = iter(recording.values([(recording.index[node], value) for value in wanted]))
    except EagerFailure:
        return None
    return [next(values) if isinstance(value, fx.Node) else value for value in given]


def drop_operands(problem: ReductionProblem) -> None:
    """Try without each operand that no nested graph uses. Cost: one call for each."""
    for name in _holders(problem):
        first = _branch(problem, name)
        operands = nested.operands(first[0], first[2]) if first else None
        for place in reversed(range(len(operands or ()))):
            if now := _branch(problem, name):
                fewer = nested.without_operand(problem.best.graph_module, now[0], place)
                problem.consider(_edited(problem, fewer))
