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
    """A call that draws, as it can be made by itself."""

    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """A recorded value that becomes an input."""

    value: Any
    call: DrawingCall | None
    """Gives such a value, from other numbers; None where several calls do."""
    part: int | None = None
    """Which of the call's results it is."""
    read: Callable[[Any], Any] = lambda result: result
    """The value, from what the call gives."""
    levels: tuple[tuple[int, int], ...] = ()
    """Of a value drawn inside vmap: along which of its dimensions each level goes, and the number of the level, outermost first."""

    def standing_alone(self) -> Drawn:
        """The value without the levels of vmap and grad that it was drawn in; no call makes it outside of them."""
        if not torch_internals.is_wrapped(self.value):
            return self
        value, levels = torch_internals.without_levels(self.value)
        return replace(self, value=value, call=None, levels=levels)


NewInput: TypeAlias = Callable[[Drawn], fx.Node]


Edit: TypeAlias = Callable[[fx.GraphModule, fx.Node, NewInput], None]
"""Takes the drawing out of a node; a value that it needs becomes an input by ``new_input(drawn)``."""


def inputs_of(graph: fx.GraphModule) -> list[fx.Node]:
    return [node for node in graph.graph.nodes if node.op == "placeholder"]


def add_inputs(graph: fx.GraphModule, drawn: Sequence[Drawn]) -> None:
    """Give ``graph`` an input more for each value; nothing uses it."""
    with graph.graph.inserting_before(next(node for node in graph.graph.nodes if node.op != "placeholder")):
        for index, one in enumerate(drawn):
            graph.graph.placeholder(f"unused_{index}").meta["example_value"] = one.value
    graph.recompile()


def by_turn(graph: fx.GraphModule, carried: int, drawn: int) -> None:
    """Change a loop's graph so that the number of the turn is carried too, and the last ``drawn`` inputs hold the values of all turns."""
    nodes = inputs_of(graph)
    with graph.graph.inserting_after(nodes[carried - 1]):
        turn = graph.graph.placeholder("turn")
    turn.meta["example_value"] = torch.zeros((), dtype=torch.int64)
    with graph.graph.inserting_before(next(node for node in graph.graph.nodes if node.op != "placeholder")):
        for every in nodes[len(nodes) - drawn :]:
            place = graph.graph.call_method("reshape", (turn, (1,)))
            picked = graph.graph.call_method("index_select", (every, 0, place))
            value = graph.graph.call_method("squeeze", (picked, 0))
            for user in [user for user in every.users if user is not picked]:
                user.replace_input_with(every, value)
    output = graph.graph.output_node()
    if drawn:
        with graph.graph.inserting_before(output):
            following = graph.graph.call_function(operator.add, (turn, 1))
        results = output.args[0]
        output.args = ((*results[:carried], following),)  # type: ignore[index, misc] # a tuple or list
    graph.recompile()


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


def put_loop(
    graphs: Sequence[fx.GraphModule],
    values: Sequence[Drawn],
    gm: fx.GraphModule,
    node: fx.Node,
    new_input: NewInput,
) -> None:
    put_graphs(graphs, (0, 1), 3, values, gm, node, new_input)
    kind = {"dtype": torch.int64, "device": values[0].value.device}
    with gm.graph.inserting_before(node):
        turn = gm.graph.call_function(torch.zeros, ((),), kind)
    carried: Any = node.args[2]
    node.update_arg(2, (*carried, turn))


def place_inputs_before(graph: fx.GraphModule, further: int, drawn: int) -> None:
    """Move the last ``drawn`` inputs before the ``further`` ones that come before them."""
    nodes = inputs_of(graph)
    first = len(nodes) - drawn - further
    for node in nodes[len(nodes) - drawn :] if further else ():
        nodes[first].prepend(node)
    graph.recompile()


def put_graphs(
    graphs: Sequence[fx.GraphModule],
    indices: Sequence[int],
    operands: int,
    values: Sequence[Drawn],
    gm: fx.GraphModule,
    node: fx.Node,
    new_input: NewInput,
) -> None:
    """Let ``node`` run these graphs, and give it ``values`` after the operands, a list or tuple among the arguments."""
    for graph, index in zip(graphs, indices, strict=True):
        put_graph(graph, index, gm, node)
    given: Any = node.args[operands]
    node.update_arg(operands, type(given)((*given, *map(new_input, values))))


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
    """Make ``node`` another call; its name and what is known of its value stay."""
    node.op, node.target, node.args, node.kwargs = op, target, args, {}


def putting_under_a_level(graph: fx.Graph) -> Any:
    """The function by which ``graph`` puts its own values under a level of vmap."""
    return next(node.target for node in graph.nodes if op_name(node) == "_add_batch_dim")


def takes_a_part(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is operator.getitem and isinstance(node.args[1], int)


def dropout_index(node: fx.Node) -> int | None:
    lists = [index for index, value in enumerate(node.args) if isinstance(value, list | tuple)]
    index = lists[-1] + 3 if lists else len(node.args)
    return index if index + 1 < len(node.args) else None


def argument_of(node: fx.Node, keyword: str, index: int, default: Any = None) -> Any:
    """The argument of ``node`` given by that keyword or at that index."""
    return node.kwargs[keyword] if keyword in node.kwargs else (*node.args, *[default] * (index + 1))[index]
