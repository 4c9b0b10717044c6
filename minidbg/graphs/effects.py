"""What a node does besides giving a value: writes to tensors, changes modes, opens and closes blocks."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import fx

from minidbg import _torch
from minidbg.graphs.contexts import FORM_OF_ENTER, FORM_OF_EXIT

CALLS = frozenset({"call_function", "call_method", "call_module"})
"""The kinds of node that do something; the others bring values in and out."""

STATISTICS = frozenset(
    {"batch_norm", "instance_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"}
)
"""Ops that write running statistics without saying so, in a schema or by a version counter (seen in 2.13)."""

WRITING_OPERATORS = frozenset({"setitem", "delitem"})
PURE_MODULES = (
    "torch",
    "torch.nn.functional",
    "torch._C._nn",
    "torch.functional",
    "torch.linalg",
    "torch.fft",
)
PURE_MODULES_OF_MODULES = ("torch.nn.modules",)


class Mode(enum.Enum):
    """How a node takes part in changing a mode of the nodes after it."""

    NONE = enum.auto()
    ENTER = enum.auto()
    EXIT = enum.auto()
    GRAD = enum.auto()
    """Sets grad mode until the next one does."""


def is_call(node: fx.Node) -> bool:
    """Whether ``node`` is a call: what a reduction removes."""
    return node.op in CALLS


def mode_of(node: fx.Node) -> Mode:
    """What ``node`` does to the modes around the nodes after it."""
    if node.op != "call_function":
        return Mode.NONE
    if node.target is _torch.grad_mode_function():
        return Mode.GRAD
    if node.target in FORM_OF_ENTER:
        return Mode.ENTER
    return Mode.EXIT if node.target in FORM_OF_EXIT else Mode.NONE


def may_write(node: fx.Node) -> bool:
    """Whether ``node`` may write to a tensor that it did not make. Conservative: what is unknown may."""
    if node.op == "call_function":
        return mode_of(node) is Mode.NONE and _function_may_write(node)
    if node.op == "call_method":
        return writes_by_name(str(node.target)) or _asks_for_inplace(node)
    if node.op == "call_module":
        return _module_may_write(node)
    return False


def writes_by_name(name: str) -> bool:
    """Whether torch's naming says that the receiver is written: ``add_``, ``__iadd__``, ``__setitem__``."""
    if name.startswith("__") and name.endswith("__"):
        return name[2:-2] in WRITING_OPERATORS or _is_augmented(name[2:-2])
    return name.endswith("_")


def writes_statistics(node: fx.Node) -> bool:
    """Whether ``node`` writes tensors without telling their version counters."""
    return op_name(node) in STATISTICS


def op_name(node: fx.Node) -> str:
    """The last part of the op's name: ``cumsum`` of torch.cumsum, of the method and of aten.cumsum.default."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target.overloadpacket.__name__)
    if isinstance(target, str):
        return target.rpartition(".")[2]
    return str(getattr(target, "__name__", type(target).__name__))


def _function_may_write(node: fx.Node) -> bool:
    target: Any = node.target
    name = op_name(node)
    if "out" in node.kwargs or name in STATISTICS:
        return True
    if isinstance(target, torch._ops.OpOverload):
        return bool(target._schema.is_mutable)
    if isinstance(target, torch._ops.HigherOrderOperator):
        return _branches_may_write(node)
    module = getattr(target, "__module__", None) or ""
    if module in ("_operator", "operator"):
        return name in WRITING_OPERATORS or _is_augmented(name)
    if module in ("builtins", "math"):
        return False
    if module in PURE_MODULES or _is_tensor_method(target):
        return writes_by_name(name) or _asks_for_inplace(node)
    return True


def _branches_may_write(node: fx.Node) -> bool:
    """Whether a nested graph of a higher-order op writes; one without nested graphs is not known."""
    branches = list(nested_graphs(node))
    return not branches or any(may_write(inner) for branch in branches for inner in branch.graph.nodes)


def nested_graphs(node: fx.Node) -> Iterator[fx.GraphModule]:
    """The graphs that are arguments of a higher-order op, in order."""
    for argument in node.all_input_nodes:
        value = attribute_of(argument) if argument.op == "get_attr" else None
        if isinstance(value, fx.GraphModule):
            yield value


def attribute_of(node: fx.Node) -> Any:
    """What a get_attr node gives; None when its graph has no module or the module no such attribute."""
    value: Any = node.graph.owning_module
    for part in str(node.target).split("."):
        value = getattr(value, part, None)
    return value


def _is_augmented(name: str) -> bool:
    """Whether ``name`` is an augmented assignment's: ``iadd`` is, ``index`` and ``invert`` are not."""
    return name.startswith("i") and name[1:] in AUGMENTED


AUGMENTED = frozenset(
    {
        "add",
        "sub",
        "mul",
        "matmul",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "lshift",
        "rshift",
        "and",
        "xor",
        "or",
        "concat",
    }
)


def _is_tensor_method(target: Any) -> bool:
    return getattr(target, "__objclass__", None) in (torch.Tensor, torch.Tensor.__base__)


def _asks_for_inplace(node: fx.Node) -> bool:
    """``F.relu(x, True)``, ``F.embedding(ids, w, max_norm=1.0)``: an argument makes a pure function write."""
    if node.kwargs.get("inplace") or node.kwargs.get("max_norm") is not None:
        return True
    if node.op != "call_function" or len(node.args) < 2:
        return False
    names = _parameter_names(node.target)
    given = dict(zip(names, node.args, strict=False))
    return bool(given.get("inplace")) or given.get("max_norm") is not None


@cache
def _parameter_names(target: Callable[..., Any]) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(target).parameters)
    except (TypeError, ValueError):
        return ()


def _module_may_write(node: fx.Node) -> bool:
    module = node.graph.owning_module.get_submodule(str(node.target)) if node.graph.owning_module else None
    if module is None:
        return True
    return any(_layer_may_write(layer) for layer in module.modules())


def _layer_may_write(layer: torch.nn.Module) -> bool:
    if not type(layer).__module__.startswith(PURE_MODULES_OF_MODULES):
        return True
    keeps_statistics = getattr(layer, "track_running_stats", False) and layer.training
    return (
        bool(getattr(layer, "inplace", False))
        or bool(keeps_statistics)
        or getattr(layer, "max_norm", None) is not None
    )


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
