"""The text that makes a tensor by a ``Fill``: what a person would write."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from minidbg.graphs.expressions import number, quoted, rounded
from minidbg.graphs.fills import Fill, How

_HAVE_RANDOM = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
)


def fill_expression(
    fill: Fill, size: tuple[int, ...], dtype: torch.dtype, device: str, *, explicit: bool = False
) -> str:
    """An expression that makes a contiguous tensor ``[*size]`` by ``fill``.

    ``device`` is the text of an expression; empty: none is written. ``explicit`` writes the dtype out also where it is
    float32, for scripts whose default dtype is another.
    """
    target = _Target(size, dtype, device, explicit)
    parts: tuple[Any, ...] = (fill.how, *fill.numbers)
    match parts:
        case How.NORMAL, mean, deviation:
            text = target.scaled("", deviation)
            if mean != 0:
                text += f" {'-' if mean.real < 0 else '+'} {rounded(abs(mean))}"
            return target.cast(text)
        case How.UNIFORM, 0, 1:
            return target.cast(target.floats("rand"))
        case How.UNIFORM, low, high:
            return target.cast(
                f"{target.floats('empty')}.uniform_({rounded(low.real)}, {rounded(high.real)})"
            )
        case How.MAGNITUDE, scale:
            return target.cast(target.scaled(".abs()", scale))
        case How.RECTIFIED, scale:
            return target.cast(target.scaled(".relu()", scale))
        case How.PROBABILITIES, dim:
            return target.cast(f"{target.floats('randn')}.softmax({int(dim.real)})")
        case How.TWO_VALUES, share, first, second:
            text = f"torch.where({target.mask(share)}, {number(first, dtype)}, {number(second, dtype)})"
            return text if dtype is torch.float32 and not explicit else f"{text}.to({dtype})"
        case How.LOWER, diagonal, inside:
            return f"{target.full(inside)}.tril({int(diagonal.real) or ''})"
        case How.UPPER, diagonal, inside:
            return f"{target.full(inside)}.triu({int(diagonal.real) or ''})"
        case How.INTEGERS, low, high:
            return target.call("randint", f"{int(low.real)}, {int(high.real)}, {size}", dtype, torch.int64)
        case How.BOOLS, share:
            return target.mask(share)
        case How.FULL, value:
            return target.full(value)
        case How.COUNT, start, step:
            return target.count(int(start.real), int(step.real))
        case (How.PERMUTATION,):
            return target.call("randperm", str(size[0]), dtype, torch.int64)
        case (How.BYTES,):
            return target.bytes()
        case (How.LITERAL,):
            return target.tensor(fill.text)
        case (How.STORED,):
            text = f"stored({', '.join([quoted(fill.text), str(dtype), *([device] if device else [])])})"
            return text if len(size) == 1 else f"{text}.view({', '.join(map(str, size)) or '()'})"
    return fill.text


_RANDOM = ("rand", "randn", "randint", "randperm", "normal_", "uniform_")


def draws(text: str) -> bool:
    """Whether the statement or expression ``text`` uses random numbers."""
    return any(_drawing_calls(text))


def with_generator(text: str, seed: int) -> str:
    """The expression ``text`` with random numbers of its own: the same at each evaluation, whatever came before."""
    for call in sorted(_drawing_calls(text), key=lambda call: call.end_col_offset or 0, reverse=True):
        lines = text.encode().split(b"\n")
        line, end = (call.end_lineno or 1) - 1, (call.end_col_offset or 0) - 1
        generator = f", generator=torch.Generator().manual_seed({seed})".encode()
        lines[line] = lines[line][:end] + generator + lines[line][end:]
        text = b"\n".join(lines).decode()
    return text


def _drawing_calls(text: str) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _RANDOM:
            yield node


@dataclass(frozen=True, slots=True)
class _Target:
    """What the text is to make, whatever the values."""

    size: tuple[int, ...]
    dtype: torch.dtype
    device: str
    explicit: bool

    def sized(self, function: str, dtype: torch.dtype | None = None) -> str:
        """``torch.<function>(sizes, dtype=..., device=...)`` for randn, rand, zeros, ones, empty."""
        size = ", ".join(map(str, self.size)) or "()"
        return self.call(function, size, dtype or self.dtype)

    def call(
        self, function: str, arguments: str, dtype: torch.dtype, usual: torch.dtype = torch.float32
    ) -> str:
        explicit = dtype is not usual or (self.explicit and usual is torch.float32)
        dtype_text = f", dtype={dtype}" if explicit else ""
        return f"torch.{function}({arguments}{dtype_text}{self.place})"

    @property
    def place(self) -> str:
        """The device argument; nothing where ``device`` is empty."""
        return f", device={self.device}" if self.device else ""

    def floats(self, function: str) -> str:
        """A float factory; dtypes that have no random numbers are cast by ``cast``."""
        if self.dtype is torch.complex32:  # it has random numbers, and no arithmetic to scale them with
            return self.sized(function, torch.complex64)
        return self.sized(function, self.dtype if self.dtype in _HAVE_RANDOM else torch.float32)

    def cast(self, text: str) -> str:
        return text if self.dtype in _HAVE_RANDOM else f"{grouped(text)}.to({self.dtype})"

    def scaled(self, method: str, scale: complex) -> str:
        """Normal numbers, after ``method``, times ``scale``."""
        text = self.floats("randn") + method
        return text if scale == 1 else f"{text} * {rounded(scale.real)}"

    def mask(self, share: complex) -> str:
        """True in about this share of the places."""
        return f"{self.sized('rand', torch.float32)} < {rounded(share.real)}"

    def full(self, value: complex) -> str:
        """The same value everywhere."""
        if self.dtype is torch.bool:
            return self.sized("ones" if value else "zeros")
        if not self.size:
            return self.tensor(number(value, self.dtype))
        if value == 0 and math.copysign(1, value.real) > 0 and not isinstance(value, complex):
            return self.sized("zeros")
        if value == 1:
            return self.sized("ones")
        usual = torch.int64 if isinstance(value, int) else torch.float32
        return self.call("full", f"{self.size}, {number(value, self.dtype)}", self.dtype, usual)

    def tensor(self, items: str) -> str:
        """``torch.tensor`` of a literal."""
        usual = self.dtype if self.dtype in (torch.bool, torch.int64) else torch.float32
        return self.call("tensor", items, self.dtype, usual)

    def count(self, start: int, step: int) -> str:
        """A sequence along the last dimension, the same in each row."""
        *repeats, length = self.size
        stop = start + step * length
        bounds = [stop] if (start, step) == (0, 1) else [start, stop] if step == 1 else [start, stop, step]
        text = f"torch.arange({', '.join(map(str, bounds))}{self.place})"
        if set(repeats) <= {1}:
            text += ".unsqueeze(0)" * len(repeats)
        else:
            text += f".repeat({', '.join(map(str, [*repeats, 1]))})"
        return text if self.dtype is torch.int64 else f"{text}.to({self.dtype})"

    def bytes(self) -> str:
        """Random bytes, seen as the dtype."""
        *outer, last = self.size or (1,)
        size = (*outer, last * self.dtype.itemsize)
        text = f"torch.randint(0, 256, {size}, dtype=torch.uint8{self.place}).view({self.dtype})"
        return text if self.size else f"{text}.view(())"


def grouped(text: str) -> str:
    """``text`` in parentheses, unless a method can be called on it as it stands."""
    depth = 0
    for character in text:
        depth += character in "([{"
        depth -= character in ")]}"
        if depth == 0 and character in " <":
            return f"({text})"
    return text if not text.startswith("-") else f"({text})"
