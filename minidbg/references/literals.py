"""Values that have a source text: what options and arguments may be made of."""

from __future__ import annotations

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

    Raises NotALiteral with the place (``"['pass'][0]"``) of the first part that has no such text.
    """
    kind = type(value)
    if kind is float:
        return _write_float(value)  # type: ignore[arg-type]
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


def is_literal(value: object) -> bool:
    """Whether ``write_literal`` takes ``value``."""
    try:
        write_literal(value)
    except (NotALiteral, RecursionError):
        return False
    return True


_BRACKETS = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
    torch.Size: ("torch.Size([", "])"),
}


def _write_float(value: float) -> str:
    return repr(value) if math.isfinite(value) else f"float({str(value)!r})"


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
