"""Random numbers out of a graph: the nodes that draw them get recorded values instead, as inputs.

Eager and a backend draw different numbers, so what depends on them cannot be compared. A graph that is fed its numbers
can: a model with dropout gives no false alarm, and a real bug beside the dropout is still found.

The numbers are those that eager drew, or the backend's own: most backends draw the same ones again when they compile the
drawing calls alone (``draws_alone``), since each call's numbers depend on the generator's state and the call's turn only.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx

from minidbg import _torch
from minidbg.devices import devices_of, generators_put_back
from minidbg.graphs import copy_graph_module
from minidbg.graphs.copying import clone_values
from minidbg.graphs.effects import FORM_OF_ENTER, FORM_OF_EXIT, is_call, nested_graphs, op_name
from minidbg.graphs.mutation import written_arguments
from minidbg.graphs.nested import branches
from minidbg.oracle.reruns import random_states

DROPOUTS = frozenset({"dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout"})
"""Ops that multiply their first argument by drawn numbers; here and below without a trailing underscore."""

ATTENTION = "scaled_dot_product_attention"
"""Gets its mask as an argument of the op behind it."""

DROPOUT_MODULES = frozenset({"Dropout", "Dropout1d", "Dropout2d", "Dropout3d"})

SWITCHES = {
    "multi_head_attention_forward": ("dropout_p", 10, 0.0),
    "alpha_dropout": ("p", 1, 0.0),
    "feature_alpha_dropout": ("p", 1, 0.0),
    "rrelu": ("training", 3, False),
}
"""Ops whose drawing is switched off, since they hide what they draw: keyword, position and value of the switch."""

RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
"""The same for ops that take their dropout three places after the list of their weights."""

NAMES = """
bernoulli binomial cauchy exponential fractional_max_pool2d fractional_max_pool3d geometric gumbel_softmax log_normal
multinomial native_dropout normal poisson rand rand_like randint randint_like randn randn_like random randperm
rrelu_with_noise uniform
"""
DRAWING = frozenset(NAMES.split())
"""Other functions and methods that draw (those of torch 2.13)."""

WRAPPERS = frozenset(
    {"wrap", "tag_activation_checkpoint", "invoke_subgraph", "wrap_with_set_grad_enabled", "strict_mode"}
)
"""Higher-order ops that run their one graph once, on their last arguments."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A call that draws, as it can be made by itself."""

    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """A recorded value that becomes an input."""

    value: Any
    call: Call
    """Gives such a value, from other numbers."""
    part: int | None = None
    """Which of the call's results it is."""


NewInput: TypeAlias = Callable[[Drawn], fx.Node]
Edit: TypeAlias = Callable[[fx.GraphModule, fx.Node, NewInput], None]
"""Takes the drawing out of a node; a value that it needs becomes an input by ``new_input(drawn)``."""


@dataclass(frozen=True, slots=True)
class Fed:
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

    def with_values(self, values: Sequence[Any]) -> Fed:
        """The same graph with other recorded values."""
        given = len(self.inputs) - len(self.drawn)
        return replace(self, inputs=(*self.inputs[:given], *values))


def random_nodes(gm: fx.GraphModule) -> list[fx.Node]:
    """The nodes that draw random numbers by what is known of their ops, nested graphs included; nothing is run."""
    found = []
    for node in gm.graph.nodes:
        if is_call(node):
            found += [node] if is_drawing(node, gm) else []
            for nested in nested_graphs(node):
                found += random_nodes(nested)
    return found


def is_drawing(node: fx.Node, gm: fx.GraphModule) -> bool:
    """Whether ``node`` is known to draw; a dropout that is switched off does not."""
    tags = getattr(node.target, "tags", ())
    if isinstance(tags, Collection) and torch.Tag.nondeterministic_seeded in tags:
        return True
    if node.op == "call_module":
        inner = gm.get_submodule(str(node.target)).modules()
        return any(module.training and "ropout" in type(module).__name__ for module in inner)
    name = op_name(node).rstrip("_")
    if name in DROPOUTS or name.endswith("alpha_dropout"):
        on = _argument(node, "training", 2, _argument(node, "train", 2, name in DROPOUTS))
        return bool(on) and bool(_argument(node, "p", 1, 0.5))
    if name == ATTENTION:
        return bool(_argument(node, "dropout_p", 4, 0.0))
    if name in SWITCHES:
        keyword, place, off = SWITCHES[name]
        return bool(_argument(node, keyword, place, off) != off)
    if name in RECURRENT:
        dropout = _dropout_place(node)
        return dropout is not None and bool(node.args[dropout]) and node.args[dropout + 1] is not False
    return name in DRAWING


def feed_recorded(gm: fx.GraphModule, inputs: Sequence[Any]) -> Fed:
    """``gm`` with its draws turned into inputs, which hold what one eager run on clones of ``inputs`` drew.

    A dropout becomes a product with its mask, so that gradients pass; attention takes its mask. Ops that hide what they
    draw (recurrent ones) have it switched off. Everything else becomes the value that it gave, a constant to autograd.
    ``gm``, ``inputs`` and the random state are left as they were. Raises what the graph raises in eager.
    """
    recorder = _Recorder(gm)
    with generators_put_back(map(str, devices_of(inputs))), torch.no_grad():
        recorder.record(clone_values(inputs))
    made, drawn = copy_graph_module(gm), list[Drawn]()
    nodes = {node.name: node for node in made.graph.nodes}
    first_call = next(node for node in made.graph.nodes if node.op != "placeholder")

    def new_input(one: Drawn) -> fx.Node:
        drawn.append(one)
        with made.graph.inserting_before(first_call):
            node = made.graph.placeholder(f"drawn_{len(drawn)}")
        node.__dict__["_dynamo_source"] = None  # AOTAutograd asks each input of a graph of dynamo's for it
        node.meta["example_value"] = one.value
        return node

    needed = {node for node in made.graph.nodes if node.users}
    for name, edit in recorder.edits.items():
        edit(made, nodes[name], new_input)
    for node in reversed(made.graph.nodes):  # what only a draw had used
        if node in needed and not node.users and is_call(node) and not any(written_arguments(made, node)):
            made.graph.erase_node(node)
    made.graph.lint()
    made.recompile()
    values = (one.value for one in drawn)
    fed, left, switched_off = map(tuple, (recorder.edits, recorder.left, recorder.switched_off))
    return Fed(made, (*inputs, *values), fed, left, tuple(drawn), switched_off)


def draws_alone(fed: Fed) -> tuple[fx.GraphModule, tuple[Any, ...]] | None:
    """A graph of just the calls that drew, in their order, and its inputs; it returns what ``fed.drawn`` holds.

    None where the whole graph draws more than those calls do.
    """
    if fed.left or fed.switched_off or any(one.call.op == "call_module" for one in fed.drawn):
        return None
    graph, inputs = fx.Graph(), list[Any]()

    def as_input(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        inputs.append(value)
        return placeholders[len(inputs) - 1]

    calls = list(dict.fromkeys(one.call for one in fed.drawn))
    tensors = [one for call in calls for one in tensors_in(call)]
    placeholders = [graph.placeholder(f"argument_{place}") for place in range(len(tensors))]
    for node, value in zip(placeholders, tensors, strict=True):
        node.meta["example_value"] = value
    nodes = {}
    for call in calls:
        args, kwargs = fx.node.map_aggregate((call.args, call.kwargs), as_input)
        if call.op == "call_method":  # some write to what they are called on
            args = (graph.call_method("clone", args[:1]), *args[1:])
        nodes[call] = graph.create_node(call.op, call.target, args, kwargs)
    results = []
    for one in fed.drawn:
        node = nodes[one.call]
        results.append(node if one.part is None else graph.call_function(operator.getitem, (node, one.part)))
    graph.output(tuple(results))
    return fx.GraphModule({}, graph), tuple(inputs)


def tensors_in(call: Call) -> list[Tensor]:
    """The tensors among the arguments of ``call``."""
    found: list[Tensor] = []
    fx.node.map_aggregate(
        (call.args, call.kwargs), lambda one: found.append(one) if isinstance(one, Tensor) else None
    )
    return found


class _Recorder(fx.Interpreter):
    """Runs a graph and notes, for each node that moves a random generator, the edit that takes the draw out of it."""

    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__(gm)
        self.edits: dict[str, Edit] = {}
        self.left: list[str] = []
        self.switched_off: list[str] = []
        self._open: dict[fx.Node, Any] = {}
        self._attributes: dict[str, Any] = {}

    def record(self, inputs: Sequence[Any]) -> None:
        """Run on ``inputs``, which the graph may write to; blocks that an error leaves open are closed."""
        try:
            self.run(*inputs)
        finally:
            for node, value in reversed(self._open.items()):
                FORM_OF_ENTER[node.target].exit(value)

    def fetch_attr(self, target: str) -> Any:
        """A copy of each attribute: the graph may write to it, and this run must not show."""
        if target not in self._attributes:
            value = super().fetch_attr(target)
            is_own = isinstance(value, Tensor | torch.nn.Module) and not isinstance(value, fx.GraphModule)
            self._attributes[target] = copy.deepcopy(value) if is_own else value
        return self._attributes[target]

    def run_node(self, n: fx.Node) -> Any:
        if not is_call(n):
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        before = random_states()
        result = super().run_node(n)
        if n.target in FORM_OF_ENTER:
            self._open[n] = result
        elif n.target in FORM_OF_EXIT:
            self._open.pop(n.all_input_nodes[0], None)
        if not all(map(torch.equal, before, random_states())):
            edit = self._edit_for(n, args, kwargs, result)
            if edit is None:
                self.left.append(n.name)
            else:
                self.edits[n.name] = edit
        return result

    def _edit_for(self, node: fx.Node, args: Any, kwargs: Any, result: Any) -> Edit | None:
        """The edit for a node that has just drawn numbers, None when there is none."""
        name = op_name(node) if node.op != "call_module" else type(self.fetch_attr(str(node.target))).__name__
        plain = name.rstrip("_")
        if plain in DROPOUTS or name in DROPOUT_MODULES:
            ones = torch.ones_like(args[0])
            kwargs = {key: value for key, value in kwargs.items() if key not in ("inplace", "input")}
            in_place = name.endswith("_") or _argument(node, "inplace", 3, False) is True
            return partial(_multiply, self.again(node, (ones, *args[1:3]), kwargs), in_place)
        if plain == ATTENTION:
            return partial(_give_mask, attention_mask(*args, result=result, **kwargs))
        if plain in SWITCHES or plain in RECURRENT:
            self.switched_off.append(node.name)
        if plain in SWITCHES:
            return partial(_set_argument, *SWITCHES[plain])
        if plain in RECURRENT:
            place = _dropout_place(node)
            return None if place is None else partial(_set_argument, "dropout", place, 0.0)
        if name in WRAPPERS and len(branches(node)) == 1:
            return self._inside(node, args)
        if any(nested_graphs(node)):
            return None
        call = Call(node.op, node.target, *clone_values((args, kwargs)))
        if name.endswith("_") and isinstance(result, Tensor):
            return partial(_overwrite, Drawn(result.clone(), call))
        if isinstance(result, Tensor):
            return partial(_replace, Drawn(result.clone(), call))
        if isinstance(result, tuple) and all(map(_takes_a_part, node.users)):
            parts = enumerate(clone_values(result))
            return partial(_replace_parts, [Drawn(value, call, part) for part, value in parts])
        return None

    def again(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Drawn:
        """What the call of ``node`` gives for other arguments."""
        result = getattr(self, node.op)(node.target, args, kwargs)
        return Drawn(result, Call(node.op, node.target, args, kwargs))

    def _inside(self, node: fx.Node, args: Sequence[Any]) -> Edit | None:
        """The edit that feeds the graph which ``node`` runs: more operands for it, and more inputs of this graph."""
        [(path, branch)] = branches(node)
        first = len(args) - sum(inner.op == "placeholder" for inner in branch.graph.nodes)
        fed = feed_recorded(branch, args[first:])
        self.left += [f"{node.name}.{name}" for name in fed.left]
        self.switched_off += [f"{node.name}.{name}" for name in fed.switched_off]
        return partial(_put_inside, path, fed.graph_module, fed.drawn) if fed.fed else None


def attention_mask(
    query: Tensor, key: Tensor, *others: Any, result: Tensor, dropout_p: float = 0.0, **kwargs: Any
) -> Drawn:
    """A mask for the attention weights of that call, whose result is ``result``."""
    probability = others[2] if len(others) > 2 else dropout_p
    ones = torch.ones((*result.shape[:-1], key.shape[-2]), dtype=result.dtype, device=result.device)
    call = Call("call_function", torch.nn.functional.dropout, (ones, probability), {})
    return Drawn(torch.nn.functional.dropout(ones, probability), call)


def _give_mask(mask: Drawn, gm: fx.GraphModule, node: fx.Node, new_input: NewInput) -> None:
    """Weights without dropout, times the mask, times the values."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    defaults = {"attn_mask": None, "is_causal": False}
    given = [_argument(node, name, place, defaults.get(name)) for place, name in enumerate(names)]
    rest = {name: node.kwargs[name] for name in ("scale", "enable_gqa") if node.kwargs.get(name)}
    call, values = gm.graph.call_function, given[2]
    given[4] = 0.0
    with gm.graph.inserting_before(node):
        pair = call(_torch.attention_with_weights(), tuple(given), rest)
        weights = call(torch.mul, (call(operator.getitem, (pair, 1)), new_input(mask)))
        if "enable_gqa" in rest:
            heads, groups = (call(torch.Tensor.size, (one, -3)) for one in given[:2])
            share = call(operator.floordiv, (heads, groups))
            values = call(torch.repeat_interleave, (values, share, -3))
    _become(node, "call_function", torch.matmul, (weights, values))


def _multiply(mask: Drawn, in_place: bool, gm: fx.GraphModule, node: fx.Node, new_input: NewInput) -> None:
    given = (node.args[0], new_input(mask))
    _become(node, "call_method" if in_place else "call_function", "mul_" if in_place else torch.mul, given)


def _replace(value: Drawn, gm: fx.GraphModule, node: fx.Node, new_input: NewInput) -> None:
    _become(node, "call_method", "clone", (new_input(value),))  # the graph may write to it


def _replace_parts(values: Sequence[Drawn], gm: fx.GraphModule, node: fx.Node, new_input: NewInput) -> None:
    for part in list(node.users):
        _replace(values[part.args[1]], gm, part, new_input)  # type: ignore[index] # getitem of an int
    gm.graph.erase_node(node)


def _overwrite(value: Drawn, gm: fx.GraphModule, node: fx.Node, new_input: NewInput) -> None:
    _become(node, "call_method", "copy_", (node.args[0], new_input(value)))


def _set_argument(
    keyword: str, place: int, value: Any, gm: fx.GraphModule, node: fx.Node, new_input: NewInput
) -> None:
    if place < len(node.args):
        node.update_arg(place, value)
    else:
        node.update_kwarg(keyword, value)


def _put_inside(
    path: str,
    branch: fx.GraphModule,
    values: Sequence[Drawn],
    gm: fx.GraphModule,
    node: fx.Node,
    new_input: NewInput,
) -> None:
    name = f"{path.replace('.', '_')}_fed_{node.name}"  # of its own: other nodes may run the same graph
    setattr(gm, name, branch)
    old = next(value for value in node.args if isinstance(value, fx.Node) and value.target == path)
    with gm.graph.inserting_before(node):
        new = gm.graph.get_attr(name)
    args = [new if value is old else value for value in node.args]
    if op_name(node) == "invoke_subgraph":
        args[1] = f"{args[1]}_{name}"  # what is compiled is kept by this identifier
    node.args = (*args, *map(new_input, values))
    if not old.users:
        gm.graph.erase_node(old)


def _become(node: fx.Node, op: str, target: Any, args: tuple[Any, ...]) -> None:
    """Make ``node`` another call; its name and what is known of its value stay."""
    node.op, node.target, node.args, node.kwargs = op, target, args, {}


def _takes_a_part(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is operator.getitem and isinstance(node.args[1], int)


def _dropout_place(node: fx.Node) -> int | None:
    lists = [place for place, value in enumerate(node.args) if isinstance(value, list | tuple)]
    place = lists[-1] + 3 if lists else len(node.args)
    return place if place + 1 < len(node.args) else None


def _argument(node: fx.Node, keyword: str, place: int, default: Any = None) -> Any:
    """The argument of ``node`` given by that keyword or at that place."""
    return node.kwargs[keyword] if keyword in node.kwargs else (*node.args, *[default] * (place + 1))[place]
