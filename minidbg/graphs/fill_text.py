"""The text that makes a tensor by a ``Fill``: what a person would write."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from minidbg.graphs.fills import Fill, How
from minidbg.graphs.literals import number, quoted, rounded

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
    return _TEXT[fill.how](_Target(fill, size, dtype, device, explicit))


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
    fill: Fill
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


def grouped(text: str) -> str:
    """``text`` in parentheses, unless a method can be called on it as it stands."""
    depth = 0
    for character in text:
        depth += character in "([{"
        depth -= character in ")]}"
        if depth == 0 and character in " <":
            return f"({text})"
    return text if not text.startswith("-") else f"({text})"


def _normal(target: _Target) -> str:
    mean, deviation = target.fill.numbers
    text = target.floats("randn")
    if deviation != 1:
        text += f" * {rounded(deviation.real)}"
    if mean != 0:
        text += f" {'-' if mean.real < 0 else '+'} {rounded(abs(mean))}"
    return target.cast(text)


def _uniform(target: _Target) -> str:
    low, high = target.fill.numbers
    if (low, high) == (0, 1):
        return target.cast(target.floats("rand"))
    return target.cast(f"{target.floats('empty')}.uniform_({rounded(low.real)}, {rounded(high.real)})")


def _magnitude(target: _Target) -> str:
    (size,) = target.fill.numbers
    text = target.floats("randn") + ".abs()"
    return target.cast(text if size == 1 else f"{text} * {rounded(size.real)}")


def _rectified(target: _Target) -> str:
    (size,) = target.fill.numbers
    text = target.floats("randn") + ".relu()"
    return target.cast(text if size == 1 else f"{text} * {rounded(size.real)}")


def _probabilities_text(target: _Target) -> str:
    (dim,) = target.fill.numbers
    return target.cast(f"{target.floats('randn')}.softmax({int(dim.real)})")


def _two_values(target: _Target) -> str:
    share, first, second = target.fill.numbers
    mask = f"{target.sized('rand', torch.float32)} < {rounded(share.real)}"
    values = f"{number(first, target.dtype)}, {number(second, target.dtype)}"
    if not target.explicit and target.dtype is torch.float32:
        return f"torch.where({mask}, {values})"
    return f"torch.where({mask}, {values}).to({target.dtype})"


def _triangle_text(target: _Target) -> str:
    diagonal, inside = target.fill.numbers
    method = "tril" if target.fill.how is How.LOWER else "triu"
    argument = str(int(diagonal.real)) if diagonal else ""
    return f"{_full_of(target, inside)}.{method}({argument})"


def _integers(target: _Target) -> str:
    low, high = (int(bound.real) for bound in target.fill.numbers)
    return target.call("randint", f"{low}, {high}, {_tuple(target.size)}", target.dtype, torch.int64)


def _bools(target: _Target) -> str:
    (share,) = target.fill.numbers
    return f"{target.sized('rand', torch.float32)} < {rounded(share.real)}"


def _full(target: _Target) -> str:
    return _full_of(target, target.fill.numbers[0])


def _full_of(target: _Target, value: complex) -> str:
    if target.dtype is torch.bool:
        return target.sized("ones" if value else "zeros")
    if not target.size:
        return _tensor(target, number(value, target.dtype))
    if value == 0 and math.copysign(1, value.real) > 0 and not isinstance(value, complex):
        return target.sized("zeros")
    if value == 1:
        return target.sized("ones")
    usual = torch.int64 if isinstance(value, int) else torch.float32
    return target.call("full", f"{_tuple(target.size)}, {number(value, target.dtype)}", target.dtype, usual)


def _tensor(target: _Target, items: str) -> str:
    usual = {torch.bool: torch.bool, torch.int64: torch.int64}.get(target.dtype, torch.float32)
    return target.call("tensor", items, target.dtype, usual)


def _count_text(target: _Target) -> str:
    start, step = (int(bound.real) for bound in target.fill.numbers)
    length = target.size[-1]
    stop = start + step * length
    arguments = (
        f"{stop}"
        if (start, step) == (0, 1)
        else f"{start}, {stop}"
        if step == 1
        else f"{start}, {stop}, {step}"
    )
    text = f"torch.arange({arguments}{target.place})"
    if len(target.size) > 1:
        ones = (1,) * (len(target.size) - 1)
        repeats = target.size[:-1]
        text += (
            f".repeat({', '.join(map(str, (*repeats, 1)))})"
            if repeats != ones
            else ".unsqueeze(0)" * len(ones)
        )
    return text if target.dtype is torch.int64 else f"{text}.to({target.dtype})"


def _permutation_text(target: _Target) -> str:
    return target.call("randperm", str(target.size[0]), target.dtype, torch.int64)


def _bytes(target: _Target) -> str:
    size = (
        (*target.size[:-1], target.size[-1] * target.dtype.itemsize)
        if target.size
        else (target.dtype.itemsize,)
    )
    text = f"torch.randint(0, 256, {_tuple(size)}, dtype=torch.uint8{target.place}).view({target.dtype})"
    return text if target.size else f"{text}.view(())"


def _literal(target: _Target) -> str:
    return _tensor(target, target.fill.text)


def _stored(target: _Target) -> str:
    place = f", {target.device}" if target.device else ""
    text = f"stored({quoted(target.fill.text)}, {target.dtype}{place})"
    return text if len(target.size) == 1 else f"{text}.view({', '.join(map(str, target.size)) or '()'})"


def _text(target: _Target) -> str:
    return target.fill.text


def _tuple(size: tuple[int, ...]) -> str:
    return repr(tuple(size))


_TEXT: dict[How, Callable[[_Target], str]] = {
    How.NORMAL: _normal,
    How.UNIFORM: _uniform,
    How.MAGNITUDE: _magnitude,
    How.RECTIFIED: _rectified,
    How.PROBABILITIES: _probabilities_text,
    How.TWO_VALUES: _two_values,
    How.LOWER: _triangle_text,
    How.UPPER: _triangle_text,
    How.INTEGERS: _integers,
    How.BOOLS: _bools,
    How.FULL: _full,
    How.COUNT: _count_text,
    How.PERMUTATION: _permutation_text,
    How.BYTES: _bytes,
    How.LITERAL: _literal,
    How.STORED: _stored,
    How.PYTHON: _text,
    How.WRITTEN: _text,
}
