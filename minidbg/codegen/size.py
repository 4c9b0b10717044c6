"""How large a graph is, and a text that is equal for graphs that differ in names only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, fx, nn

from minidbg import torch_internals
from minidbg.codegen.expressions import Expressions, literal
from minidbg.codegen.names import reference_to
from minidbg.core.errors import CannotWrite
from minidbg.fx.effects import is_call, lookup

HOLDS = ("get_attr", "call_module")
LARGEST_HASHED = 4096
"""Elements of the largest constant whose values count; larger ones count by shape and dtype."""


def call_nodes(gm: fx.GraphModule) -> int:
    """Nodes that compute something, those of nested graphs included."""
    return sum(1 for _ in calls_of(gm, set()))


def targets_of_calls(gm: fx.GraphModule) -> tuple[str, ...]:
    return tuple(map(target_of, calls_of(gm, set())))


def calls_of(gm: fx.GraphModule, seen: set[nn.Module]) -> Iterator[fx.Node]:
    """Nodes that compute something; those of a nested graph come where it is first used."""
    for node in gm.graph.nodes:
        inner = lookup(gm, str(node.target)) if node.op in HOLDS else None
        if isinstance(inner, fx.GraphModule) and inner not in seen:
            seen.add(inner)
            yield from calls_of(inner, seen)
        if is_call(node):
            yield node


def canonical_text(gm: fx.GraphModule) -> str:
    """A text that is the same in every process and every naming of nodes, inputs and attributes."""
    names: dict[fx.Node, str] = {}
    attributes: dict[int, str] = {}
    write, lines = Expressions(names.__getitem__), []
    for node in gm.graph.nodes:
        names[node] = f"%{len(names)}"
        target = target_of(node) if is_call(node) else ""
        if node.op in HOLDS:
            value = lookup(gm, str(node.target))
            if id(value) not in attributes:
                attributes[id(value)] = f"@{len(attributes)}"
                lines.append(f"{attributes[id(value)]}: {text_of_attribute(value)}")
            target = attributes[id(value)]
        is_launch = torch_internals.is_kernel_launch(node)
        kwargs = (write.keywords, node) if is_launch else (write.value, sorted(node.kwargs.items()))
        line = f"{node.op} {target} {text_by(write.value, node.args)} {text_by(*kwargs)}"
        lines.append(f"{names[node]} = {line}")
    return "\n".join([*lines, *write.kernels.texts.values()])


def text_of_attribute(value: Any) -> str:
    if isinstance(value, fx.GraphModule):
        return f"{{{canonical_text(value)}}}"
    if not isinstance(value, Tensor):
        return text_by(literal, value)
    kind = "parameter" if isinstance(value, nn.Parameter) else "tensor"
    is_seen = torch_internals.has_plain_memory(value) and value.numel() <= LARGEST_HASHED
    numbers = value.detach().tolist() if is_seen else ""
    return f"{kind} {value.dtype} {tuple(value.shape)} {value.requires_grad} {numbers}"


def text_by(write: Callable[[Any], str], value: Any) -> str:
    try:
        return write(value)
    except CannotWrite as refusal:
        return f"<{refusal.part}>"


def target_of(node: fx.Node) -> str:
    if node.op != "call_function":
        return f".{node.target}" if node.op == "call_method" else "module"
    try:
        return reference_to(node.target)[0]
    except CannotWrite:
        # a local function has no name that another process knows, but one to compare by
        name = getattr(node.target, "__qualname__", node.target)
        return f"{getattr(node.target, '__module__', '')}.{name}"
