"""Numbers, strings and tensors as the short source text that a person would write for them."""

from __future__ import annotations

import math
import textwrap
from typing import Any

import torch
from torch import Tensor

LINE = 88
"""Characters in a line of numbers, its margin included."""


def quoted(text: str) -> str:
    """``repr(text)``, in double quotes where that needs no escape."""
    plain = repr(text)
    return f'"{plain[1:-1]}"' if plain[0] == "'" and '"' not in plain and "\\'" not in plain else plain


def number(value: complex, dtype: torch.dtype = torch.float64) -> str:
    """The shortest text of a bool, int, float or complex that gives ``value`` back in ``dtype``."""
    if isinstance(value, bool | int):
        return repr(value)
    if isinstance(value, complex):
        part = torch.float32 if dtype in (torch.complex32, torch.complex64) else torch.float64
        return f"complex({number(value.real, part)}, {number(value.imag, part)})"
    if math.isnan(value):
        return 'float("nan")'
    if math.isinf(value):
        return 'float("inf")' if value > 0 else 'float("-inf")'
    if dtype is torch.float32:
        value = _shortest_float32(value)
    return repr(value)


def _shortest_float32(value: float) -> float:
    for digits in range(1, 10):
        short = float(f"{value:.{digits}g}")
        if torch.tensor(short, dtype=torch.float32).item() == value:
            return short
    return value


def rounded(value: float) -> str:
    """``value`` to two significant digits, as a person writes it: ``0.02``, ``1.2e-05``, ``12``."""
    text = repr(float(f"{value:.1e}"))
    return text.removesuffix(".0")


def tensor_literal(value: Tensor) -> str:
    """Nested lists (a bare number for no dimension) with which ``torch.tensor`` makes ``value`` again.

    ``value`` is ``[*S]`` of any dtype that has numbers; its stride is not kept.
    """
    items, dtype = value.detach().tolist(), value.dtype
    text = _nested(items, dtype)
    return text if len(text) <= LINE else _wrapped(items, dtype, 0)


def _nested(items: Any, dtype: torch.dtype) -> str:
    if isinstance(items, list):
        return "[" + ", ".join(_nested(item, dtype) for item in items) + "]"
    return number(items, dtype)


def _wrapped(items: Any, dtype: torch.dtype, depth: int) -> str:
    """``items`` over several lines, one row each where a row fits."""
    margin, inner = "    " * depth, "    " * (depth + 1)
    text = _nested(items, dtype)
    if not isinstance(items, list) or len(text) + len(inner) <= LINE:
        return text
    if items and isinstance(items[0], list):
        rows = [f"{inner}{_wrapped(item, dtype, depth + 1)},\n" for item in items]
        return f"[\n{''.join(rows)}{margin}]"
    words = ", ".join(number(item, dtype) for item in items)
    lines = textwrap.wrap(words, LINE - len(inner), break_long_words=False, break_on_hyphens=False)
    return "[\n" + "".join(f"{inner}{line.rstrip(',')},\n" for line in lines) + f"{margin}]"
