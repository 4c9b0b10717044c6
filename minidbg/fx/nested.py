"""Edits of a small graph and of the graphs inside it: the branches of ``cond``, the bodies of loops, checkpoints, submodules.

Which operand goes to which input of a nested graph is told by position: they are the last arguments of the higher-order
op. Where that is wrong the edited graph does not run in eager, so it is never asked.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import fx
from torch.fx import traceback
from torch.fx.experimental.proxy_tensor import make_fx

from minidbg import torch_internals
from minidbg.fx.carried import branches, holders, operand_leaves, slots
from minidbg.fx.copying import clone_values
from minidbg.fx.effects import Mode, is_call, mode_of, nested_graphs, nesting_levels, nodes_in, op_name
from minidbg.fx.pieces import rewritten, with_graph_inlined, with_graphs
from minidbg.fx.runs import EagerFailure

if TYPE_CHECKING:
    from minidbg.fx.record import Recording


def operands(node: fx.Node, branch: fx.GraphModule) -> list[Any] | None:
    """What ``node`` hands to each input of ``branch``; None when it has too few arguments for that."""
    count, given = len(branch.graph.find_nodes(op="placeholder")), operand_leaves(node)
    return given[len(given) - count :] if count <= len(given) else None


def inlined(graph_module: fx.GraphModule, node: fx.Node, path: str) -> fx.GraphModule | None:
    """``graph_module`` with the nested graph at ``path`` in the place of ``node``; None when its operands do not fit."""
    branch = dict(branches(node))[path]
    given = operands(node, branch)
    return None if given is None else with_graph_inlined(graph_module, node, branch, path, given)


Route: TypeAlias = tuple[str, ...]
"""Attribute paths from a graph to a graph nested in it, one for each level."""


def levels(graph_module: fx.GraphModule, route: Route = ()) -> Iterator[tuple[Route, fx.GraphModule]]:
    """``graph_module`` and all graphs nested in it, each once, outer ones first."""
    yield route, graph_module
    paths = {path: branch for node in holders(graph_module) for path, branch in branches(node)}
    for path, branch in paths.items():
        yield from levels(branch, (*route, path))


def level(graph_module: fx.GraphModule, route: Route) -> fx.GraphModule | None:
    """The graph at the end of ``route``, while it is there."""
    return next((graph for at, graph in levels(graph_module) if at == route), None)


def with_level(graph_module: fx.GraphModule, route: Route, inner: fx.GraphModule) -> fx.GraphModule:
    """``graph_module`` with ``inner`` at the end of ``route``; the graphs on the way are made anew."""
    if not route:
        return inner
    path, *rest = route
    branch = graph_module.get_submodule(path)
    assert isinstance(branch, fx.GraphModule)
    return with_graphs(graph_module, {path: with_level(branch, tuple(rest), inner)})


def values_of(recording: Recording, node: fx.Node, path: str) -> list[Any] | None:
    """A value for each input of the graph at ``path`` that ``node`` runs; None where they cannot be known."""
    branch = dict(branches(node))[path]
    if gets_other_values(node, branch):
        return values_like_examples(branch)
    given = _given(node, path, branch)
    if given is None:
        return None
    wanted = [value for value, _ in given if isinstance(value, fx.Node)]
    try:
        values = iter(recording.values([(recording.index[node], value) for value in wanted]))
        known = [(next(values) if isinstance(value, fx.Node) else value, rows) for value, rows in given]
        return [value[0] if in_rows else value for value, in_rows in known]
    except (EagerFailure, IndexError):  # no rows
        return None


def _given(node: fx.Node, path: str, branch: fx.GraphModule) -> list[tuple[Any, bool]] | None:
    """What each input of ``branch`` gets, and whether row by row."""
    leaves, found = operand_leaves(node), dict[int, tuple[Any, bool]]()
    for slot in slots(node):
        if slot.operand is not None:
            found |= dict.fromkeys(slot.inputs.get(path, ()), (leaves[slot.operand], slot.in_rows))
    if len(found) == len(branch.graph.find_nodes(op="placeholder")):
        return [found[index] for index in range(len(found))]
    given = operands(node, branch)
    return None if given is None else [(value, False) for value in given]


def without_node(branch: fx.GraphModule, node: fx.Node, stand_in: fx.Node) -> fx.GraphModule:
    """``branch`` with ``stand_in`` in the place of ``node``, and without what only ``node`` needed."""
    made = rewritten(branch, stand_ins={node: stand_in})
    made.graph.eliminate_dead_code()
    return torch_internals.lazy_graph_module(branch, made.graph)


def without_grad_modes(branch: fx.GraphModule) -> fx.GraphModule | None:
    """``branch`` without its settings of grad mode; None when it has none."""
    changes = {node for node in branch.graph.nodes if mode_of(node) is Mode.GRAD}
    return rewritten(branch, without=changes) if changes else None


def gets_other_values(node: fx.Node, branch: fx.GraphModule) -> bool:
    """Whether ``branch`` is run on values that are no operands of ``node``.

    The backward of an autograd function gets gradients and what forward saved; attention scores their places.
    """
    if op_name(node) == "autograd_function_apply":
        return branch is not next(nested_graphs(node), None)
    return op_name(node).startswith("flex_attention")


def values_like_examples(branch: fx.GraphModule) -> list[Any] | None:
    """Zeros for each input of ``branch``, of the shapes that it was traced with; None where one is no tensor."""
    examples = [node.meta.get("example_value") for node in branch.graph.nodes if node.op == "placeholder"]
    if not all(isinstance(example, torch.Tensor) for example in examples):
        return None
    return [
        torch.zeros(
            [torch_internals.hint(size) for size in example.shape], dtype=example.dtype, device=example.device
        )
        for example in examples
    ]


Arguments: TypeAlias = tuple[tuple[Any, ...], Mapping[str, Any]]
Rewrite: TypeAlias = tuple[int | str, Arguments, Callable[[Arguments], Arguments]]
"""The place of an argument of a call, by position or name; the arguments with it rewritten; and what puts the original back into later ones."""


def shorter_arguments(node: fx.Node) -> Iterator[Rewrite]:
    """``node``'s arguments with one left out: the last ones first, then keyword ones. Values of nodes stay, and axes."""
    if torch_internals.is_kernel_launch(
        node
    ):  # numbers in a table; and a kernel checks nothing that it is given
        return
    axes = axes_of(node)
    for count in range(1, len(node.args)):
        rest = node.args[count:]
        if not nodes_in(rest) and not axes.intersection(range(count, len(node.args))):
            yield count, (node.args[:count], node.kwargs), partial(_with_last, count, rest)
    for key, value in node.kwargs.items():
        if not nodes_in(value) and key not in axes:
            others = {other: kept for other, kept in node.kwargs.items() if other != key}
            yield key, (node.args, others), partial(_with_named, key, value)


def simpler_constants(node: fx.Node) -> Iterator[Rewrite]:
    """``node``'s arguments with one number plainer. None is neutral: what is multiplied by 1 is not computed. Axes stay."""
    if torch_internals.is_kernel_launch(node):
        return
    axes = axes_of(node)
    for index, value in enumerate(node.args):
        for other in () if index in axes else _simpler(value):
            changed = _with_positional(index, other, (node.args, node.kwargs))
            yield index, changed, partial(_with_positional, index, value)
    for key, value in node.kwargs.items():
        for other in () if key in axes else _simpler(value):
            yield key, _with_named(key, other, (node.args, node.kwargs)), partial(_with_named, key, value)


def _with_last(count: int, rest: tuple[Any, ...], given: Arguments) -> Arguments:
    return (*given[0][:count], *rest), given[1]


def _with_positional(index: int, value: Any, given: Arguments) -> Arguments:
    return (*given[0][:index], value, *given[0][index + 1 :]), given[1]


def _with_named(key: str, value: Any, given: Arguments) -> Arguments:
    return given[0], {**given[1], key: value}


def axes_of(node: fx.Node) -> frozenset[int | str]:
    """Places of arguments that are axes, by the names that torch gives them: over another axis it is another op."""
    named = (key for key in node.kwargs if key.startswith(AXES))
    return frozenset([*named, *(index for index in range(len(node.args)) if _is_axis(op_name(node), index))])


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
    """``value`` with each int that is a key replaced, tuples and lists opened; for shapes among the arguments."""
    if isinstance(value, tuple | list):
        return type(value)(with_sizes(part, sizes) for part in value)
    return sizes.get(value, value) if isinstance(value, int) and not isinstance(value, bool) else value


def with_dtype(value: Any, old: torch.dtype, new: torch.dtype) -> Any:
    """``value`` with one dtype replaced by another, tuples and lists opened."""
    return fx.node.map_aggregate(value, lambda part: new if part is old else part)


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
    rest = inner.graph.find_nodes(op="placeholder")[len(args) :]
    if not all(node.target in kwargs or node.args for node in rest):
        return None
    return [*args, *(kwargs[node.target] if node.target in kwargs else node.args[0] for node in rest)]


def without_levels(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> fx.GraphModule | None:
    """What ``graph_module`` computes within its levels of vmap, jvp and grad, in ATen ops and without them; None where it has none.

    Inputs keep their names, and calls the lines that they come from. What is left inside a level is an output, where nothing else is.
    Raises what tracing raises. ``inputs`` are only read.
    """
    if not any(nesting_levels(graph_module.graph)):
        return None
    with traceback.preserve_node_meta():
        traced = make_fx(fx.Interpreter(graph_module).run)(*clone_values(list(inputs)))
    for node, old in zip(_placeholders(traced), _placeholders(graph_module), strict=True):
        node.name, node.target, node.type, node.meta = old.name, old.target, old.type, old.meta
    taken = {node.name for graph in (graph_module, traced) for node in graph.graph.nodes}
    for node in traced.graph.nodes:
        if is_call(node):  # a name of a node stands for one value
            node.name = next(
                name
                for name in (f"{node.name}_{number}" for number in itertools.count(1))
                if name not in taken
            )
            taken.add(node.name)
            node.meta = {name: node.meta[name] for name in ("stack_trace",) if name in node.meta}
    if not nodes_in(traced.graph.output_node().args):
        unused = [node for node in traced.graph.nodes if is_call(node) and not node.users]
        traced.graph.output_node().args = (tuple(unused),)
    traced.graph.eliminate_dead_code()
    return rewritten(traced)


def _placeholders(graph_module: fx.GraphModule) -> list[fx.Node]:
    return list(graph_module.graph.find_nodes(op="placeholder"))
