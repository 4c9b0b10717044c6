"""What a node does besides giving a value: changes modes, opens and closes blocks, holds graphs of its own."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from minidbg import _torch


@dataclass(frozen=True, slots=True)
class ContextForm:
    """How one kind of block is written: dynamo traces ``manager``, not the enter and exit functions themselves."""

    enter: Callable[..., Any]
    exit: Callable[..., Any]
    manager: Callable[..., Any]


def context_forms() -> tuple[ContextForm, ...]:
    """The known kinds of blocks."""
    enter_autocast, exit_autocast = _torch.autocast_functions()
    enter_inference, exit_inference = _torch.inference_mode_functions()
    return (
        ContextForm(enter_autocast, exit_autocast, torch.autocast),
        ContextForm(enter_inference, exit_inference, torch.inference_mode),
    )


FORMS = context_forms()
FORM_OF_ENTER: Mapping[Any, ContextForm] = {form.enter: form for form in FORMS}
FORM_OF_EXIT: Mapping[Any, ContextForm] = {form.exit: form for form in FORMS}


def paired(graph: fx.Graph) -> dict[fx.Node, ContextForm]:
    """The enter and exit nodes that nest as blocks do, each with its form; others stay plain calls.

    An enter node that has any other user than its exit is not among them.
    """
    pairs: dict[fx.Node, ContextForm] = {}
    open_nodes: list[fx.Node] = []
    for node in graph.nodes:
        if node.op != "call_function":
            continue
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


CALLS = frozenset({"call_function", "call_method", "call_module"})
"""The kinds of node that do something; the others bring values in and out."""

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


SET_GRAD = _torch.grad_mode_function()
MODES = {
    SET_GRAD: Mode.GRAD,
    **dict.fromkeys(FORM_OF_ENTER, Mode.ENTER),
    **dict.fromkeys(FORM_OF_EXIT, Mode.EXIT),
}


def is_call(node: fx.Node) -> bool:
    """Whether ``node`` is a call: what a reduction removes."""
    return node.op in CALLS


def mode_of(node: fx.Node) -> Mode:
    """What ``node`` does to the modes around the nodes after it."""
    return MODES.get(node.target, Mode.NONE) if node.op == "call_function" else Mode.NONE


def op_name(node: fx.Node) -> str:
    """The last part of the op's name: ``cumsum`` of torch.cumsum, of the method and of aten.cumsum.default."""
    target = node.target
    if _torch.is_overload(target):
        return str(target.overloadpacket.__name__)
    if isinstance(target, str):
        return target.rpartition(".")[2]
    return str(getattr(target, "__name__", type(target).__name__))


def is_loop(node: fx.Node) -> bool:
    """Whether ``node`` is a loop that runs until a graph says no."""
    return op_name(node) == "while_loop" and bool(node.args)


LEAVE_STATE = (
    "_increment_nesting",
    "_decrement_nesting",
    "_saved_tensors_hooks_disable",
    "_saved_tensors_hooks_enable",
    "set_inplace_requires_grad_allowed",
    "_sdpa_kernel",
)
"""Ends of names of functions that change a state of the process for the nodes after them, and no mode of ``MODES``."""


def leaves_state(node: fx.Node) -> bool:
    """Whether what comes after ``node`` can only be run after it, so that no run may begin between them."""
    return node.op == "call_function" and op_name(node).endswith(LEAVE_STATE)


def keeps_state(module: torch.nn.Module) -> bool:
    """Whether calling ``module`` may change buffers of its own; what is not from torch.nn may."""
    return any(
        not type(inner).__module__.startswith("torch.nn.")
        or bool(getattr(inner, "track_running_stats", False) and inner.training)
        for inner in module.modules()
    )


def attribute_of(node: fx.Node) -> Any:
    """What a get_attr node gives; None when its graph has no module, or the module no such attribute."""
    value: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        value = getattr(value, part, None)
    return value


def nested_graphs(node: fx.Node) -> Iterator[fx.GraphModule]:
    """The graphs that are arguments of a higher-order op, in order."""
    for argument in node.all_input_nodes:
        value = attribute_of(argument) if argument.op == "get_attr" else None
        if isinstance(value, fx.GraphModule):
            yield value


def blocks(graph: fx.Graph) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Each enter node with its exit node, in the order of the exits."""
    for node in graph.nodes:
        if mode_of(node) is Mode.EXIT and node.args and isinstance(node.args[0], fx.Node):
            yield node.args[0], node


def nesting_levels(graph: fx.Graph) -> Iterator[tuple[fx.Node, fx.Node]]:
    """First and last node of each outermost functorch level (vmap, grad): values inside exist nowhere else."""
    open_nodes: list[fx.Node] = []
    for node in graph.nodes:
        name = op_name(node) if node.op == "call_function" else ""
        if name.endswith("_increment_nesting"):
            open_nodes.append(node)
        elif name.endswith("_decrement_nesting") and open_nodes:
            first = open_nodes.pop()
            if not open_nodes:
                yield first, node
