"""Small passes for small graphs: outputs, modes, single nodes, inputs. The last round certifies."""

from __future__ import annotations

from collections.abc import Iterator, Set
from functools import partial

import torch
from torch import fx

from minidbg import torch_internals
from minidbg.fx import edit, nested
from minidbg.fx.edit import alike, is_unpacking
from minidbg.fx.effects import Mode, fact_of, is_call, mode_of
from minidbg.fx.record import Recording, runs_in_eager
from minidbg.reduction.search import Candidate, GraphEdit, Search


def drop_modes(search: Search) -> Iterator[GraphEdit]:
    """Try without autocast and grad-mode changes, then without each. Cost: a call, and one each."""
    yield _without_modes
    for node in search.best.calls:
        if mode_of(node) in OPENING:
            yield partial(_without_modes, name=node.name)


OPENING = (Mode.ENTER, Mode.GRAD)
"""What opens a block or sets grad mode; the ends of blocks go with their beginnings."""


def _without_modes(search: Search, name: str = "") -> Candidate | None:
    opening = {node for node in search.best.calls if mode_of(node) in OPENING}
    changes = {node for node in opening if name in ("", node.name)}
    return search.cut(without_modes=changes) if changes else None


def drop_outputs(search: Search) -> Iterator[GraphEdit]:
    """Try only the outputs that nothing else uses, then without each. Cost: one call per output."""
    outputs, returned = search.recording.outputs, {search.recording.nodes[-1]}
    spare = [node.name for node in outputs if node.users.keys() - returned or not is_call(node)]
    if len(outputs) > 1 and len(spare) > 1:
        yield partial(_without_outputs, names={*spare})
    for name in spare:
        yield partial(_without_outputs, names={name})


def _without_outputs(search: Search, names: Set[str]) -> Candidate | None:
    outputs = {node for node in search.recording.outputs if node.name not in names}
    is_smaller = len(outputs) < len(set(search.recording.outputs))
    if not is_smaller or not (outputs or search.fails_in_inputs or len(names) > 1):
        return None
    return search.cut(outputs=outputs)


FEW_NODES = 5
"""Nodes of a result up to which one that is needed is bypassed at once."""


def drop_nodes(search: Search) -> Iterator[GraphEdit]:
    """Try each node's recorded value in its place, from both ends inwards. Cost: one call per node.

    What was cut out of a larger graph has more at its ends than it needs, and each success asks
    anew what was asked before it. First of all go parts of results that nothing needs, which came
    along with the others.
    """
    calls = [node.name for node in reversed(search.best.calls) if mode_of(node) is Mode.NONE]
    parts = [node.name for node in search.best.calls if is_unpacking(node, search.recording.facts)]
    inwards = (name for pair in zip(calls, reversed(calls), strict=True) for name in pair)
    for name in dict.fromkeys([*parts, *inwards]):
        yield partial(_without_node, name=name)
        # what a frame holds together hangs together: one that is needed is bypassed at once
        if search.followed and len(search.best.calls) <= FEW_NODES:
            yield from _bypasses(search, name)


def _without_node(search: Search, name: str) -> Candidate | None:
    node = search.best.call(name)  # None: it went with another one
    return search.cut(set(search.best.calls) - {node}, whole_tuples=True) if node else None


def bypass_nodes(search: Search) -> Iterator[GraphEdit]:
    """Try to put a same-shaped input of a node in its place. Cost: one call for each such input."""
    for name in reversed([node.name for node in search.best.calls if mode_of(node) is Mode.NONE]):
        yield from _bypasses(search, name)


def _bypasses(search: Search, name: str) -> Iterator[GraphEdit]:
    """Each same-shaped input of a node in its place, results of other nodes first."""
    node = search.best.call(name)
    sources = sorted(node.all_input_nodes, key=lambda source: not is_call(source)) if node else ()
    for source in sources:
        yield partial(_bypassed, name=name, by=source.name)


def _bypassed(search: Search, name: str, by: str) -> Candidate | None:
    node = search.best.call(name)
    source = next((source for source in node.all_input_nodes if source.name == by), None) if node else None
    facts = search.recording.facts
    if not (node and source and any(map(is_call, node.users)) and alike(facts, source, node)):
        return None
    return search.cut(set(search.best.calls) - {node}, stand_ins={node: source})


def drop_inputs(search: Search) -> Iterator[GraphEdit]:
    """Try without each input: list elements, or arguments that may be None. Cost: one call each.
    Before the nodes: each input that goes later asks anew for every node."""
    for node in reversed(search.recording.placeholders):
        yield partial(_without_input, name=node.name)


def _without_input(search: Search, name: str) -> Candidate | None:
    without = {node for node in search.recording.placeholders if node.name == name and node.users}
    return search.cut(without=without) if without else None


SHORT_LIST = 3
"""Elements up to which each goes with its input, so that one that another call takes may stay."""


def drop_elements(search: Search) -> Iterator[None]:
    """Try lists that a call takes together, and long ones, without the same elements of each: half,
    then fewer. Cost: none without any, else about ``log2(length)`` where no element matters."""
    yield None
    lists = [nested.tensor_lists(node, search.recording.facts) for node in search.best.calls]
    together = {length for each in lists for length in each if each.count(length) > 1}
    least = {length: 0 if length in together else SHORT_LIST for each in lists for length in each}
    for length, few in sorted(least.items(), reverse=True):
        chunk = length // 2
        while chunk:
            start, before = 0, length
            while start < length > max(chunk, few):
                best, gone = search.best, range(start, min(start + chunk, length))
                fewer = nested.without_elements(best.graph_module, search.recording.facts, length, {*gone})
                if search.consider(_edited(search, fewer)) and search.best is not best:
                    length -= len(gone)
                else:
                    start += chunk
            chunk = 0 if few and length == before else chunk // 2


def with_alike_inputs_merged(search: Search) -> Candidate | None:
    """One input for all of the same shape and dtype, where one call is left: in a larger graph,
    equal inputs could become the cause, and the calls that had been it could go."""
    best, values = search.best, search.recording.input_of
    placeholders = search.recording.placeholders if len(best.calls) == 1 else ()
    kinds = {node: fact_of(value).like for node in placeholders if torch.is_tensor(value := values[node])}
    first = {kind: node for node, kind in reversed(kinds.items())}
    stand_ins = {node: first[kind] for node, kind in kinds.items() if first[kind] is not node}
    if not stand_ins:
        return None
    left = [index for index, node in enumerate(search.recording.placeholders) if node not in stand_ins]
    inputs, tokens = (tuple(of[index] for index in left) for of in (best.inputs, best.tokens))
    merged = edit.rewritten(best.graph_module, stand_ins=stand_ins)
    return best.edited(merged, inputs, tokens)


def inline_branches(search: Search) -> Iterator[GraphEdit]:
    """Try each nested graph in place of the op that runs it. Cost: one call per nested graph."""
    for node in nested.holders(search.best.graph_module):
        for path, _ in nested.branches(node):
            yield partial(_inlined, name=node.name, path=path)


def _inlined(search: Search, name: str, path: str) -> Candidate | None:
    whole = search.best.graph_module
    node = next((node for node in nested.holders(whole) if node.name == name), None)
    if node is None or path not in dict(nested.branches(node)):
        return None
    return _edited(search, nested.inlined(whole, node, path))


def _edited(search: Search, graph_module: fx.GraphModule | None) -> Candidate | None:
    """A candidate with the inputs of ``best``, without those that the edited graph does not use."""
    if graph_module is None:
        return None
    graph, inputs, tokens = graph_module.graph, [], []
    nodes = graph.find_nodes(op="placeholder")
    for node, value, token in zip(nodes, search.best.inputs, search.best.tokens, strict=True):
        # a symbolic size stays: shapes of other inputs may be made of it
        if node.users or isinstance(node.meta.get("example_value"), torch.SymInt):
            inputs.append(value)
            tokens.append(token)
        else:
            graph.erase_node(node)
    return search.best.edited(graph_module, tuple(inputs), tuple(tokens))


def drop_nested_nodes(search: Search) -> Iterator[GraphEdit]:
    """Try to put a same-shaped value in the place of each node of a nested graph, last first.

    First without its settings of grad mode. Cost: one call for each such value, and one. A nested
    graph cannot get new inputs, so only values inside it will do: what a node takes and the inputs.
    """
    for route in [route for route, _ in nested.all_graphs(search.best.graph_module)][1:]:
        yield partial(_without_inner_modes, route=route)
        branch = dict(nested.all_graphs(search.best.graph_module)).get(route)
        for node in reversed(list(branch.graph.nodes) if branch else []):
            inputs = branch.graph.find_nodes(op="placeholder") if branch and is_call(node) else ()
            for source in dict.fromkeys([*node.all_input_nodes, *inputs]) if inputs else ():
                yield partial(_without_inner_node, route=route, name=node.name, by=source.name)


def _without_inner_modes(search: Search, route: nested.Route) -> Candidate | None:
    branch = dict(nested.all_graphs(search.best.graph_module)).get(route)
    changes = {node for node in branch.graph.nodes if mode_of(node) is Mode.GRAD} if branch else None
    if branch is None or not changes:
        return None
    plain = edit.rewritten(branch, without=changes)
    return _edited(search, nested.with_level(search.best.graph_module, route, plain))


def _without_inner_node(search: Search, route: nested.Route, name: str, by: str) -> Candidate | None:
    recording = _recording_at(search, route)
    named = {node.name: node for node in recording.nodes} if recording else {}
    if recording is None or name not in named or by not in named:
        return None
    node, source = named[name], named[by]
    if not alike(recording.facts, source, node):
        return None
    graph = edit.rewritten(recording.graph_module, stand_ins={node: source}).graph
    graph.eliminate_dead_code()
    fewer = torch_internals.lazy_graph_module(recording.graph_module, graph)
    candidate = _edited(search, nested.with_level(search.best.graph_module, route, fewer))
    if candidate is None or not search.keeps_contracts(candidate):
        return None
    for depth in reversed(range(1, len(route) + 1)):
        # each graph around it runs with it by itself: one may be a branch that is not taken
        around = _recording_at(search, route[:depth])
        wider = nested.with_level(around.graph_module, route[depth:], fewer) if around else None
        if around is not None and wider is not None and not runs_in_eager(wider, around.inputs):
            return None
    return candidate


def _recording_at(search: Search, route: nested.Route) -> Recording | None:
    """The values inside the nested graph at ``route``, in the first call that runs it; None where
    they cannot be known."""
    recording = search.recording
    for path in route:
        holders = nested.holders(recording.graph_module)
        node = next((node for node in holders if path in dict(nested.branches(node))), None)
        values = nested.values_of(recording, node, path) if node else None
        if node is None or values is None:
            return None
        recording = Recording(dict(nested.branches(node))[path], values)
    return recording
