"""The edits that take a random draw out of a graph: each puts an input where a call drew, or an operand through which one arrives.

``randomness.py`` chooses them. Each keeps the names of the nodes, and what autograd sees.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import fx

from minidbg import torch_internals
from minidbg.fx.effects import op_name


@dataclass(frozen=True, slots=True, eq=False)
class DrawingCall:
    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    value: Any
    call: DrawingCall | None
    """Gives such a value, from other numbers; None where several calls do."""
    part: int | None = None
    """Which of the call's results it is."""
    read: Callable[[Any], Any] = lambda result: result
    """The value, from what the call gives."""

    def as_read(self, read: Callable[[Any], Any]) -> Drawn:
        return replace(self, value=read(self.value), read=read)


NewInput: TypeAlias = Callable[[Drawn], fx.Node]


Edit: TypeAlias = Callable[[fx.GraphModule, fx.Node, NewInput], None]
"""Takes the drawing out of a node; a value that it needs becomes an input by ``new_input(drawn)``."""


def inputs_of(graph: fx.GraphModule) -> list[fx.Node]:
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


def give_mask(
    mask: Drawn,
    dtype: torch.dtype,
    autocast: bool,
    gm: fx.GraphModule,
    node: fx.Node,
    new_input: NewInput,
) -> None:
    """Weights without dropout, times the mask, times the values; the result is of ``dtype``.

    The weights have the dtype of the mask, and ``autocast`` does not reach inside: it has cast the arguments.
    """
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    defaults = {"attn_mask": None, "is_causal": False}
    given = [argument_of(node, name, index, defaults.get(name)) for index, name in enumerate(names)]
    rest = {name: node.kwargs[name] for name in ("scale", "enable_gqa") if node.kwargs.get(name)}
    call, method, inside = gm.graph.call_function, gm.graph.call_method, mask.value.dtype
    given[4] = 0.0
    with gm.graph.inserting_before(node):
        for index, value in enumerate(given[:4]):
            if not isinstance(value, fx.Node):
                continue
            if getattr(value.meta.get("example_value"), "dtype", None) is torch.bool:  # those that count
                value = call(torch.where, (value, 0.0, -math.inf))
            given[index] = method("to", (method("to", (value, dtype)), inside))
        values = given[2]
        enter, leave = torch_internals.autocast_functions()
        block = call(enter, (mask.value.device.type, None, False, None)) if autocast else None
        pair = call(torch_internals.attention_with_weights(), tuple(given), rest)
        weights = call(torch.mul, (call(operator.getitem, (pair, 1)), new_input(mask)))
        if "enable_gqa" in rest:
            heads, groups = (call(torch.Tensor.size, (one, -3)) for one in given[:2])
            share = call(operator.floordiv, (heads, groups))
            values = call(torch.repeat_interleave, (values, share, -3))
        result = call(torch.matmul, (weights, values))
        if block is not None:
            call(leave, (block,))
    become(node, "call_method", "to", (result, dtype))


def multiply_by_mask(
    mask: Drawn, in_place: bool, gm: fx.GraphModule, node: fx.Node, new_input: NewInput
) -> None:
    given = (node.args[0], new_input(mask))
    become(node, "call_method" if in_place else "call_function", "mul_" if in_place else torch.mul, given)


def add_noise(
    noise: Drawn, tau: Any, dim: Any, gm: fx.GraphModule, node: fx.Node, new_input: NewInput
) -> None:
    """The softmax that ``gumbel_softmax`` is, of what it is given and the noise."""
    with gm.graph.inserting_before(node):
        noisy = gm.graph.call_function(torch.add, (argument_of(node, "logits", 0), new_input(noise)))
        scaled = gm.graph.call_function(torch.div, (noisy, tau))
    become(node, "call_function", torch.softmax, (scaled, dim))


def replace_value(value: Drawn, gm: fx.GraphModule, node: fx.Node, new_input: NewInput) -> None:
    become(node, "call_method", "clone", (new_input(value),))  # the graph may write to it


def replace_parts(values: Sequence[Drawn], gm: fx.GraphModule, node: fx.Node, new_input: NewInput) -> None:
    for part in list(node.users):
        replace_value(values[part.args[1]], gm, part, new_input)  # type: ignore[index] # getitem of an int
    gm.graph.erase_node(node)


def overwrite(value: Drawn, gm: fx.GraphModule, node: fx.Node, new_input: NewInput) -> None:
    become(node, "call_method", "copy_", (node.args[0], new_input(value)))


def set_argument(
    keyword: str, index: int, value: Any, gm: fx.GraphModule, node: fx.Node, new_input: NewInput
) -> None:
    if index < len(node.args):
        node.update_arg(index, value)
    else:
        node.update_kwarg(keyword, value)


def put_inside(
    index: int,
    branch: fx.GraphModule,
    values: Sequence[Drawn],
    gm: fx.GraphModule,
    node: fx.Node,
    new_input: NewInput,
) -> None:
    name = put_graph(branch, index, gm, node)
    if op_name(node) == "invoke_subgraph":
        node.update_arg(1, f"{node.args[1]}_{name}")  # what is compiled is kept by this identifier
    node.args = (*node.args, *map(new_input, values))


def put_graph(graph: fx.GraphModule, index: int, gm: fx.GraphModule, node: fx.Node) -> str:
    """Let ``node`` run this graph, under a name of its own, since other nodes may run the old one; gives the name."""
    old: Any = node.args[index]
    name = f"{str(old.target).replace('.', '_')}_fed_{node.name}"
    setattr(gm, name, graph)
    with gm.graph.inserting_before(node):
        node.update_arg(index, gm.graph.get_attr(name))
    if not old.users:
        gm.graph.erase_node(old)
    return name


def become(node: fx.Node, op: str, target: Any, args: tuple[Any, ...]) -> None:
    node.op, node.target, node.args, node.kwargs = op, target, args, {}


def takes_a_part(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is operator.getitem and isinstance(node.args[1], int)


def dropout_index(node: fx.Node) -> int | None:
    lists = [index for index, value in enumerate(node.args) if isinstance(value, list | tuple)]
    index = lists[-1] + 3 if lists else len(node.args)
    return index if index + 1 < len(node.args) else None


def argument_of(node: fx.Node, keyword: str, index: int, default: Any = None) -> Any:
    return node.kwargs[keyword] if keyword in node.kwargs else (*node.args, *[default] * (index + 1))[index]
