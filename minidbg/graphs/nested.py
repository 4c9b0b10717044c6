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
from minidbg.graphs.effects import Mode, attribute_of, is_graph, mode_of, nested_graphs, nodes_in, op_name
from minidbg.graphs.pieces import drop_unused_attributes, rewritten, with_graph_inlined


def holders(graph_module: fx.GraphModule) -> Iterator[fx.Node]:
    """The calls that run a nested graph, in order: higher-order ops, and submodules that are graph modules."""
    for node in graph_module.graph.nodes:
        is_submodule = node.op == "call_module" and isinstance(attribute_of(node), fx.GraphModule)
        if is_submodule or (node.op == "call_function" and any(nested_graphs(node))):
            yield node


def branches(node: fx.Node) -> list[tuple[str, fx.GraphModule]]:
    """Attribute path and graph of each graph that ``node`` runs, each once."""
    if node.op == "call_module":
        return [(str(node.target), attribute_of(node))]
    found = {str(one.target): attribute_of(one) for one in node.all_input_nodes if is_graph(one)}
    return list(found.items())


def operands(node: fx.Node, branch: fx.GraphModule) -> list[Any] | None:
    """What ``node`` hands to each input of ``branch``; None when it has too few arguments for that."""
    count, given = len(branch.graph.find_nodes(op="placeholder")), _operands(node)
    return given[len(given) - count :] if count <= len(given) else None


def _operands(node: fx.Node) -> list[Any]:
    """The leaves of ``node``'s arguments that are no graphs."""
    return [value for value in _flat(node.args) if not is_graph(value)]


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for part in value:
            yield from _flat(part)
    else:
        yield value


def inlined(graph_module: fx.GraphModule, node: fx.Node, path: str) -> fx.GraphModule | None:
    """``graph_module`` with the nested graph at ``path`` in the place of ``node``; None when its operands do not fit."""
    branch = dict(branches(node))[path]
    given = operands(node, branch)
    return None if given is None else with_graph_inlined(graph_module, node, branch, path, given)


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
    counts = {len(branch.graph.find_nodes(op="placeholder")) for _, branch in nested}
    given = operands(node, nested[0][1])
    if given is None or len(counts) != 1 or node.kwargs:
        return None
    made = graph_module
    for path, branch in nested:
        smaller = _without_input(branch, place)
        if smaller is None:
            return None
        made = with_branch(made, path, smaller)
    position = len(_operands(node)) - len(given) + place
    edited = next(other for other in made.graph.nodes if other.name == node.name)
    edited.args = _without_flat(edited.args, position)
    drop_unused_attributes(made.graph)
    return _torch.lazy_graph_module(made, made.graph)


def _without_input(branch: fx.GraphModule, place: int) -> fx.GraphModule | None:
    gone = branch.graph.find_nodes(op="placeholder")[place]
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
        if not is_graph(value):
            seen += 1
            return GONE if seen == position else value
        return value

    return visit(tuple(args))


GONE = object()


def shorter_arguments(node: fx.Node) -> Iterator[tuple[Any, Any]]:
    """``node``'s arguments with one left out: the last ones first, then keyword ones. Values of nodes stay."""
    if _torch.is_kernel_launch(node):  # numbers in a table; and a kernel checks nothing that it is given
        return
    for count in range(1, len(node.args)):
        if not nodes_in(node.args[count:]):
            yield node.args[:count], node.kwargs
    for key, value in node.kwargs.items():
        if not nodes_in(value):
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
