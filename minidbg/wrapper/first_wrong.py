"""The first node whose value the backend gets wrong: a hint for people and for the reduction.

It is found by one run of the graph with each of its values as an output. What does not show with
more outputs has no first node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, fx

from minidbg.codegen.size import call_nodes
from minidbg.core.foreign import fence
from minidbg.core.run_spec import RunSpec
from minidbg.fx.copying import copy_graph_module
from minidbg.fx.effects import is_call
from minidbg.fx.mutation import storages_of, written_arguments
from minidbg.judge.differences import distance_between
from minidbg.wrapper.chain import Link
from minidbg.wrapper.verify_runs import (
    Before,
    bytes_of_example,
    comparison_with,
    lack_of_memory,
    run_compiled_anew,
)

MOST_TAPPED = 500
"""Calls of a graph that is compiled once more for this; a larger one is left to the reduction."""
MEMORY_FACTOR = 12
"""Three runs keep all values; and a hint is worth a quarter of what a verification may take."""


def first_differing_node(inside: Before, link: Link, spec: RunSpec) -> fx.Node | None:
    """The first node whose value differs when each is an output, beside the way to what the program
    sees too; None where memory may not suffice."""
    with fence("no_hint"):  # often the backend's, for another graph
        tapped, nodes = with_taps(inside.graph)
        examples = (node.meta.get("example_value") for node in inside.graph.graph.nodes)
        sizes = sum(map(bytes_of_example, examples))
        is_too_large = lack_of_memory(MEMORY_FACTOR * sizes, inside.inputs)
        if not nodes or is_too_large or call_nodes(inside.graph) > MOST_TAPPED:
            return None
        part = replace(inside, graph=tapped)
        both = run_compiled_anew(part, link, backward=False), part.eager(backward=False)
        runs = comparison_with(part, spec, *({**run, "inputs_after": {}} for run in both))
        if found := runs.difference([]):
            return first_as_far_off(nodes, found["where"], runs.actual, runs.expected)
    return None


AS_FAR = 0.1
"""Of a wrong value's error: what an earlier one on the way to it must be off by to be its cause.
Rounding is far below."""


def first_as_far_off(
    nodes: Mapping[str, fx.Node], where: str, actual: Mapping[str, Any], expected: Mapping[str, Any]
) -> fx.Node | None:
    """The node of output ``where``, or the first on the way to it whose error is about as large.

    That may have passed for rounding: a run in float64 has other constants (0.1 is another number
    there), and rounds to other integers.
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
    errors = {one: node_error(value, exact) for one, value, exact in pairs if one in before}
    least = AS_FAR * errors[node]
    return next(one for one, error in errors.items() if one is node or error >= least > 0)


def node_error(value: Tensor, exact: Tensor) -> float:
    """How far off a result is in units of eager's; 0 for another form, or with nothing to round."""
    if (value.shape, value.dtype) != (exact.shape, exact.dtype) or not exact.is_floating_point():
        return 0.0
    return math.inf if (value.isinf() & exact.isfinite()).any() else distance_between(value, exact)


def with_taps(graph: fx.GraphModule) -> tuple[fx.GraphModule, dict[str, fx.Node]]:
    """A copy of ``graph`` that returns every tensor it computes and never writes to; and which
    output is which node's.

    A view of memory that is written to counts as written: it would show what a later node has done.
    """
    tapped = copy_graph_module(graph)
    calls = [node for node in tapped.graph.nodes if is_call(node)]
    arguments = {argument for node in calls for argument in written_arguments(tapped, node)}
    touched = {key for argument in arguments for key in (argument, *storages_of(argument))}
    nodes = [
        node
        for node in calls
        if isinstance(node.meta.get("example_value"), Tensor)
        and touched.isdisjoint((node, *storages_of(node)))
    ]
    output = next(node for node in reversed(tapped.graph.nodes) if node.op == "output")
    output.args = (tuple(nodes),)
    tapped.recompile()
    return tapped, {f"output {index}": node for index, node in enumerate(nodes)}
