"""Python and tensor values as the short source text that a person would write for them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from minidbg.errors import CannotWrite
from minidbg.graphs.ranks import shared_text

LINE = 88
"""Characters in a line of numbers, its margin included."""

# Plain values whose ``repr`` is an expression once ``torch`` is imported.
_TORCH_CONSTANTS = (torch.dtype, torch.memory_format, torch.layout)


def python_literal(value: object, part: str = "a value") -> str:
    """An expression that evaluates to ``value``, with ``torch`` as the only name it may need.

    Raises CannotWrite, naming ``part``, for an object that has no literal form.
    """
    if value is None or value is Ellipsis or isinstance(value, bool | int | str | bytes):
        # int(...) and str(...): an IntEnum or a str subclass has a repr of its own.
        return quoted(str(value)) if isinstance(value, str) else repr(_plain(value))
    if isinstance(value, float | complex):
        return number(value)
    if isinstance(value, _TORCH_CONSTANTS):
        return repr(value)
    if isinstance(value, torch.device):
        return f"torch.device({quoted(str(value))})"
    if isinstance(value, torch.Generator):
        return f"torch.Generator({quoted(str(value.device))}).manual_seed({value.initial_seed()})"
    return _container_literal(value, part)


def quoted(text: str) -> str:
    """``repr(text)``, in double quotes where that needs no escape."""
    plain = repr(text)
    return f'"{plain[1:-1]}"' if plain[0] == "'" and '"' not in plain and "\\'" not in plain else plain


def _plain(value: object) -> object:
    for kind in (bool, int, bytes):
        if isinstance(value, kind):
            return value if kind is bool else kind(value)
    return value


def _container_literal(value: object, part: str) -> str:
    def items(parts: Any) -> str:
        return ", ".join(python_literal(item, part) for item in parts)

    if isinstance(value, torch.Size):
        return f"torch.Size([{items(value)}])"
    if type(value) is tuple:
        return f"({items(value)},)" if len(value) == 1 else f"({items(value)})"
    if type(value) is list:
        return f"[{items(value)}]"
    if type(value) is set:
        return f"{{{items(sorted(value, key=repr))}}}" if value else "set()"
    if type(value) is slice:
        return f"slice({items((value.start, value.stop, value.step))})"
    if isinstance(value, Mapping) and type(value) is dict:
        pairs = (f"{python_literal(k, part)}: {python_literal(v, part)}" for k, v in value.items())
        return f"{{{', '.join(pairs)}}}"
    if (shared := shared_text(value)) is not None:
        return shared[0]
    kind = type(value)
    raise CannotWrite(part, f"a {kind.__module__}.{kind.__qualname__} has no literal form")


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
