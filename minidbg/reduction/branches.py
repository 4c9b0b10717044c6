"""Passes for graphs inside the graph: put one in the place of what runs it, else make it smaller where it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import fx

from minidbg.graphs import nested
from minidbg.graphs.effects import is_call
from minidbg.graphs.pieces import alike
from minidbg.graphs.record import Recording
from minidbg.graphs.runs import EagerFailure
from minidbg.reduction.candidate import Candidate, OwnGraph
from minidbg.reduction.problem import ReductionProblem


def inline_branches(problem: ReductionProblem) -> None:
    """Try each nested graph in the place of the op that runs it. Cost: one call for each nested graph."""
    for name in [node.name for node in nested.holders(problem.best.graph_module)]:
        _try_first(problem, (_inlined(problem, node, path) for node, path in _branches_of(problem, name)))


def _try_first(problem: ReductionProblem, candidates: Iterator[Candidate | None]) -> None:
    for candidate in candidates:
        if problem.consider(candidate):
            return


def _branches_of(problem: ReductionProblem, name: str) -> Iterator[tuple[fx.Node, str]]:
    node = next((node for node in nested.holders(problem.best.graph_module) if node.name == name), None)
    for path, _ in nested.branches(node) if node else ():
        yield node, path  # type: ignore[misc]


def _inlined(problem: ReductionProblem, node: fx.Node, path: str) -> Candidate | None:
    return _edited(problem, nested.inlined(problem.best.graph_module, node, path))


def _edited(problem: ReductionProblem, graph_module: fx.GraphModule | None) -> Candidate | None:
    """A candidate with the inputs of ``best``, without those that the edited graph does not use."""
    if graph_module is None:
        return None
    graph = graph_module.graph
    inputs, tokens = [], []
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for node, value, token in zip(placeholders, problem.best.inputs, problem.best.tokens, strict=True):
        if node.users or problem.is_shape_symbol(node):
            inputs.append(value)
            tokens.append(token)
        else:
            graph.erase_node(node)
    return Candidate(
        OwnGraph(graph_module), tuple(inputs), tuple(tokens), epoch=problem.best.epoch, variant="edited"
    )


def drop_nested_nodes(problem: ReductionProblem) -> None:
    """Try to put a same-shaped value in the place of each node of a nested graph, last first.

    First without its settings of grad mode. Cost: one call for each such value, and one. A nested graph cannot get new inputs, so only values inside it will do.
    """
    for name in [node.name for node in nested.holders(problem.best.graph_module)]:
        for path in [path for _, path in _branches_of(problem, name)]:
            problem.consider(_without_grad_modes(problem, name, path))
            for inner in reversed(_calls_at(problem, name, path)):
                _try_first(problem, _without_inner(problem, name, path, inner))


def _branch(problem: ReductionProblem, name: str, path: str) -> tuple[fx.Node, fx.GraphModule] | None:
    """The node called ``name`` and its nested graph at ``path``, while they are there."""
    for node, other in _branches_of(problem, name):
        if other == path:
            return node, dict(nested.branches(node))[path]
    return None


def _calls_at(problem: ReductionProblem, name: str, path: str) -> list[str]:
    found = _branch(problem, name, path)
    return [inner.name for inner in found[1].graph.nodes if is_call(inner)] if found else []


def _without_grad_modes(problem: ReductionProblem, name: str, path: str) -> Candidate | None:
    found = _branch(problem, name, path)
    smaller = nested.without_grad_modes(found[1]) if found else None
    return _edited(problem, nested.with_branch(problem.best.graph_module, path, smaller)) if smaller else None


def _without_inner(problem: ReductionProblem, name: str, path: str, inner: str) -> Iterator[Candidate | None]:
    found = _branch(problem, name, path)
    values = _operand_values(problem, *found) if found else None
    if found is None or values is None:
        return
    branch, recording = found[1], Recording(found[1], values)
    node = next((node for node in branch.graph.nodes if node.name == inner), None)
    if node is None:
        return
    for stand_in in _stand_ins(recording, node):
        smaller = nested.without_node(branch, node, stand_in)
        yield _edited(problem, nested.with_branch(problem.best.graph_module, path, smaller))


def _stand_ins(recording: Recording, node: fx.Node) -> list[fx.Node]:
    """Values of the shape of ``node`` that are there before it: what it takes, and the inputs."""
    sources = dict.fromkeys([*node.all_input_nodes, *recording.placeholders])
    return [source for source in sources if alike(recording.facts, source, node)]


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
    for name in [node.name for node in nested.holders(problem.best.graph_module)]:
        for place in reversed(range(_count_operands(problem, name))):
            for node, _ in _branches_of(problem, name):
                problem.consider(
                    _edited(problem, nested.without_operand(problem.best.graph_module, node, place))
                )
                break


def _count_operands(problem: ReductionProblem, name: str) -> int:
    for node, path in _branches_of(problem, name):
        return len(nested.operands(node, dict(nested.branches(node))[path]) or ())
    return 0
