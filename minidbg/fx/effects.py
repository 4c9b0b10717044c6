"""Side effects of a node: modes, blocks, graphs of its own. And the shape, dtype and kind of a
value, without the value."""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from minidbg import torch_internals
from minidbg.core.errors import CannotWrite


@dataclass(frozen=True, slots=True)
class ContextForm:
    """How one kind of block is written: dynamo traces ``manager``, not ``enter`` and ``exit``."""

    enter: Callable[..., Any]
    exit: Callable[..., Any]
    manager: Callable[..., Any]


FORMS = (
    ContextForm(*torch_internals.AUTOCAST_FUNCTIONS, torch.autocast),
    ContextForm(*torch_internals.INFERENCE_MODE_FUNCTIONS, torch.inference_mode),
)
"""The known kinds of blocks."""
FORM_OF_ENTER: Mapping[Any, ContextForm] = {form.enter: form for form in FORMS}
FORM_OF_EXIT: Mapping[Any, ContextForm] = {form.exit: form for form in FORMS}


def paired(graph: fx.Graph) -> dict[fx.Node, ContextForm]:
    """Enter and exit nodes that nest as blocks do, each with its form; others stay plain calls."""
    pairs: dict[fx.Node, ContextForm] = {}
    open_nodes: list[fx.Node] = []
    for node in graph.nodes:
        if node.target in FORM_OF_ENTER and not node.kwargs:
            open_nodes.append(node)
        elif node.target in FORM_OF_EXIT and node.args and node.args[0] in open_nodes:
            enter = node.args[0]
            nested = open_nodes[-1] is enter and not node.users and set(enter.users) == {node}
            form = FORM_OF_EXIT[node.target]
            if nested and FORM_OF_ENTER[enter.target] is form and len(node.args) == 1:
                pairs[enter] = pairs[node] = form
            open_nodes.remove(enter)
    return pairs


STATISTICS = frozenset(
    {"batch_norm", "instance_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"}
)
"""Ops that write running statistics without moving a version counter (seen in 2.13)."""


class Mode(enum.Enum):
    """How a node takes part in changing a mode of the nodes after it."""

    NONE = enum.auto()
    ENTER = enum.auto()
    EXIT = enum.auto()
    GRAD = enum.auto()
    """Sets grad mode until the next one does."""


MODES = {
    torch_internals.SET_GRAD: Mode.GRAD,
    **dict.fromkeys(FORM_OF_ENTER, Mode.ENTER),
    **dict.fromkeys(FORM_OF_EXIT, Mode.EXIT),
}


def is_call(node: fx.Node) -> bool:
    """Whether ``node`` is a call: what a reduction removes; others bring values in and out."""
    return node.op.startswith("call")


def mode_of(node: fx.Node) -> Mode:
    return MODES.get(node.target, Mode.NONE) if node.op == "call_function" else Mode.NONE


def op_name(node: fx.Node) -> str:
    """Last part of the op's name: ``cumsum`` of torch.cumsum, the method, aten.cumsum.default."""
    target: Any = node.target
    if isinstance(target, torch_internals.OpOverload):
        return str(target.overloadpacket.__name__)
    if isinstance(target, str):
        return target.rpartition(".")[2]
    return str(getattr(target, "__name__", type(target).__name__))


LEAVE_STATE = (
    "_increment_nesting",
    "_decrement_nesting",
    "_saved_tensors_hooks_disable",
    "_saved_tensors_hooks_enable",
    "set_inplace_requires_grad_allowed",
    "_sdpa_kernel",
    "_dual_level",
    "_set_fwd_grad_enabled",
)
"""Name ends of functions that change a process state for later nodes, and no mode of ``MODES``."""


def walk(start: Any, path: str) -> Any:
    """``start.path``, or None when a part is missing."""
    try:
        return operator.attrgetter(path)(start)
    except (AttributeError, RuntimeError):
        return None


def lookup(module: nn.Module, target: str) -> Any:
    """The object at a dotted path. Raises CannotWrite naming the path when there is none."""
    try:
        return operator.attrgetter(target)(module)
    except AttributeError:
        what = f"the attribute {target!r}"
        raise CannotWrite(what, "the graph module has no such attribute") from None


def graph_attribute(node: fx.Node) -> Any:
    """What a get_attr node gives; None when its graph has no module, or that no such attribute."""
    return walk(node.graph.owning_module, str(node.target))


def is_graph(value: Any) -> bool:
    """Whether ``value`` is a get_attr node that gives a graph."""
    is_attribute = isinstance(value, fx.Node) and value.op == "get_attr"
    return is_attribute and isinstance(graph_attribute(value), fx.GraphModule)


def nested_graphs(node: fx.Node) -> Iterator[fx.GraphModule]:
    """The graphs that are arguments of a higher-order op, in order."""
    for argument in node.all_input_nodes:
        if is_graph(argument):
            yield graph_attribute(argument)


def leave_blocks(env: Mapping[fx.Node, Any]) -> None:
    """Leave the blocks that are open after a run, innermost first: those whose value is still there
    in ``env``, in the order of the run."""
    for node in reversed(list(env)):
        if (form := FORM_OF_ENTER.get(node.target)) is not None:
            form.exit(env[node])


LEVELS = (("_increment_nesting", "_decrement_nesting"), ("_enter_dual_level", "_exit_dual_level"))
"""Ends of names of the functions that enter a level of functorch or of forward-mode
differentiation, and of those that leave it."""


def nesting_levels(graph: fx.Graph) -> tuple[list[tuple[fx.Node, fx.Node]], frozenset[str]]:
    """First and last node of each outermost level (vmap, grad, jvp): inner values exist only there.

    And the names of functions that enter or leave one where the other is missing, or does not nest.
    """
    outermost: list[tuple[fx.Node, fx.Node]] = []
    unpaired: list[str] = []
    open_nodes: list[fx.Node] = []
    for node in graph.nodes:
        name = op_name(node) if node.op == "call_function" else ""
        for enter, leave in LEVELS:
            if name.endswith(enter):
                open_nodes.append(node)
            elif name.endswith(leave):
                if not open_nodes or op_name(open_nodes[-1]) != name.removesuffix(leave) + enter:
                    unpaired.append(name)
                    continue
                first = open_nodes.pop()
                if not open_nodes:
                    outermost.append((first, node))
    return outermost, frozenset((*unpaired, *map(op_name, open_nodes)))


class FactType(enum.Enum):
    """What can be done with a value when the node that made it is gone."""

    TENSOR = enum.auto()
    """It becomes an input."""
    NUMBER = enum.auto()
    """An int, float or bool: it becomes an input where it is symbolic, else a constant."""
    PLAIN = enum.auto()
    """None, a dtype, a size...: it becomes a constant."""
    TUPLE = enum.auto()
    """A tuple or list of the others: each part for itself."""
    OPAQUE = enum.auto()
    """Nothing: a context object, a generator, a tensor inside a functorch level."""


PLAIN_TYPES = (
    *(str, type(None), slice, range, type(...)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


@dataclass(frozen=True, slots=True)
class Fact:
    """One value: ``like`` is equal for interchangeable values, ``traits`` for similar ones."""

    type: FactType
    like: Hashable = None
    """Of a tensor: shape, dtype, device."""
    traits: Hashable = None
    """Of a tensor: what makes an op differ: dtype, rank, order of strides, gradients, odd sizes."""
    plain: Any = None
    """The value itself, of a number or a constant."""
    parts: tuple[Fact, ...] = ()


def fact_of(value: Any) -> Fact:
    if isinstance(value, Tensor):
        return _tensor_fact(value)
    if isinstance(value, int | float | complex | torch.SymInt | torch.SymFloat | torch.SymBool):
        return Fact(FactType.NUMBER, type(value).__name__, type(value).__name__, value)
    if isinstance(value, PLAIN_TYPES):
        return Fact(FactType.PLAIN, traits=repr(value), plain=value)
    if isinstance(value, tuple | list):
        parts = tuple(map(fact_of, value))
        return Fact(
            FactType.TUPLE,
            tuple(part.like for part in parts),
            tuple(part.traits for part in parts),
            value if all(part.type is FactType.PLAIN for part in parts) else None,
            parts,
        )
    return Fact(FactType.OPAQUE, traits=type(value).__name__)


def _tensor_fact(value: Tensor) -> Fact:
    if torch_internals.is_wrapped(value):
        return Fact(FactType.OPAQUE, traits="functorch level")
    shape = tuple(map(torch_internals.hint, value.shape))
    if value.layout is not torch.strided or value.is_nested:
        like = (shape, value.dtype, value.device, value.layout)
        return Fact(FactType.TENSOR, like, (value.dtype, value.layout))
    traits = (
        value.dtype,
        value.device.type,
        len(shape),
        _order_of(shape, tuple(map(torch_internals.hint, value.stride()))),
        value.requires_grad,
        tuple(size if size < 2 else 2 for size in shape),
    )
    return Fact(FactType.TENSOR, (shape, value.dtype, value.device), traits)


def _order_of(shape: tuple[Any, ...], stride: tuple[Any, ...]) -> Hashable:
    """How the dimensions lie in memory: equal for any two contiguous tensors of a rank."""
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and step != expected:
            break
        expected *= size
    else:
        return "contiguous"
    order = sorted(range(len(stride)), key=lambda dim: -stride[dim])
    return tuple(order), tuple(step == 0 for step in stride)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in ``value``, tuples, lists and dicts opened."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(part)


def nodes_in(value: Any) -> list[fx.Node]:
    """The nodes in an argument, tuples, lists, dicts and slices opened."""
    found: list[fx.Node] = []
    fx.map_arg(value, found.append)
    return found


def class_of_call(node: fx.Node, facts: Mapping[fx.Node, Fact]) -> Hashable:
    """What calls of a kind have in common: op, dtypes, ranks, layouts and constant arguments."""
    return op_name(node), node.op, str(node.target), _class_of((node.args, node.kwargs), facts)


def _class_of(value: Any, facts: Mapping[fx.Node, Fact]) -> Hashable:
    if isinstance(value, fx.Node):
        fact = facts.get(value)
        return fact.traits if fact else value.op
    if isinstance(value, tuple | list):
        if len(value) > 1 and all(isinstance(part, int) for part in value):
            return "ints", len(value)
        return tuple(_class_of(part, facts) for part in value)
    if isinstance(value, dict):
        return tuple((key, _class_of(part, facts)) for key, part in sorted(value.items()))
    return repr(value)


def is_handed_back(compiled_fn: Any, given: Any, before: Callable[[], list[str]]) -> bool:
    """Whether a backend gave the graph back with the texts of ``before()``, for eager to run."""
    return getattr(compiled_fn, "__self__", compiled_fn) is given and graph_texts(given) == before()


def graph_texts(graph_module: Any) -> list[str]:
    graphs = (getattr(module, "graph", None) for module in graph_module.modules())
    return [str(graph) for graph in graphs if isinstance(graph, fx.Graph)]
