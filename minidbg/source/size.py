"""How large a graph is, and a text that is equal for graphs that differ in names only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn

from minidbg import torch_internals
from minidbg.fx.effects import is_call, lookup
from minidbg.source.expressions import Expressions, literal
from minidbg.source.names import reference_to
from minidbg.words.errors import CannotWrite

LARGEST_HASHED = 4096
"""Elements of the largest constant whose values count; larger ones count by shape and dtype."""


def call_nodes(gm: fx.GraphModule) -> int:
    """Nodes that compute something, those of nested graphs included."""
    return sum(isinstance(call, fx.Node) for call in _calls(gm, set()))


def call_targets(gm: fx.GraphModule) -> tuple[str, ...]:
    """What each computing node calls, in order; the calls of a nested graph, in braces, where it is first used.

    Two graphs with equal targets are the same program for a backend as far as names of operators tell.
    """
    return tuple(call if isinstance(call, str) else _target(call) for call in _calls(gm, set()))


def _calls(gm: fx.GraphModule, seen: set[int]) -> Iterator[fx.Node | str]:
    for node in gm.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            value = lookup(gm, str(node.target))
            if isinstance(value, fx.GraphModule) and id(value) not in seen:
                seen.add(id(value))
                yield "{"
                yield from _calls(value, seen)
                yield "}"
        if is_call(node):
            yield node


def canonical_text(gm: fx.GraphModule) -> str:
    """A text that is the same in every process and for every naming of nodes, inputs and attributes."""
    names: dict[fx.Node, str] = {}
    attributes: dict[int, str] = {}
    lines = []
    for node in gm.graph.nodes:
        names[node] = f"%{len(names)}"
        target = ""
        if node.op in ("get_attr", "call_module"):
            value = lookup(gm, str(node.target))
            if id(value) not in attributes:
                attributes[id(value)] = f"@{len(attributes)}"
                lines.append(f"{attributes[id(value)]}: {_held(value)}")
            target = attributes[id(value)]
        elif node.op in ("call_function", "call_method"):
            target = _target(node)
        lines.append(f"{names[node]} = {node.op} {target} {_given(node, Expressions(names.__getitem__))}")
    return "\n".join(lines)


def _held(value: Any) -> str:
    if isinstance(value, fx.GraphModule):
        return f"{{{canonical_text(value)}}}"
    if isinstance(value, nn.Module):
        held = (f"{name}: {_held(tensor)}" for name, tensor in value.state_dict().items())
        return "\n".join([f"{type(value).__module__}.{value!r}", *held])
    if not isinstance(value, Tensor):
        return _text(literal, value)
    kind = "parameter" if isinstance(value, nn.Parameter) else "tensor"
    head = f"{kind} {value.dtype} {tuple(value.shape)} {value.requires_grad}"
    if not _is_plain(value) or value.is_meta or value.numel() > LARGEST_HASHED:
        return head
    return f"{head} {value.detach().tolist()}"


def _is_plain(value: Tensor) -> bool:
    is_known = type(value) in (Tensor, nn.Parameter, nn.Buffer)
    if not is_known or value.layout is not torch.strided or value.is_quantized or value.is_nested:
        return False
    return not (
        torch_internals.is_wrapped(value)
        or torch_internals.is_zero_tensor(value)
        or torch_internals.is_freed(value)
    )


def _given(node: fx.Node, write: Expressions) -> str:
    if torch_internals.is_kernel_launch(node):
        return f"{_text(write.keywords, node)} {write.kernels.texts}"
    keywords = [f"{name}={_text(write.value, value)}" for name, value in sorted(node.kwargs.items())]
    return ", ".join([*(_text(write.value, one) for one in node.args), *keywords])


def _text(write: Callable[[Any], str], value: Any) -> str:
    try:
        return write(value)
    except CannotWrite as refusal:
        return f"<{refusal.part}>"


def _target(node: fx.Node) -> str:
    if node.op == "call_module":
        return "module"
    if node.op == "call_method":
        return f".{node.target}"
    try:
        return reference_to(node.target).text
    except CannotWrite:
        # a local function has no name that another process knows, but one to compare by
        return f"{getattr(node.target, '__module__', '')}.{getattr(node.target, '__qualname__', node.target)}"
