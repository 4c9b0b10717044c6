"""Edits of a small graph and of the graphs inside it: the branches of ``cond``, the bodies of loops, checkpoints, submodules.

Which operand goes to which input of a nested graph is told by position: they are the last arguments of the higher-order
op. Where that is wrong the edited graph does not run in eager, so it is never asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from minidbg import _torch
from minidbg.graphs.effects import Mode, attribute_of, mode_of, nested_graphs, op_name
from minidbg.graphs.pieces import drop_unused_attributes, rewritten, with_graph_inlined


def holders(graph_module: fx.GraphModule) -> Iterator[fx.Node]:
    """The calls that run a nested graph, in order: higher-order ops, and submodules that are graph modules."""
    for node in graph_module.graph.nodes:
        if (node.op == "call_function" and any(nested_graphs(node))) or (
            node.op == "call_module" and isinstance(attribute_of(node), fx.GraphModule)
        ):
            yield node


def branches(node: fx.Node) -> list[tuple[str, fx.GraphModule]]:
    """Attribute path and graph of each graph that ``node`` runs, each once."""
    if node.op == "call_module":
        return [(str(node.target), attribute_of(node))]
    found = {}
    for argument in node.all_input_nodes:
        value = attribute_of(argument) if argument.op == "get_attr" else None
        if isinstance(value, fx.GraphModule):
            found[str(argument.target)] = value
    return list(found.items())


def operands(node: fx.Node, branch: fx.GraphModule) -> list[Any] | None:
    """What ``node`` hands to each input of ``branch``; None when it has too few arguments for that."""
    count = sum(inner.op == "placeholder" for inner in branch.graph.nodes)
    given = [value for value in _flat(node.args) if not _is_graph(value)]
    return given[len(given) - count :] if count <= len(given) else None


def inlined(graph_module: fx.GraphModule, node: fx.Node, path: str) -> fx.GraphModule | None:
    """``graph_module`` with the nested graph at ``path`` in the place of ``node``; None when its operands do not fit."""
    branch = dict(branches(node))[path]
    given = operands(node, branch)
    if given is None:
        return None
    return with_graph_inlined(graph_module, node, branch, path, given)


def with_branch(graph_module: fx.GraphModule, path: str, branch: fx.GraphModule) -> fx.GraphModule:
    """``graph_module`` with another nested graph at ``path``."""
    made = rewritten(graph_module)
    owner, _, name = path.rpartition(".")
    setattr(made.get_submodule(owner), name, branch)
    return made


def without_node(branch: fx.GraphModule, node: fx.Node, stand_in: fx.Node) -> fx.GraphModule:
    """``branch`` with ``stand_in`` in the place of ``node``, and without what only ``node`` needed."""
    made = rewritten(branch, stand_ins={node: stand_in})
    made.graph.eliminate_dead_code()
    return _torch.lazy_graph_module(branch, made.graph)


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
        torch.zeros([_torch.hint(size) for size in example.shape], dtype=example.dtype, device=example.device)
        for example in examples
    ]


def without_operand(graph_module: fx.GraphModule, node: fx.Node, place: int) -> fx.GraphModule | None:
    """``graph_module`` without the operand of ``node`` that is input ``place`` of its graphs; None when one uses it."""
    nested = branches(node)
    counts = {sum(inner.op == "placeholder" for inner in branch.graph.nodes) for _, branch in nested}
    given = operands(node, nested[0][1])
    if given is None or len(counts) != 1 or node.kwargs:
        return None
    made = graph_module
    for path, branch in nested:
        smaller = _without_input(branch, place)
        if smaller is None:
            return None
        made = with_branch(made, path, smaller)
    position = len([value for value in _flat(node.args) if not _is_graph(value)]) - len(given) + place
    edited = next(other for other in made.graph.nodes if other.name == node.name)
    edited.args = _without_flat(edited.args, position)
    drop_unused_attributes(made.graph)
    return _torch.lazy_graph_module(made, made.graph)


def _without_input(branch: fx.GraphModule, place: int) -> fx.GraphModule | None:
    gone = [node for node in branch.graph.nodes if node.op == "placeholder"][place]
    if gone.users or isinstance(gone.meta.get("example_value"), torch.SymInt):
        return None
    return rewritten(branch, without={gone})


def _without_flat(args: Any, position: int) -> Any:
    """``args`` without the leaf at ``position``, graphs not counted."""
    seen = -1

    def visit(value: Any) -> Any:
        nonlocal seen
        if isinstance(value, tuple | list):
            return type(value)(part for item in value if (part := visit(item)) is not GONE)
        if not _is_graph(value):
            seen += 1
            return GONE if seen == position else value
        return value

    return visit(tuple(args))


GONE = object()


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for part in value:
            yield from _flat(part)
    else:
        yield value


def _is_graph(value: Any) -> bool:
    return (
        isinstance(value, fx.Node)
        and value.op == "get_attr"
        and isinstance(attribute_of(value), fx.GraphModule)
    )


def shorter_arguments(node: fx.Node) -> Iterator[tuple[Any, Any]]:
    """``node``'s arguments with one left out: the last ones first, then keyword ones. Values of nodes stay."""
    if _torch.is_kernel_launch(node):  # numbers in a table; and a kernel checks nothing that it is given
        return
    for count in range(1, len(node.args)):
        if not any(_holds_node(argument) for argument in node.args[count:]):
            yield node.args[:count], node.kwargs
    for key, value in node.kwargs.items():
        if not _holds_node(value):
            yield node.args, {other: kept for other, kept in node.kwargs.items() if other != key}


def simpler_constants(node: fx.Node) -> Iterator[tuple[Any, Any]]:
    """``node``'s arguments with one number nearer to 0 or 1: the smallest first."""
    if _torch.is_kernel_launch(node):
        return
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
