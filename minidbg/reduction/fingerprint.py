"""A digest of a candidate that does not depend on its nodes' names."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from typing import Any

from torch import fx

from minidbg import _torch
from minidbg.graphs.effects import attribute_of


def fingerprint(graph_module: fx.GraphModule, tokens: Sequence[Hashable]) -> str:
    """Equal for graphs that differ in names only and have inputs with the same tokens. 32 hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    for line in _lines(graph_module):
        digest.update(line.encode())
    digest.update(repr(tokens).encode())
    return digest.hexdigest()


def structure(graph_module: fx.GraphModule) -> str:
    """Equal for graphs cut out of the same one that keep the same nodes and outputs. Cheap; 32 hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    nodes = list(graph_module.graph.nodes)
    digest.update(" ".join([node.name for node in nodes]).encode())
    digest.update(repr(nodes[-1].args).encode())
    return digest.hexdigest()


def _lines(graph_module: fx.GraphModule) -> list[str]:
    numbers: dict[fx.Node, str] = {}
    lines = []
    for node in graph_module.graph.nodes:
        numbers[node] = f"%{len(numbers)}"
        args, kwargs = _text(node.args, numbers), _text(node.kwargs, numbers)
        lines.append(f"{node.op} {_target(node)} {args} {kwargs}\n")
    return lines


def _target(node: fx.Node) -> str:
    if node.op in ("placeholder", "output"):
        return ""
    if node.op == "get_attr":
        value = attribute_of(node)
        if isinstance(value, fx.GraphModule):
            return "".join(_lines(value))
        return f"{node.target} {id(value)}"
    if isinstance(node.target, str) or _torch.is_overload(node.target):
        return str(node.target)
    return f"{getattr(node.target, '__name__', '')} {id(node.target)}"


def _text(value: Any, numbers: dict[fx.Node, str]) -> str:
    if isinstance(value, fx.Node):
        return numbers[value]
    if isinstance(value, tuple | list):
        return "(" + ",".join([_text(part, numbers) for part in value]) + ")"
    if isinstance(value, dict):
        return "{" + ",".join([f"{key}:{_text(part, numbers)}" for key, part in value.items()]) + "}"
    if isinstance(value, slice):
        return f"slice{_text((value.start, value.stop, value.step), numbers)}"
    return repr(value)
