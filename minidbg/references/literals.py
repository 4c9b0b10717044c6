"""Values that have a source text: what options and arguments may be made of."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable
from typing import Any

import torch


class NotALiteral(Exception):
    """``value`` has no source text; ``path`` says where it lies inside what was written."""

    def __init__(self, value: object, path: str = "") -> None:
        self.value = value
        self.path = path
        super().__init__(f"{path or 'it'} is a {type(value).__module__}.{type(value).__qualname__}")


def write_literal(value: object, path: str = "") -> str:
    """The expression that gives ``value`` back where ``torch`` is imported.

    Plain Python literals, containers of them, and torch's dtypes, devices, layouts and memory formats.
    Only exact types count: a subclass of ``dict`` or ``int`` would come back as something else.

    Raises NotALiteral with the location (``"['pass'][0]"``) of the first part that has no such text.
    """
    kind = type(value)
    if kind is float:
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"  # type: ignore[arg-type]
    if value is None or value is ... or kind in (bool, int, str, bytes):
        return repr(value)
    if kind is complex and math.isfinite(abs(value)):  # type: ignore[arg-type]
        return repr(value)
    if kind in (torch.dtype, torch.layout, torch.memory_format):
        return str(value)
    if kind is torch.device:
        return f"torch.device({str(value)!r})"
    if kind in _BRACKETS:
        return _write_container(value, path)  # type: ignore[arg-type]
    if kind is dict:
        return _write_dict(value, path)  # type: ignore[arg-type]
    raise NotALiteral(value, path)


_BRACKETS = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
    torch.Size: ("torch.Size([", "])"),
}


def _write_container(values: Iterable[Any], path: str) -> str:
    kind = type(values)
    items = [write_literal(item, f"{path}[{index}]") for index, item in enumerate(values)]
    if kind in (set, frozenset):
        items.sort()  # sets have no order of their own, the text shall have one
        if not items:
            return f"{kind.__name__}()"
    opening, closing = _BRACKETS[kind]
    comma = "," if kind is tuple and len(items) == 1 else ""
    return opening + ", ".join(items) + comma + closing


def _write_dict(values: dict[Any, Any], path: str) -> str:
    items = (
        f"{write_literal(key, f'{path}.keys()')}: {write_literal(item, f'{path}[{key!r}]')}"
        for key, item in values.items()
    )
    return "{" + ", ".join(items) + "}"


def read_literal(text: str) -> Any:
    """The value of an expression that ``write_literal`` wrote. Nothing is executed: other expressions raise ValueError."""
    return _value(ast.parse(text, mode="eval").body)


_CALLS = {
    "float": float,
    "set": set,
    "frozenset": frozenset,
    "torch.device": torch.device,
    "torch.Size": torch.Size,
}
_TORCH_TYPES = (torch.dtype, torch.layout, torch.memory_format)


def _value(node: ast.expr) -> Any:
    match node:
        case ast.List(elts=items):
            return [_value(item) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_value(item) for item in items)
        case ast.Set(elts=items):
            return {_value(item) for item in items}
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return {
                _value(key): _value(item) for key, item in zip(keys, values, strict=True) if key is not None
            }
        case ast.Call(func=function, args=items, keywords=[]) if ast.unparse(function) in _CALLS:
            return _CALLS[ast.unparse(function)](*map(_value, items))
        case ast.Attribute(value=ast.Name(id="torch"), attr=name):
            found = getattr(torch, name, None)
            if isinstance(found, _TORCH_TYPES):
                return found
    return ast.literal_eval(node)
