"""Edits of a small graph that keep all its nodes: other arguments, fewer inputs, flat submodules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from minidbg.graphs.pieces import rewritten, with_graph_inlined

__all__ = [
    "flattened",
    "rewritten",
    "shorter_arguments",
    "simpler_constants",
    "weight_of",
    "with_dtype",
    "with_sizes",
]


def shorter_arguments(node: fx.Node) -> Iterator[tuple[Any, Any]]:
    """``node``'s arguments with one left out: the last ones first, then keyword ones. Values of nodes stay."""
    for count in range(1, len(node.args)):
        if not any(_holds_node(argument) for argument in node.args[count:]):
            yield node.args[:count], node.kwargs
    for key, value in node.kwargs.items():
        if not _holds_node(value):
            yield node.args, {other: kept for other, kept in node.kwargs.items() if other != key}


def simpler_constants(node: fx.Node) -> Iterator[tuple[Any, Any]]:
    """``node``'s arguments with one number nearer to 0 or 1: the smallest first."""
    for place, value in enumerate(node.args):
        for other in _simpler(value):
            yield (*node.args[:place], other, *node.args[place + 1 :]), node.kwargs
    for key, value in node.kwargs.items():
        for other in _simpler(value):
            yield node.args, {**node.kwargs, key: other}


def _simpler(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        return
    if isinstance(value, int):
        yield from (other for other in (0, 1, 2) if other < abs(value))
    elif isinstance(value, float):
        yield from (other for other in (0.0, 1.0, 0.5) if weight_of(other) < weight_of(value))


def weight_of(value: Any) -> float:
    """How far a constant is from the simplest of its kind; sums over tuples."""
    if isinstance(value, bool) or value is None:
        return 0.0
    if isinstance(value, int):
        return float(abs(value))
    if isinstance(value, float):
        order: Mapping[float, float] = {0.0: 0.0, 1.0: 1.0, 0.5: 2.0}
        return order.get(value, 3.0)
    if isinstance(value, tuple | list):
        return sum(map(weight_of, value))
    return 0.0


def with_sizes(value: Any, sizes: Mapping[int, int]) -> Any:
    """``value`` with each int that is a key replaced, tuples and lists opened; for shapes among the arguments."""
    if isinstance(value, bool | fx.Node):
        return value
    if isinstance(value, int):
        return sizes.get(value, value)
    if isinstance(value, tuple | list):
        return type(value)(with_sizes(part, sizes) for part in value)
    return value


def with_dtype(value: Any, old: torch.dtype, new: torch.dtype) -> Any:
    """``value`` with one dtype replaced by another, tuples and lists opened."""
    if isinstance(value, tuple | list):
        return type(value)(with_dtype(part, old, new) for part in value)
    return new if value is old else value


def _holds_node(value: Any) -> bool:
    found: list[fx.Node] = []
    fx.map_arg(value, lambda node: found.append(node))
    return bool(found)


UNTRACEABLE = (fx.proxy.TraceError, TypeError, ValueError, RuntimeError, AttributeError, LookupError)
"""What a submodule's code raises when it is run with stand-ins for tensors that it cannot bear."""


def flattened(graph_module: fx.GraphModule, node: fx.Node) -> fx.GraphModule | None:
    """``graph_module`` with the submodule that ``node`` calls traced into it; None when it cannot be traced.

    Its parameters and buffers become attributes of the same names under its path.
    """
    path = str(node.target)
    try:
        inner = fx.symbolic_trace(graph_module.get_submodule(path))
    except UNTRACEABLE:
        return None
    given = _bound(inner, node.args, node.kwargs)
    return None if given is None else with_graph_inlined(graph_module, node, inner, path, given)


def _bound(inner: fx.GraphModule, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any] | None:
    """What each placeholder of ``inner`` is given; None when one is given nothing."""
    values = list(args)
    found: list[Any] = []
    for node in inner.graph.nodes:
        if node.op != "placeholder":
            continue
        if values:
            found.append(values.pop(0))
        elif node.target in kwargs:
            found.append(kwargs[str(node.target)])
        elif node.args:
            found.append(node.args[0])
        else:
            return None
    return found
