"""The parts that edits of graphs are made of: a cut-out graph with its inputs, graphs copied with
changes, parts of tuple values."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias, TypeGuard

from torch import fx

from minidbg import torch_internals
from minidbg.fx.effects import Fact, FactType, is_call, nested_graphs

Path: TypeAlias = tuple[int, ...]
"""Which part of a tuple value; empty for the value itself."""
PieceKey: TypeAlias = tuple[fx.Node, int, Path]
"""A recorded value: the node, how many dropped writes it has seen, and which part of it."""


@dataclass(frozen=True, slots=True)
class Piece:
    graph_module: fx.GraphModule
    inputs: tuple[Any, ...]
    origins: tuple[PieceKey, ...]
    """Per input where its value comes from in the graph that this was cut out of."""
    faithful: bool
    """Whether each kept node computes what it did in the whole graph, so eager is not asked."""


class CannotExtract(Exception):
    """A value that kept nodes need has no form as input or constant, or could not be recorded."""


def alike(facts: Mapping[fx.Node, Fact], one: fx.Node, other: fx.Node) -> bool:
    """Whether both are tensors of the same shape, dtype and device."""
    first, second = facts.get(one), facts.get(other)
    return is_tensor(first) and is_tensor(second) and first.like == second.like


def is_tensor(fact: Fact | None) -> TypeGuard[Fact]:
    return fact is not None and fact.type is FactType.TENSOR


def is_unpacking(node: fx.Node, facts: Mapping[fx.Node, Fact]) -> bool:
    """Whether ``node`` only takes a part out of a tuple value."""
    whole = node.args[0] if node.target is operator.getitem else None
    fact = facts.get(whole) if isinstance(whole, fx.Node) else None
    return fact is not None and fact.type is FactType.TUPLE


def copy_node(
    graph: fx.Graph,
    node: fx.Node,
    argument: Callable[[fx.Node], Any],
    arguments: tuple[Any, Any] | None = None,
) -> fx.Node:
    """``node`` again at the end of ``graph``, with its name where that is free, and its meta.

    ``argument`` gives what stands for a node of the old graph in ``arguments``, by default the
    node's own args and kwargs.
    """
    args, kwargs = arguments or (node.args, node.kwargs)
    new_kwargs = fx.map_arg(kwargs, argument) if kwargs else {}
    return torch_internals.append_node(graph, node, fx.map_arg(args, argument), new_kwargs)


def rewritten(
    graph_module: fx.GraphModule,
    *,
    arguments: Callable[[fx.Node], tuple[Any, Any]] | None = None,
    stand_ins: Mapping[fx.Node, fx.Node] = MappingProxyType({}),
    without: Set[fx.Node] = frozenset(),
) -> fx.GraphModule:
    """``graph_module`` node by node; ``arguments`` gives a call new args and kwargs, of old nodes.

    ``stand_ins``: nodes that earlier ones replace; they go. ``without``: unused nodes to leave out.
    """
    graph = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    for node in graph_module.graph.nodes:
        if node in stand_ins:
            new[node] = new[stand_ins[node]]
        elif node not in without:
            given = arguments(node) if arguments and is_call(node) else None
            new[node] = copy_node(graph, node, new.__getitem__, given)
    return torch_internals.lazy_graph_module(graph_module, graph)


def with_attributes_lifted(graph_module: fx.GraphModule, paths: Sequence[str]) -> fx.GraphModule:
    """``graph_module`` with an input, after the others, for each of its attributes at ``paths``."""
    graph, new, made = fx.Graph(), dict[fx.Node, fx.Node](), dict[str, fx.Node]()
    for node in graph_module.graph.find_nodes(op="placeholder"):
        new[node] = copy_node(graph, node, new.__getitem__)
    fetches = graph_module.graph.find_nodes(op="get_attr")
    for path in paths:
        first = next(node for node in fetches if node.target == path)
        made[path] = graph.create_node("placeholder", first.name, (), {}, first.name)
        made[path].meta = dict(first.meta)
    for node in graph_module.graph.nodes:
        if node.op == "get_attr" and node.target in made:
            new[node] = made[str(node.target)]
        elif node.op != "placeholder":
            new[node] = copy_node(graph, node, new.__getitem__)
    return torch_internals.lazy_graph_module(graph_module, graph)


def without_arguments(node: fx.Node, gone: Set[fx.Node]) -> tuple[Any, Any]:
    """Args and kwargs of ``node`` without these nodes: out of lists, and None where one was a whole
    argument, an end of a slice or in a dict.

    Raises CannotExtract where that leaves an empty list, or for the first argument, or any of a
    Triton kernel or an op that hands them to nested graphs.
    """
    if not any(argument in gone for argument in node.all_input_nodes):
        return node.args, node.kwargs
    if torch_internals.is_kernel_launch(node) or any(nested_graphs(node)):
        raise CannotExtract(f"{node.name} needs all of its arguments")
    if node.args and node.args[0] in gone:
        raise CannotExtract(f"{node.name} needs its first argument")
    args = tuple(_without(argument, gone) for argument in node.args)
    return args, {key: _without(argument, gone) for key, argument in node.kwargs.items()}


def _without(value: Any, gone: Set[fx.Node]) -> Any:
    if isinstance(value, fx.Node):
        return None if value in gone else value
    if isinstance(value, slice):
        return slice(*(_without(part, gone) for part in (value.start, value.stop, value.step)))
    if isinstance(value, dict):
        return {key: _without(part, gone) for key, part in value.items()}
    if not isinstance(value, tuple | list):
        return value
    rest = [part for part in value if not (isinstance(part, fx.Node) and part in gone)]
    if not rest and value:
        raise CannotExtract("a list would be empty")
    return type(value)([_without(part, gone) for part in rest])


def parts_of(fact: Fact, path: Path = ()) -> Iterator[tuple[Path, Fact]]:
    """The parts of a tuple value, tuples in it opened, each with its place; of another, itself."""
    if fact.type is not FactType.TUPLE:
        yield path, fact
    for index, part in enumerate(fact.parts):
        yield from parts_of(part, (*path, index))


def part_of(value: Any, path: Path) -> Any:
    for index in path:
        value = value[index]
    return value


def meta_of_part(meta: Mapping[str, Any], path: Path) -> dict[str, Any]:
    found = dict(meta)
    for key in ("example_value", "val"):
        if path and key in found:
            try:
                found[key] = part_of(found[key], path)
            except (TypeError, IndexError):
                del found[key]
    return found
