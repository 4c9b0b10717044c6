"""Random numbers out of a graph: the nodes that draw them get recorded values instead, as inputs.

Eager and a backend draw different numbers: what uses them cannot be compared. A graph fed them
can: a model with dropout gives no false alarm, and a real bug beside the dropout is still found.

The numbers are those that eager drew, or the backend's own: most backends draw the same ones again
when they compile the drawing calls alone (``draws_alone``), since each call's numbers depend on the
generator's state and the call's turn only.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx

from minidbg import torch_internals
from minidbg.fx.copying import clone_values, copy_graph_module
from minidbg.fx.effects import is_call, leave_blocks, nested_graphs, op_name, tensors_in
from minidbg.fx.mutation import argument_of, own_attributes, written_arguments
from minidbg.fx.nested import branches
from minidbg.torch_internals.devices import generator_states

DROPOUTS = frozenset({"dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout"})
"""Ops that multiply their first argument by draws; here and below without a trailing underscore."""

ATTENTION = "scaled_dot_product_attention"
"""Gets its mask as an argument of the op behind it, or no dropout, so that it is asked itself."""
ALIGNED = 8
"""Fused kernels of attention take widths that are multiples of it."""

SWITCHES = {
    ATTENTION: ("dropout_p", 4, 0.0),
    "multi_head_attention_forward": ("dropout_p", 10, 0.0),
    "alpha_dropout": ("p", 1, 0.0),
    "feature_alpha_dropout": ("p", 1, 0.0),
    "rrelu": ("training", 3, False),
}
"""Ops whose drawing is switched off, as they hide it: keyword, position, value of the switch."""

POOLS = "fractional_max_pool"
"""Begins the names of ops whose Python function draws, and whose operator does not."""

WRAPPERS = frozenset(
    {"wrap", "tag_activation_checkpoint", "invoke_subgraph", "wrap_with_set_grad_enabled", "strict_mode"}
)
"""Higher-order ops that run their one graph once, on their last arguments."""


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


NewInput: TypeAlias = Callable[[Drawn], fx.Node]
Edit: TypeAlias = Callable[[fx.GraphModule, fx.Node, NewInput], None]
"""Takes the draw out of a node; a value that it needs becomes an input by ``new_input(drawn)``."""


@dataclass(frozen=True, slots=True)
class Derandomized:
    """A graph that draws no numbers, where that could be had, with the inputs that it now takes."""

    graph_module: fx.GraphModule
    inputs: tuple[Any, ...]
    """The inputs given, then the recorded values."""
    fed: tuple[str, ...]
    """Names of the nodes that drew numbers and no longer do."""
    left: tuple[str, ...]
    """Names of the nodes that still draw: in loops, modules and ops that are not known here."""
    drawn: tuple[Drawn, ...] = ()
    """What the added inputs hold, in the order in which it was drawn."""
    switched_off: tuple[str, ...] = ()
    """Names of the nodes among ``fed`` whose drawing is switched off."""
    cut: tuple[str, ...] = ()
    """Names of the nodes among ``fed`` that had gradients, and now give a value that has none."""

    def with_results(self, results: Sequence[Any]) -> Derandomized:
        given = len(self.inputs) - len(self.drawn)
        values = [one.read(result) for one, result in zip(self.drawn, results, strict=True)]
        return replace(self, inputs=(*self.inputs[:given], *values))


def may_draw(gm: fx.GraphModule) -> bool:
    """Whether any op of ``gm`` may draw random numbers, by what torch says; others always may."""
    return any(is_call(node) and _may_draw(node) for node in torch_internals.all_nodes(gm))


def _may_draw(node: fx.Node) -> bool:
    module = str(getattr(node.target, "__module__", ""))
    if node.op == "call_function" and module in ("_operator", "builtins", "math"):
        return False
    if any(nested_graphs(node)):  # which are looked at by themselves
        return False
    name = op_name(node)
    plain = name.strip("_")
    tags = torch_internals.tags_of_operators(name)
    hidden = plain in DROPOUTS | set(SWITCHES) or name.startswith(POOLS)
    if tags is None or hidden:
        return True
    return torch.Tag.nondeterministic_seeded in tags


def feed_recorded(
    gm: fx.GraphModule, inputs: Sequence[Any], *, masks: bool = True, shows: bool = False
) -> Derandomized:
    """``gm`` with its draws as inputs, which hold what an eager run on clones of ``inputs`` drew.

    A dropout becomes a product with its mask, so that gradients pass; attention takes its own, if
    ``masks``. What hides its draws (``SWITCHES``) has them switched off. Everything else becomes
    the value that it gave, a constant to autograd. What is drawn in loops, branches and vmap is
    left; so are ``gm``, ``inputs`` and the random state. ``shows``: what only goes into a draw is
    returned too. Raises what the graph raises in eager.
    """
    recorder = _Recorder(own_attributes(gm), masks)
    with (
        torch_internals.restoring_random_numbers(inputs),
        torch_internals.preserving_thread_state(),
        torch.no_grad(),
    ):
        try:
            recorder.run(*clone_values(inputs))
        finally:
            leave_blocks(recorder.env)
    made, drawn = copy_graph_module(gm), list[Drawn]()
    nodes = {node.name: node for node in made.graph.nodes}
    first_call = next(node for node in made.graph.nodes if node.op != "placeholder")

    def new_input(one: Drawn) -> fx.Node:
        drawn.append(one)
        with made.graph.inserting_before(first_call):
            node = made.graph.placeholder(f"drawn_{len(drawn)}")
        node.__dict__["_dynamo_source"] = None  # AOTAutograd asks each input of dynamo's for it
        node.meta["example_value"] = one.value
        return node

    needed, end = {node for node in made.graph.nodes if node.users}, made.graph.output_node()
    if shows and isinstance(end.args[0], tuple | list):
        end.args = ((*end.args[0], *(nodes[name] for name in dict.fromkeys(recorder.drawn_from))),)
    for name, edit in recorder.edits.items():
        edit(made, nodes[name], new_input)
    for node in reversed(made.graph.nodes):  # what only a draw had used
        is_unused = node in needed and not node.users
        if is_unused and is_call(node) and not any(written_arguments(node)):
            made.graph.erase_node(node)
    made.graph.lint()
    made.recompile()
    values = (one.value for one in drawn)
    left, switched_off, cut = map(tuple, (recorder.left, recorder.switched_off, recorder.cut))
    return Derandomized(
        made, (*inputs, *values), tuple(recorder.edits), left, tuple(drawn), switched_off, cut
    )


def draws_alone(fed: Derandomized) -> tuple[fx.GraphModule, tuple[Any, ...]] | None:
    """The calls that drew, in order, as a graph, and its inputs; returns what ``fed.drawn`` holds.

    None where the whole graph draws more than those calls do.
    """
    calls = [call for call in dict.fromkeys(one.call for one in fed.drawn) if call is not None]
    hidden = any(one.call is None for one in fed.drawn)
    hidden = hidden or any(call.op == "call_module" for call in calls)
    if fed.left or fed.switched_off or hidden:
        return None
    graph, inputs = fx.Graph(), list[Any]()

    def as_input(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        inputs.append(value)
        return placeholders[len(inputs) - 1]

    tensors = list(tensors_in([(call.args, call.kwargs) for call in calls]))
    placeholders = [graph.placeholder(f"argument_{index}") for index in range(len(tensors))]
    for node, value in zip(placeholders, tensors, strict=True):
        node.meta["example_value"] = value
    nodes: dict[DrawingCall | None, fx.Node] = {}
    for call in calls:
        args, kwargs = fx.node.map_aggregate((call.args, call.kwargs), as_input)
        if call.op == "call_method":  # some write to what they are called on
            args = (graph.call_method("clone", args[:1]), *args[1:])
        nodes[call] = graph.create_node(call.op, call.target, args, kwargs)
    results = []
    for one in fed.drawn:
        node = nodes[one.call]
        if one.part is not None:
            node = graph.call_function(operator.getitem, (node, one.part))
        results.append(node)
    graph.output(tuple(results))
    return fx.GraphModule({}, graph), tuple(inputs)


class _Recorder(fx.Interpreter):
    """Runs a graph; notes the edit that takes the draw out of each node that moves a generator."""

    def __init__(self, gm: fx.GraphModule, masks: bool) -> None:
        super().__init__(gm)
        self.masks = masks
        self.edits: dict[str, Edit] = {}
        self.left: list[str] = []
        self.switched_off: list[str] = []
        self.cut: list[str] = []
        self.drawn_from: list[str] = []
        """Tensors that hold which numbers are likely: logits, means."""

    def run_node(self, n: fx.Node) -> Any:
        if not is_call(n):
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        draws = _may_draw(n) or any(map(may_draw, nested_graphs(n)))  # else another thread does
        before = dict(generator_states(())) if draws else {}
        result = super().run_node(n)
        if not all(torch.equal(before.get(name, now), now) for name, now in generator_states(())):
            edit = self._edit_for(n, args, kwargs, result)
            if edit is None:
                self.left.append(n.name)
            else:
                self.edits[n.name] = edit
        return result

    def _edit_for(self, node: fx.Node, args: Any, kwargs: Any, result: Any) -> Edit | None:
        drawn = result if isinstance(result, tuple) else (result,)
        if any(isinstance(one, Tensor) and torch_internals.is_wrapped(one) for one in drawn):
            return None  # of a level of vmap: outside of it there is no such value
        name = op_name(node)
        plain = name.rstrip("_")
        if plain in DROPOUTS:
            ones = torch.ones_like(args[0])
            kwargs = {key: v for key, v in kwargs.items() if key not in ("inplace", "input")}
            in_place = name.endswith("_") or argument_of(node, "inplace", False, 3) is True
            args = (ones, *args[1:3])
            call = DrawingCall(node.op, node.target, args, kwargs)
            mask = Drawn(getattr(self, node.op)(node.target, args, kwargs), call)
            if in_place:
                return partial(combine, "call_method", "mul_", mask)
            return partial(combine, "call_function", torch.mul, mask)
        if plain == ATTENTION and self.masks:
            shown = attention_mask(*args, result=result, **kwargs)
            autocast = torch.is_autocast_enabled(result.device.type)
            return partial(give_mask, shown, result.dtype, autocast)
        if plain in SWITCHES:
            self.switched_off.append(node.name)
            return partial(set_argument, *SWITCHES[plain])
        if name in WRAPPERS and len(branches(node)) == 1:
            return self._inside(node, args)
        if any(nested_graphs(node)):
            return None
        call = DrawingCall(node.op, node.target, *clone_values((args, kwargs)))
        shapes_only = name.endswith(("_", "_like"))  # the first argument
        sources = filter(is_call, node.all_input_nodes[shapes_only:])
        self.drawn_from += [x.name for x in sources if isinstance(self.env.get(x), Tensor)]
        if not name.endswith("_") and self.has_gradients(node, args, kwargs):
            self.cut.append(node.name)
        if name.endswith("_") and isinstance(result, Tensor):
            return partial(combine, "call_method", "copy_", Drawn(result.clone(), call))
        if isinstance(result, Tensor):
            return partial(replace_value, Drawn(result.clone(), call))
        are_parts = (user.target is operator.getitem for user in node.users)
        if isinstance(result, tuple) and all(are_parts):
            parts = enumerate(clone_values(result))
            return partial(replace_parts, [Drawn(value, call, part) for part, value in parts])
        return None

    def has_gradients(self, node: fx.Node, args: Any, kwargs: Any) -> bool:
        """Whether a float argument has a nonzero gradient: those of most draws have none."""
        if torch.is_inference_mode_enabled():
            return False
        leaves: list[Tensor] = []

        def leaf(value: Any) -> Any:
            if not (isinstance(value, Tensor) and value.is_floating_point()):
                return value
            leaves.append(value.detach().clone().requires_grad_())
            return leaves[-1]

        with torch.enable_grad():
            args, kwargs = fx.node.map_aggregate((args, kwargs), leaf)
            result = getattr(self, node.op)(node.target, args, kwargs)
            parts = result if isinstance(result, tuple) else (result,)
            roots = [one for one in parts if isinstance(one, Tensor) and one.requires_grad]
            if not (roots and leaves):
                return False
            cotangents = [torch.randn_like(one) for one in roots]
            found = torch.autograd.grad(roots, leaves, cotangents, allow_unused=True)
        return any(one is not None and bool(one.any()) for one in found)

    def _inside(self, node: fx.Node, args: Sequence[Any]) -> Edit | None:
        """The edit that feeds the graph ``node`` runs: more operands for it, more inputs here."""
        [(path, branch)] = branches(node)
        first = len(args) - len(branch.graph.find_nodes(op="placeholder"))
        fed = feed_recorded(branch, args[first:], masks=self.masks)
        self.left += [f"{node.name}.{name}" for name in fed.left]
        self.switched_off += [f"{node.name}.{name}" for name in fed.switched_off]
        self.cut += [f"{node.name}.{name}" for name in fed.cut]
        index = next(at for at, arg in enumerate(node.args) if getattr(arg, "target", None) == path)
        return partial(put_inside, index, fed.graph_module, fed.drawn) if fed.fed else None


def attention_mask(query: Tensor, key: Tensor, *others: Any, result: Tensor, **named: Any) -> Drawn:
    """What an attention's dropout multiplies its weights by, with a call that shows its own.

    An accelerator's fused kernel draws for itself, by the place of each weight. Zeros as queries
    and keys make all weights equal, and the identity as values hands out each by itself.
    """
    named |= dict(zip(("value", "attn_mask", "dropout_p"), others, strict=False))
    probability, keys = named["dropout_p"], key.shape[-2]
    weights = torch.promote_types(result.dtype, torch.float32)
    ones = torch.ones((*result.shape[:-1], keys), dtype=weights, device=result.device)
    mask = torch.nn.functional.dropout(ones, probability)
    width = -(-keys // ALIGNED) * ALIGNED
    query = torch.zeros((*mask.shape[:-1], width), dtype=result.dtype, device=mask.device)
    key = torch.zeros((*mask.shape[:-2], keys, width), dtype=result.dtype, device=mask.device)
    value = key + torch.eye(keys, width, dtype=result.dtype, device=mask.device)
    if (attn_mask := named.get("attn_mask")) is not None:  # which kernel is taken hangs on it
        blank = torch.ones_like if attn_mask.dtype is torch.bool else torch.zeros_like
        attn_mask = blank(attn_mask)
    attention = torch.nn.functional.scaled_dot_product_attention
    call = DrawingCall("call_function", attention, (query, key, value, attn_mask, probability), {})
    share = 1 - probability
    return Drawn(mask, call, None, lambda shown: (shown[..., :keys] != 0).to(weights) / share)


# ---- edits that take a draw out of a graph; each keeps the nodes' names, and what autograd sees


def give_mask(
    mask: Drawn,
    dtype: torch.dtype,
    autocast: bool,
    gm: fx.GraphModule,
    node: fx.Node,
    new_input: NewInput,
) -> None:
    """Weights without dropout, times the mask, times the values; the result is of ``dtype``.

    Weights have the mask's dtype; ``autocast`` does not reach inside: it has cast the arguments.
    """
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    defaults = {"attn_mask": None, "is_causal": False}
    given = [argument_of(node, name, defaults.get(name), at) for at, name in enumerate(names)]
    rest = {name: node.kwargs[name] for name in ("scale", "enable_gqa") if node.kwargs.get(name)}
    call, method, inside = gm.graph.call_function, gm.graph.call_method, mask.value.dtype
    given[4] = 0.0
    with gm.graph.inserting_before(node):
        for index, value in enumerate(given[:4]):
            if not isinstance(value, fx.Node):
                continue
            if getattr(value.meta.get("example_value"), "dtype", None) is torch.bool:  # what counts
                value = call(torch.where, (value, 0.0, -math.inf))
            given[index] = method("to", (method("to", (value, dtype)), inside))
        values = given[2]
        enter, leave = torch_internals.AUTOCAST_FUNCTIONS
        block = call(enter, (mask.value.device.type, None, False, None)) if autocast else None
        pair = call(torch_internals.ATTENTION_WITH_WEIGHTS, tuple(given), rest)
        weights = call(torch.mul, (call(operator.getitem, (pair, 1)), new_input(mask)))
        if "enable_gqa" in rest:
            heads, groups = (call(torch.Tensor.size, (one, -3)) for one in given[:2])
            share = call(operator.floordiv, (heads, groups))
            values = call(torch.repeat_interleave, (values, share, -3))
        result = call(torch.matmul, (weights, values))
        if block is not None:
            call(leave, (block,))
    become(node, "call_method", "to", (result, dtype))


def combine(
    op: str, target: Any, value: Drawn, gm: fx.GraphModule, node: fx.Node, new_input: NewInput
) -> None:
    become(node, op, target, (node.args[0], new_input(value)))


def replace_value(value: Drawn, gm: fx.GraphModule, node: fx.Node, new_input: NewInput) -> None:
    become(node, "call_method", "clone", (new_input(value),))  # the graph may write to it


def replace_parts(values: Sequence[Drawn], gm: fx.GraphModule, node: fx.Node, new_input: NewInput) -> None:
    for part in list(node.users):
        replace_value(values[part.args[1]], gm, part, new_input)  # type: ignore[index] # getitem
    gm.graph.erase_node(node)


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
    """Let ``node`` run this graph, under a name of its own, as other nodes may run the old one."""
    old: Any = node.args[index]
    name = f"{str(old.target).replace('.', '_')}_fed_{node.name}"
    setattr(gm, name, branch)
    with gm.graph.inserting_before(node):
        node.update_arg(index, gm.graph.get_attr(name))
    if not old.users:
        gm.graph.erase_node(old)
    if op_name(node) == "invoke_subgraph":
        node.update_arg(1, f"{node.args[1]}_{name}")  # what is compiled is kept by this identifier
    node.args = (*node.args, *map(new_input, values))


def become(node: fx.Node, op: str, target: Any, args: tuple[Any, ...]) -> None:
    node.op, node.target, node.args, node.kwargs = op, target, args, {}
