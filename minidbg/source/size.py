"""How large a graph is, and a text that is equal for graphs that differ in names only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor, fx, nn

from minidbg import torch_internals
from minidbg.fx.effects import is_call, lookup
from minidbg.source.attributes import is_plain
from minidbg.source.expressions import Expressions
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
    return "\n".join(_lines(gm, ""))


def _lines(gm: fx.GraphModule, indent: str) -> Iterator[str]:
    numbers: dict[fx.Node, str] = {}
    attributes: dict[int, str] = {}
    write = Expressions(numbers.__getitem__)
    for node in gm.graph.nodes:
        numbers[node] = f"%{len(numbers)}"
        arguments = _text(write, node.args)
        keywords = ", ".join(f"{key}={_text(write, value)}" for key, value in sorted(node.kwargs.items()))
        if torch_internals.is_kernel_launch(node):
            keywords = _launch_text(write, node)
        target = ""
        if node.op in ("get_attr", "call_module"):
            value = lookup(gm, str(node.target))
            known = attributes.get(id(value))
            if known is None:
                known = attributes[id(value)] = f"@{len(attributes)}"
                yield from _attribute_lines(value, known, indent)
            target = known
        elif node.op in ("call_function", "call_method"):
            target = _target(node)
        yield f"{indent}{numbers[node]} = {node.op} {target} {arguments} {{{keywords}}}"


def _attribute_lines(value: Any, known: str, indent: str) -> Iterator[str]:
    if isinstance(value, fx.GraphModule):
        yield f"{indent}{known}:"
        yield from _lines(value, indent + "  ")
    elif isinstance(value, Tensor):
        yield f"{indent}{known}: {_tensor_text(value)}"
    elif isinstance(value, nn.Module):
        yield f"{indent}{known}: {type(value).__module__}.{value!r}".replace("\n", " ")
        for name, tensor in value.state_dict().items():
            yield f"{indent}  {name}: {_tensor_text(tensor)}"
    else:
        yield f"{indent}{known}: {_text(Expressions(), value)}"


def _tensor_text(value: Tensor) -> str:
    kind = "parameter" if isinstance(value, nn.Parameter) else "tensor"
    head = f"{kind} {value.dtype} {tuple(value.shape)} {value.requires_grad}"
    if not is_plain(value) or value.is_meta or value.numel() > LARGEST_HASHED:
        return head
    listed = repr(value.detach().tolist())
    return f"{head} {hashlib.sha256(listed.encode()).hexdigest()[:16]}"


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


def _launch_text(write: Expressions, node: fx.Node) -> str:
    try:
        return f"{write.keywords(node)} {write.kernels.texts}"
    except CannotWrite:
        return "<a Triton kernel>"


def _text(write: Expressions, value: Any) -> str:
    try:
        return write.value(value)
    except CannotWrite:
        return f"<{type(value).__qualname__}>"
