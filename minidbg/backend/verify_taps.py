"""The first node whose value differs: every value becomes an output, once in eager and once through the backend.

A hint for people and for the reduction, asked for only after a mismatch. More outputs may hide the bug; then there is none.
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
from minidbg.backend.verify_runs import Before, run_compiled_anew, run_eager
from minidbg.graphs.copying import copy_graph_module
from minidbg.graphs.mutation import written_arguments
from minidbg.oracle.agreement import differ
from minidbg.settings import Settings

log = logging.getLogger("minidbg")
MOST_NODES = 4000
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
    tapped, nodes = with_taps(inside.graph)
    sizes = sum(bytes_of_example(node.meta.get("example_value")) for node in inside.graph.graph.nodes)
    if not nodes or len(nodes) > MOST_NODES:
        return None
    if 3 * sizes > MOST_OF_MEMORY * free_bytes(tensors_in(inside.inputs)):
        return None
    inside = replace(inside, graph=tapped)
    actual = outputs_of(run_compiled_anew(inside, link, backward=False))
    inside.set_generators()
    expected = outputs_of(run_eager(inside, backward=False))

    def eager(change: Any = lambda made: made, seed: int | None = None) -> dict[str, Any]:
        inside.set_generators()
        if seed is not None:
            torch.manual_seed(seed)
        return outputs_of(inside.changed(change, backward=False))

    found = differ(actual, expected, eager, {"tolerances": settings.allowed or None}, [])
    return nodes.get(found["where"]) if found else None


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
