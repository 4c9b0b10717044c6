"""The first node whose value differs: the graph is halved until it is small, then each of its values becomes an output.

A hint for people and for the reduction, asked for only after a mismatch. Each half is fed with the values that eager computes, so
that only small graphs are compiled. What shows in no half, or not with more outputs, has no first node.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from minidbg.backend.chain import Link
from minidbg.backend.kept import tensors_in
from minidbg.backend.verify_refusals import bytes_of_example, free_bytes
from minidbg.backend.verify_runs import Before, before, run_compiled_anew, run_eager
from minidbg.graphs.copying import copy_graph_module
from minidbg.graphs.edit import extract
from minidbg.graphs.effects import is_call
from minidbg.graphs.mutation import mutated_placeholders, written_arguments
from minidbg.graphs.pieces import CannotExtract, Piece
from minidbg.graphs.record import Recording
from minidbg.oracle import compare
from minidbg.oracle.agreement import differ
from minidbg.settings import Settings

log = logging.getLogger("minidbg")
TAPPED = 16
"""Calls of a graph that is compiled with each of its values as an output."""
MOST_OF_MEMORY = 0.2


def first_differing_node(inside: Before, link: Link, settings: Settings) -> fx.Node | None:
    """The first node, in the graph's order, whose value the backend gets wrong; None when it cannot be told."""
    try:
        return differing_node(inside, link, settings)
    except Exception:  # a hint that cannot be had is left out, and nothing else is lost
        log.debug("no_first_differing_node", exc_info=True)
        return None


def differing_node(inside: Before, link: Link, settings: Settings) -> fx.Node | None:
    """The same. Raises whatever the backend raises for the graph with more outputs."""
    inside = earliest_part(inside, link, settings)
    tapped, nodes = with_taps(inside.graph)
    sizes = sum(bytes_of_example(node.meta.get("example_value")) for node in inside.graph.graph.nodes)
    if not nodes or 3 * sizes > MOST_OF_MEMORY * free_bytes(tensors_in(inside.inputs)):
        return None
    found = difference(replace(inside, graph=tapped), link, settings)
    return nodes.get(found["where"]) if found else None


def difference(inside: Before, link: Link, settings: Settings) -> compare.Difference | None:
    """How the outputs of the graph, compiled anew, differ from eager's."""
    actual = outputs_of(run_compiled_anew(inside, link, backward=False))
    inside.set_generators()
    expected = outputs_of(run_eager(inside, backward=False))

    def eager(change: Any = lambda made: made, seed: int | None = None) -> dict[str, Any]:
        inside.set_generators()
        if seed is not None:
            torch.manual_seed(seed)
        return outputs_of(inside.changed(change, backward=False))

    return differ(actual, expected, eager, {"tolerances": settings.allowed or None}, [])


def earliest_part(inside: Before, link: Link, settings: Settings) -> Before:
    """At most ``TAPPED`` calls in which the first difference lies, with the inputs that eager gives them.

    The first half is asked; where it agrees with eager, the second is taken to differ. Larger where the graph cannot be cut.
    """
    while len(calls := list(filter(is_call, inside.graph.graph.nodes))) > TAPPED:
        recording = Recording(inside.graph, inside.inputs)
        middle = len(calls) // 2
        try:
            first, second = (extract(recording, set(half)) for half in (calls[:middle], calls[middle:]))
        except CannotExtract:
            break
        part = part_of(first)
        inside = part if difference(part, link, settings) else part_of(second)
    return inside


def part_of(piece: Piece) -> Before:
    """The state that a call of the piece starts from."""
    return before(piece.graph_module, piece.inputs, mutated_placeholders(piece.graph_module))


def with_taps(graph: fx.GraphModule) -> tuple[fx.GraphModule, dict[str, fx.Node]]:
    """A copy of ``graph`` that returns every tensor it computes and never writes to; and which output is which node's."""
    tapped = copy_graph_module(graph)
    calls = [node for node in tapped.graph.nodes if node.op.startswith("call")]
    touched = {argument for node in calls for argument in written_arguments(tapped, node)}
    nodes = [
        node for node in calls if node not in touched and isinstance(node.meta.get("example_value"), Tensor)
    ]
    output = next(node for node in reversed(tapped.graph.nodes) if node.op == "output")
    output.args = (tuple(nodes),)
    tapped.recompile()
    return tapped, {f"output {place}": node for place, node in enumerate(nodes)}


def outputs_of(left: Mapping[str, Any]) -> dict[str, Any]:
    """What a run left behind, its outputs alone."""
    return {**left, "inputs_after": {}, "gradients": {}}
