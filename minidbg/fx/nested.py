"""Edits of a small graph and of the graphs inside it: the branches of ``cond``, the bodies of
loops, checkpoints, submodules.

Operands go to a nested graph's inputs by position: they are the last arguments of the higher-order
op. Where that is wrong the edited graph does not run in eager, so it is never asked.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import fx

from minidbg import torch_internals
from minidbg.fx.copying import copy_node
from minidbg.fx.edit import is_tensor, is_unpacking, rewritten
from minidbg.fx.effects import Fact, graph_attribute, is_graph, nested_graphs, nodes_in, op_name
from minidbg.fx.record import EagerFailure, Recording


def branches(node: fx.Node) -> list[tuple[str, fx.GraphModule]]:
    """Attribute path and graph of each graph that ``node`` runs, each once."""
    if node.op == "call_module":
        return [(str(node.target), graph_attribute(node))]
    found = {str(one.target): graph_attribute(one) for one in node.all_input_nodes if is_graph(one)}
    return list(found.items())


def holders(graph_module: fx.GraphModule) -> Iterator[fx.Node]:
    """The calls that run a nested graph, in order: higher-order ops and graph modules."""
    for node in graph_module.graph.nodes:
        is_module = node.op == "call_module" and isinstance(graph_attribute(node), fx.GraphModule)
        if is_module or (node.op == "call_function" and any(nested_graphs(node))):
            yield node


def operands(node: fx.Node, branch: fx.GraphModule) -> list[Any] | None:
    """What ``node`` hands to each input of ``branch``; None when it has too few arguments."""
    given = [value for value in _leaves(node.args) if not is_graph(value)]
    count = len(branch.graph.find_nodes(op="placeholder"))
    return given[len(given) - count :] if count <= len(given) else None


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


def inlined(graph_module: fx.GraphModule, node: fx.Node, path: str) -> fx.GraphModule | None:
    """``graph_module`` with the nested graph at ``path`` for ``node``; None if operands misfit."""
    branch = dict(branches(node))[path]
    given = operands(node, branch)
    if given is None:
        return None
    graph = fx.Graph()
    new: dict[fx.Node, Any] = {}
    for old in graph_module.graph.nodes:
        is_part = old.target is operator.getitem and old.args[0] is node
        if old is node:
            new[old] = _append_graph(graph, branch, path, fx.map_arg(given, new.__getitem__))
        elif is_part and isinstance(new[node], tuple | list):
            new[old] = new[node][old.args[1]]
        else:
            new[old] = copy_node(graph, old, new.__getitem__)
    for fetch in graph.find_nodes(op="get_attr"):
        if not fetch.users:
            graph.erase_node(fetch)
    return torch_internals.lazy_graph_module(graph_module, graph)


def _append_graph(graph: fx.Graph, inner: fx.GraphModule, path: str, given: Sequence[Any]) -> Any:
    """Append the nodes of ``inner``; what comes back is its result in terms of the new nodes."""
    new = dict(zip(inner.graph.find_nodes(op="placeholder"), given, strict=True))
    result = graph.graph_copy(inner.graph, new)
    for node in inner.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            new[node].target = f"{path}.{node.target}"
    return result


Route: TypeAlias = tuple[str, ...]
"""Attribute paths from a graph to a graph nested in it, one for each level."""


def all_graphs(graph_module: fx.GraphModule, route: Route = ()) -> Iterator[tuple[Route, fx.GraphModule]]:
    """``graph_module`` and all graphs nested in it, each once, outer ones first."""
    yield route, graph_module
    paths = {path: branch for node in holders(graph_module) for path, branch in branches(node)}
    for path, branch in paths.items():
        yield from all_graphs(branch, (*route, path))


def with_level(graph_module: fx.GraphModule, route: Route, inner: fx.GraphModule) -> fx.GraphModule:
    """``graph_module`` with ``inner`` at the end of ``route``; graphs on the way are made anew."""
    if not route:
        return inner
    path, *rest = route
    made = rewritten(graph_module)
    branch: Any = made.get_submodule(path)
    owner, _, name = path.rpartition(".")
    setattr(made.get_submodule(owner), name, with_level(branch, tuple(rest), inner))
    return made


IN_ROWS = {"map_impl": 1, "scan": 2}
"""Higher-order ops, and which argument of theirs is handed on row by row."""


def values_of(recording: Recording, node: fx.Node, path: str) -> list[Any] | None:
    """A value for each input of the graph at ``path`` that ``node`` runs; None where unknown."""
    branch = dict(branches(node))[path]
    if gets_other_values(node, branch):
        return values_like_examples(branch)
    sources = operands(node, branch)
    if sources is None:
        return None
    rows = nodes_in(node.args[IN_ROWS[op_name(node)]]) if op_name(node) in IN_ROWS else []
    wanted = [source for source in sources if isinstance(source, fx.Node)]
    try:
        taken = iter(recording.values([(recording.index[node], source) for source in wanted]))
        values = [next(taken) if isinstance(source, fx.Node) else source for source in sources]
        pairs = zip(sources, values, strict=True)
        return [value[0] if source in rows else value for source, value in pairs]
    except (EagerFailure, IndexError):  # no rows
        return None


def tensor_lists(node: fx.Node, facts: Mapping[fx.Node, Fact]) -> list[int]:
    """The length of each tensor list a call takes; of a call for each element of one, again."""

    def is_one(value: Any) -> bool:
        return isinstance(value, fx.Node) and is_tensor(facts.get(value))

    arguments = (*node.args, *node.kwargs.values())
    lists = (value for value in arguments if isinstance(value, tuple | list))
    lengths = [len(value) for value in lists if value and all(map(is_one, value))]
    return lengths * 2 if "foreach" in op_name(node) else lengths


def without_elements(
    graph_module: fx.GraphModule, facts: Mapping[fx.Node, Fact], length: int, gone: Set[int]
) -> fx.GraphModule | None:
    """``graph_module`` without the elements at these places of each list of ``length`` tensors, and
    of what is made of each element.

    None where another call takes what would go.
    """
    takers = {node for node in graph_module.graph.nodes if length in tensor_lists(node, facts)}
    kept: dict[Any, int] = {place: at for at, place in enumerate(sorted({*range(length)} - gone))}
    givers = (node for node in takers if node in facts and len(facts[node].parts) == length)
    made_of = {user for node in givers for user in node.users}
    parts = {node for node in made_of if is_unpacking(node, facts)}
    spare = {node.name for node in parts if node.args[1] in gone}

    def cut(value: Any) -> Any:
        is_list = isinstance(value, tuple | list) and len(value) == length
        return [value[place] for place in kept] if is_list else value

    def arguments(node: fx.Node) -> Arguments:
        if node in takers:
            return tuple(map(cut, node.args)), {key: cut(one) for key, one in node.kwargs.items()}
        if node in parts and node.args[1] in kept:
            return (node.args[0], kept[node.args[1]]), {}
        return node.args, node.kwargs

    made = rewritten(graph_module, arguments=arguments)
    output = made.graph.output_node()
    if isinstance(returned := output.args[0], tuple | list):
        output.args = (tuple(one for one in returned if getattr(one, "name", "") not in spare),)
    for node in [node for node in made.graph.nodes if node.name in spare]:
        if node.users:
            return None
        made.graph.erase_node(node)
    return torch_internals.lazy_graph_module(made, made.graph)


def gets_other_values(node: fx.Node, branch: fx.GraphModule) -> bool:
    """Whether ``branch`` is run on values that are no operands of ``node``.

    An autograd function's backward gets gradients and what forward saved; attention scores places.
    """
    if op_name(node) == "autograd_function_apply":
        return branch is not next(nested_graphs(node), None)
    return op_name(node).startswith("flex_attention")


def values_like_examples(branch: fx.GraphModule) -> list[Any] | None:
    """Zeros for each input of ``branch``, of its traced shapes; None where one is no tensor."""
    inputs = branch.graph.find_nodes(op="placeholder")
    examples: list[Any] = [node.meta.get("example_value") for node in inputs]
    if not all(isinstance(example, torch.Tensor) for example in examples):
        return None
    return [
        torch.zeros([*map(torch_internals.hint, like.shape)], dtype=like.dtype, device=like.device)
        for like in examples
    ]


Arguments: TypeAlias = tuple[tuple[Any, ...], Mapping[str, Any]]
Rewrite: TypeAlias = tuple[int | str, Arguments, tuple[Any, ...]]
"""The place of an argument of a call, by position or name; the arguments with it rewritten; and the
originals from that place on."""


def shorter_arguments(node: fx.Node) -> Iterator[Rewrite]:
    """``node``'s arguments less one: the last first, then keywords. Node values and axes stay."""
    if torch_internals.is_kernel_launch(
        node
    ):  # numbers in a table; and a kernel checks nothing that it is given
        return
    axes = axes_of(node)
    for count in range(1, len(node.args)):
        rest = node.args[count:]
        if not nodes_in(rest) and not axes.intersection(range(count, len(node.args))):
            yield count, (node.args[:count], node.kwargs), rest
    for key, value in node.kwargs.items():
        if not nodes_in(value) and key not in axes:
            others = {other: kept for other, kept in node.kwargs.items() if other != key}
            yield key, (node.args, others), (value,)


def simpler_constants(node: fx.Node) -> Iterator[Rewrite]:
    """``node``'s arguments with one number plainer. None is neutral: what is multiplied by 1 is not
    computed. Axes stay."""
    if torch_internals.is_kernel_launch(node):
        return
    axes = axes_of(node)
    given: dict[Any, Any] = {**dict(enumerate(node.args)), **node.kwargs}
    for place, value in given.items():
        for other in () if place in axes else _simpler(value):
            yield place, with_originals(place, (other,), (node.args, node.kwargs)), (value,)


def with_originals(place: int | str, originals: tuple[Any, ...], given: Arguments) -> Arguments:
    args, kwargs = given
    if isinstance(place, str):
        return args, {**kwargs, place: originals[0]}
    return (*args[:place], *originals, *args[place + len(originals) :]), kwargs


def axes_of(node: fx.Node) -> frozenset[int | str]:
    """Places of arguments that are axes, by torch's names: over another axis it is another op."""
    named = (key for key in node.kwargs if key.startswith(AXES))
    places = (index for index in range(len(node.args)) if _is_axis(op_name(node), index))
    return frozenset([*named, *places])


AXES = ("dim", "axis", "axes")
"""How such names begin."""


@cache
def _is_axis(op: str, index: int) -> bool:
    schemas = torch_internals.operator_schemas(f"torch.ops.aten.{op.strip('_')}")
    names = ([one.name for one in schema.arguments if not one.kwarg_only] for schema in schemas)
    return any(each and each[min(index, len(each) - 1)].startswith(AXES) for each in names)


def _simpler(value: Any) -> Iterator[Any]:
    if isinstance(value, int) and not isinstance(value, bool):
        yield from (other for other in (2, 3) if other < value)
    elif isinstance(value, float):
        yield from (other for other in (0.5, 2.0) if weight_of(other) < weight_of(value))


def weight_of(value: Any) -> float:
    """How far a constant is from the simplest of its kind; sums over tuples."""
    if isinstance(value, bool) or value is None:
        return 0.0
    if isinstance(value, int):
        return float(abs(value))
    if isinstance(value, float):
        return {0.5: 1.0, 2.0: 2.0}.get(value, 3.0)
    if isinstance(value, tuple | list):
        return sum(map(weight_of, value))
    return 0.0


def with_sizes(value: Any, sizes: Mapping[int, int]) -> Any:
    """``value`` with ints that are keys replaced, in tuples and lists too; for shape arguments."""
    if isinstance(value, tuple | list):
        return type(value)(with_sizes(part, sizes) for part in value)
    is_size = isinstance(value, int) and not isinstance(value, bool)
    return sizes.get(value, value) if is_size else value
