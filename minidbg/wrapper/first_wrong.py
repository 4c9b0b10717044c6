"""The first node whose value or gradient the backend gets wrong: a hint for people and for the reduction.

It is found by runs of parts of the graph, fed with eager's values, with each of their values as an output: of one call of each kind, then
of halves, until one is small. What shows in none, or not with more outputs, has no first node.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
from collections.abc import Hashable, Iterator, Mapping, Set
from dataclasses import replace
from typing import Any

from torch import Tensor, fx

from minidbg.fx.copying import copy_graph_module
from minidbg.fx.edit import extract
from minidbg.fx.effects import is_call, kind_of_call, nodes_in
from minidbg.fx.mutation import mutated_placeholders, storages_of, written_arguments
from minidbg.fx.pieces import CannotExtract, Piece
from minidbg.fx.record import Recording
from minidbg.judge import arithmetic, compare
from minidbg.judge.compare import Comparison
from minidbg.judge.ensemble import left_by
from minidbg.words.foreign import is_of_a_signal_handler
from minidbg.words.run_spec import RunSpec
from minidbg.wrapper.capture import index_of_input
from minidbg.wrapper.chain import Link
from minidbg.wrapper.rollback import tensors_in
from minidbg.wrapper.verify_refusals import bytes_of_example, free_bytes
from minidbg.wrapper.verify_runs import Before, before, compared, run_compiled_anew

log = logging.getLogger("minidbg")
TAPPED = 16
"""Calls of a graph that is compiled with each of its values as an output."""
MOST_TAPPED = 128
"""Nodes of one that is tried when that of ``TAPPED`` calls was the wrong one."""
MOST_OF_MEMORY = 0.2


def first_differing_node(inside: Before, link: Link, spec: RunSpec, where: str) -> fx.Node | None:
    way = {node.name for node in on_the_way(inside.graph, where)}
    for parts in (one_of_each_kind(inside, way), earliest_parts(inside, link, spec, way)):
        with left_out_where_it_fails():
            for part in parts:
                if node := differing_node_of(part, link, spec, way):
                    return node
    return None


def on_the_way(graph: fx.GraphModule, where: str) -> list[fx.Node]:
    output, index = re.match(r"output (\d+)", where), index_of_input(where)
    end = next(node for node in reversed(graph.graph.nodes) if node.op == "output")
    memory: set[object] = set()
    wanted: set[fx.Node] = set()
    if output is not None:
        outputs = end.args[0] if isinstance(end.args[0], tuple | list) else end.args
        wanted = set(nodes_in(outputs[int(output[1])]))
        memory.update(*map(memory_of_node, wanted))
    elif index is not None:
        memory = memory_of_node(graph.graph.find_nodes(op="placeholder")[index])
    found = []
    for node in reversed(graph.graph.nodes):
        if not is_call(node):
            continue
        written = {one for argument in written_arguments(graph, node) for one in memory_of_node(argument)}
        if node in wanted or written & memory:
            found.append(node)
            wanted.update(node.all_input_nodes)
            memory.update(*map(memory_of_node, (node, *node.all_input_nodes)))
    return found


def memory_of_node(node: fx.Node) -> set[object]:
    """What nodes share that may hold the same memory."""
    return {node, *storages_of(node)}


@contextlib.contextmanager
def left_out_where_it_fails() -> Iterator[None]:
    """A block that looks for a hint. What it raises is often the backend's, for another graph."""
    try:
        yield
    except Exception as error:
        if is_of_a_signal_handler(error):
            raise
        log.debug("no_hint", exc_info=True)


def where_gradients_go_wrong(
    graph: fx.GraphModule, actual: Mapping[str, Any], expected: Mapping[str, Any], spec: RunSpec
) -> list[fx.Node]:
    """The calls from the last that takes an input with a wrong gradient first to the next that takes one with a right gradient.

    Gradients come from the end of the graph: between the two they are spoilt. Nothing where none after it is right.
    """
    calls = calls_of(graph)
    position = {node: index for index, node in enumerate(calls)}
    placeholders = graph.graph.find_nodes(op="placeholder")
    by_use: dict[int, float] = {}
    with left_out_where_it_fails():
        for name, gradient in expected.items():
            index = index_of_input(name)
            users = () if index is None else placeholders[index].users
            uses = [position[user] for user in users if user in position]
            if uses and gradient is not None:
                one, other = (
                    left_by({**NOTHING_LEFT, "gradients": {name: run.get(name)}})
                    for run in (actual, expected)
                )
                found = compare.mismatch(one, other, spec=spec)
                excess = found.get("excess", math.inf) if found else 1.0
                by_use[min(uses)] = max(excess, by_use.get(min(uses), 1.0))
        # a wrong value in forward spoils all of them a little
        least = math.sqrt(max(by_use.values(), default=1.0))
        wrong = max((use for use, excess in by_use.items() if excess >= least > 1), default=len(calls))
        right = min((use for use in by_use if use > wrong), default=-1)
        return calls[wrong : right + 1]
    return []


NOTHING_LEFT: Mapping[str, Any] = {"outputs": (), "inputs_after": {}}


def differing_node_of(part: Before, link: Link, spec: RunSpec, way: Set[str]) -> fx.Node | None:
    """The first node of ``part`` on the ``way`` whose value differs when each of them is an output; None where memory may not suffice."""
    tapped, nodes = with_taps(part.graph, way)
    sizes = sum(bytes_of_example(node.meta.get("example_value")) for node in part.graph.graph.nodes)
    if not nodes or 3 * sizes > MOST_OF_MEMORY * free_bytes(tensors_in(part.inputs)):
        return None
    runs = runs_of(replace(part, graph=tapped), link, spec)
    found = runs.difference([])
    return first_as_far_off(nodes, found["where"], runs.actual, runs.expected) if found else None


AS_FAR = 0.1
"""Of a wrong value's error: what an earlier one on the way to it must be off by to be its cause. Rounding is far below."""


def first_as_far_off(
    nodes: Mapping[str, fx.Node], where: str, actual: Mapping[str, Any], expected: Mapping[str, Any]
) -> fx.Node | None:
    """The node of the output ``where``, or the first on the way to it whose error is about as large.

    That may have passed for rounding: a run in float64 has other constants (0.1 is another number there), and rounds to other integers.
    """
    node = nodes.get(where)
    if node is None:
        return None
    before, open_nodes = {node}, [node]
    while open_nodes:
        fresh = set(open_nodes.pop().all_input_nodes) - before
        before |= fresh
        open_nodes += fresh
    pairs = zip(nodes.values(), actual["outputs"], expected["outputs"], strict=True)
    errors = {one: error_of(value, exact) for one, value, exact in pairs if one in before}
    least = AS_FAR * errors[node]
    return next(one for one, error in errors.items() if one is node or error >= least > 0)


def error_of(value: Tensor, exact: Tensor) -> float:
    """How far off a result is, in units of eager's; nothing is said of one of another form, or with nothing to round."""
    is_alike = (value.shape, value.dtype) == (exact.shape, exact.dtype)
    return arithmetic.error_of(value, exact) if is_alike and exact.is_floating_point() else 0.0


def runs_of(inside: Before, link: Link, spec: RunSpec) -> Comparison:
    actual = run_compiled_anew(inside, link, backward=False)
    return compared(inside, spec, actual, inside.eager(backward=False))


def one_of_each_kind(inside: Before, way: Set[str]) -> Iterator[Before]:
    """A part with the first call of each kind on the ``way``, where that is a small one: most ops that are wrong are wrong by themselves."""
    calls = [node for node in calls_of(inside.graph) if node.name in way]
    if len(calls) > TAPPED:
        recording = Recording(inside.graph, inside.inputs)
        kinds: dict[Hashable, fx.Node] = {}
        for node in calls:
            kinds.setdefault(kind_of_call(node, recording.facts), node)
        if len(kinds) <= len(calls) // 2:
            yield part_of(extract(recording, set(kinds.values())))


def earliest_parts(inside: Before, link: Link, spec: RunSpec, way: Set[str]) -> Iterator[Before]:
    """At most ``TAPPED`` calls in which the first difference lies, with the inputs that eager gives them; then where it was last seen.

    The first half is asked; where it agrees with eager, the second is taken to differ. That is wrong where both halves are
    compiled otherwise than the whole: then the smallest part that was seen to differ is next, if it is not large. Larger where the
    graph cannot be cut.
    """
    seen: Before | None = None
    while len(calls := [node for node in calls_of(inside.graph) if node.name in way]) > TAPPED:
        recording = Recording(inside.graph, inside.inputs)
        middle = len(calls) // 2
        try:
            first, second = (extract(recording, set(half)) for half in (calls[:middle], calls[middle:]))
        except CannotExtract:
            break
        inside = part_of(first)
        if runs_of(inside, link, spec).difference([]):
            seen = inside
        else:
            inside = part_of(second)
    yield inside
    if seen is not None and seen is not inside and len(seen.graph.graph.nodes) <= MOST_TAPPED:
        yield seen


def calls_of(graph: fx.GraphModule) -> list[fx.Node]:
    return list(filter(is_call, graph.graph.nodes))


def part_of(piece: Piece) -> Before:
    state = before(piece.graph_module, piece.inputs, mutated_placeholders(piece.graph_module))
    return replace(state, outputs_only=True)


def with_taps(graph: fx.GraphModule, way: Set[str]) -> tuple[fx.GraphModule, dict[str, fx.Node]]:
    """A copy of ``graph`` that returns every tensor it computes on the ``way`` and never writes to; and which output is which node's.

    A view of memory that is written to counts as written: it would show what a later node has done.
    """
    tapped = copy_graph_module(graph)
    calls = [node for node in tapped.graph.nodes if node.op.startswith("call")]
    arguments = {argument for node in calls for argument in written_arguments(tapped, node)}
    touched = {one for argument in arguments for one in memory_of_node(argument)}
    nodes = [
        node
        for node in calls
        if node.name in way
        and isinstance(node.meta.get("example_value"), Tensor)
        and not memory_of_node(node) & touched
    ]
    output = next(node for node in reversed(tapped.graph.nodes) if node.op == "output")
    output.args = (tuple(nodes),)
    tapped.recompile()
    return tapped, {f"output {index}": node for index, node in enumerate(nodes)}
