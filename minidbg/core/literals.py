"""Values that have a source text: Python literals, torch dtypes, devices, layouts, memory formats.

Options of a backend and of torch's configuration travel so, since TOML has no None and no tuple.
"""

from __future__ import annotations

import ast
import math
import sys
from typing import Any


class NotALiteral(Exception):
    """``value`` has no source text; ``path`` says where it lies inside what was written."""

    def __init__(self, value: object, path: str = "") -> None:
        self.value = value
        self.path = path
        super().__init__(f"{path or 'it'} is a {type(value).__module__}.{type(value).__qualname__}")


def write_literal(value: Any, path: str = "") -> str:
    """The expression that gives ``value`` back where ``torch`` is imported.

    Plain Python literals, containers of them, torch's dtypes, devices, layouts and memory formats.
    Only exact types count: a subclass of ``dict`` or ``int`` would come back as something else.

    Raises NotALiteral with the location (``"['pass'][0]"``) of the first part without such text.
    """
    kind: Any = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if kind is float:
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if value is None or value is ... or kind in (bool, int, str, bytes):
        return repr(value)
    if kind is complex and math.isfinite(abs(value)):
        return repr(value)
    if name in TORCH_TYPES:
        return str(value)
    if name == "torch.device":
        return f"torch.device({str(value)!r})"
    if name in BRACKETS:
        items = [write_literal(item, f"{path}[{index}]") for index, item in enumerate(value)]
        if name in ("builtins.set", "builtins.frozenset"):
            items.sort()  # sets have no order of their own, the text shall have one
            if not items:
                return f"{kind.__name__}()"
        opening, closing = BRACKETS[name]
        comma = "," if name == "builtins.tuple" and len(items) == 1 else ""
        return opening + ", ".join(items) + comma + closing
    if kind is dict:
        pairs = (
            f"{write_literal(key, f'{path}.keys()')}: {write_literal(item, f'{path}[{key!r}]')}"
            for key, item in value.items()
        )
        return "{" + ", ".join(pairs) + "}"
    raise NotALiteral(value, path)


TORCH_TYPES = ("torch.dtype", "torch.layout", "torch.memory_format")
BRACKETS = {
    "builtins.list": ("[", "]"),
    "builtins.tuple": ("(", ")"),
    "builtins.set": ("{", "}"),
    "builtins.frozenset": ("frozenset({", "})"),
    "torch.Size": ("torch.Size([", "])"),
}


def read_literal(text: str) -> Any:
    """What ``write_literal`` wrote; values of torch's as their text in a process without torch."""
    return value_of(ast.parse(text, mode="eval").body)


def value_of(node: ast.expr) -> Any:
    match node:
        case ast.List(elts=items):
            return [value_of(item) for item in items]
        case ast.Tuple(elts=items):
            return tuple(value_of(item) for item in items)
        case ast.Set(elts=items):
            return {value_of(item) for item in items}
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return dict(zip(map(value_of, filter(None, keys)), map(value_of, values), strict=True))
        case ast.Call(ast.Name("float" | "set" | "frozenset" as name), items, []):
            return {"float": float, "set": set, "frozenset": frozenset}[name](*map(value_of, items))
        case ast.Call(ast.Attribute(ast.Name("torch"), "device" | "Size" as name), items, []):
            torch = sys.modules.get("torch")
            return getattr(torch, name)(*map(value_of, items)) if torch else ast.unparse(node)
        case ast.Attribute(value=ast.Name(id="torch"), attr=name):
            if (torch := sys.modules.get("torch")) is None:
                return ast.unparse(node)
            kinds = (torch.dtype, torch.layout, torch.memory_format)
            if isinstance(value := getattr(torch, name, None), kinds):
                return value
    return ast.literal_eval(node)
