"""The expression by which a script makes the values of a tensor: a rule that gives them exactly, or
numbers drawn like them.

Drawn numbers say nothing about single values, so that a script need not carry the weights of a
private model. What a failure may depend on is kept: the range of integers, whether any comes twice,
the sign of values that all have one.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from minidbg.codegen.expressions import number_text, rounded, tensor_literal

FEW_VALUES = 8
"""Integers and booleans up to this number are written one by one."""
ENOUGH = 200
"""Of fewer values one cannot tell whether they are uniform or normal."""
MOST_DISTINCT = 1 << 20
"""Integers among which different ones are drawn: as many are shuffled."""
SAMPLE = 1 << 16
"""Elements looked at to fit a distribution."""


def is_opaque(dtype: torch.dtype) -> bool:
    """Whether it has no numbers, so that values are made from bytes."""
    return str(dtype).startswith(("torch.bits", "torch.float4"))


def is_index(value: Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex())


@dataclass(frozen=True, slots=True)
class TensorFactory:
    """Expressions of a contiguous tensor ``[*size]``. ``place``: a last argument that says where.
    ``explicit``: float32 is written out too, as the script's default is another."""

    size: tuple[int, ...]
    dtype: torch.dtype
    place: str
    explicit: bool = False
    generator: str = ""
    """A last argument for what draws."""

    # --- exact ---

    @torch.no_grad()
    def exact(self, value: Tensor, most: int = 0) -> str | None:
        """The first expression that makes ``value`` bit for bit (NaN: any); else None. Up to
        ``most`` elements may be written singly, integers and booleans up to ``FEW_VALUES``."""
        return next((text for text in self._rules(value, most) if self._makes(text, value)), None)

    def _rules(self, value: Tensor, most: int) -> Iterator[str]:
        if is_opaque(self.dtype):
            return
        if not value.numel():
            yield self.full(0)
            return
        sample = _sample(value)[:4096]
        if bool(sample.isnan().all()) or bool((sample == sample[0]).all()):
            yield self.full(value[(0,) * value.ndim].item())
        if is_index(value) and value.numel() <= FEW_VALUES:
            yield self.tensor(tensor_literal(value.tolist(), self.dtype))
        if is_index(value) and value.dtype is not torch.bool:
            yield from self._counts(value)
        if not value.is_complex() and value.ndim > 1:
            yield from self._triangles(torch.unique(sample).tolist())
        if value.numel() <= most:
            yield self.tensor(tensor_literal(value.tolist(), self.dtype))

    def _counts(self, value: Tensor) -> Iterator[str]:
        """A sequence along the last dimension, the same in each row."""
        *rows, length = self.size or (1,)
        first = value.reshape(-1, length)[0, :2].tolist()
        if not (step := first[-1] - first[0]):
            return
        start, stop = first[0], first[0] + step * length
        bounds = [start, stop, step] if step != 1 else [start, stop] if start else [stop]
        text = self.call("arange", ", ".join(map(str, bounds)), usual=torch.int64)
        yield from (text, f"{text}.unsqueeze(0)", f"{text}.repeat{(*rows, 1)}")

    def _triangles(self, values: list[float]) -> Iterator[str]:
        """A causal mask: one value on one side of one of the usual diagonals, 0 on the other."""
        if len(values) != 2 or 0 not in values:
            return
        inside = sum(values) if self.dtype.is_floating_point else int(sum(values))
        offset = self.size[-1] - self.size[-2]
        for diagonal in dict.fromkeys((0, 1, -1, offset, offset + 1)):
            for side in ("tril", "triu"):
                yield f"{self.full(inside)}.{side}({diagonal or ''})"

    def _makes(self, text: str, value: Tensor) -> bool:
        try:
            made: Tensor = eval(text, {"torch": torch, "device": value.device}).to(value.device)
        except (OverflowError, RuntimeError):  # no op of this dtype, too large a number, no room
            return False
        if (made.shape, made.dtype) != (value.shape, value.dtype):
            return False
        a, b = (torch.view_as_real(wide(x)) if x.is_complex() else wide(x) for x in (made, value))
        if not a.is_floating_point():
            return torch.equal(a, b)
        same = (a == b) & (a.signbit() == b.signbit())
        return bool((same | (a.isnan() & b.isnan())).all())

    # --- drawn ---

    @torch.no_grad()
    def like(self, value: Tensor | None) -> str:
        """Numbers like the finite ones of ``value``, maybe of another shape; where nobody can see
        them, standard normal numbers, and integers 0 and 1 (a safe index)."""
        if is_opaque(self.dtype):
            text = self.call("randint", f"0, 256, {self.size}", torch.uint8, torch.int64)
            return f"{text}.view({self.dtype})"
        if value is None:
            has_sign = self.dtype.is_floating_point or self.dtype.is_complex
            value = torch.tensor([-1 if has_sign else 0, 1]).to(self.dtype)
        if not value.numel():
            return self.full(0)
        if self.dtype is torch.bool:
            share = value.float().mean().item()
            chance = min(max(share, 0.01), 0.99)
            return self.full(share == 1) if share in (0, 1) else self.mask(chance)
        if is_index(value):
            return self._integers_like(value)
        sample = _sample(value)
        sample = sample[sample.isfinite()]
        if not sample.numel():
            return self.full(0.0)
        size = sample.abs()
        scale, count = size.square().mean().sqrt().item(), sample.numel()
        if value.is_complex():
            return self.drawn("randn", scale=scale)
        low, high = (bound.item() for bound in sample.aminmax())
        if low == high:
            return self.full(low)
        mean, deviation = sample.mean().item(), sample.std(correction=0).item()
        # the fourth moment is 1.8 for uniform values, 3 for normal ones
        is_flat = count >= ENOUGH and ((sample - mean) / deviation).pow(4).mean().item() < 2.2
        if low < 0 < high and not is_flat:
            mean = mean if abs(mean) > max(0.1, 3 / math.sqrt(count)) * deviation else 0.0
            return self.drawn("randn", scale=deviation, mean=mean, error=3 / math.sqrt(2 * count))
        if 0 <= low < 0.2 and 0.8 < high <= 1:
            return self.drawn("rand")
        if is_flat or size.min() > 0.2 * size.max():
            ends = f"{rounded(low + 0.0)}, {rounded(high + 0.0)}"  # + 0.0: no end is -0.0
            return self.drawn("empty", f".uniform_({ends}{self.generator})")
        return self.drawn("randn", ".abs()", math.copysign(scale, low + high))

    def _integers_like(self, value: Tensor) -> str:
        """Those from the lowest to the highest; where none comes twice, as many in any order."""
        value = value if value.dtype in (torch.int32, torch.int64) else value.to(torch.int64)
        largest = 2**63 - 2  # the end of a range is one more
        low, high = (min(int(bound), largest) for bound in value.aminmax())
        if self.dtype is torch.uint64 and low < 0:
            low, high = 0, largest
        total, count, choices = math.prod(self.size), value.numel(), high - low + 1
        # so many of so few choices are hardly all different by chance
        may_be = total <= choices <= MOST_DISTINCT and 1 < choices <= count * count / 6
        if not may_be or torch.unique(value).numel() < count:
            return self.call("randint", f"{low}, {high + 1}, {self.size}", usual=torch.int64)
        text = self.call("randperm", str(choices), torch.int64, torch.int64)
        text += f"[:{total}]" if total < choices else ""
        text += f" + {low}" if low else ""
        if len(self.size) != 1:
            text = f"{grouped(text)}.view({', '.join(map(str, self.size))})"
        return text if self.dtype is torch.int64 else f"{grouped(text)}.to({self.dtype})"

    def drawn(
        self, function: str, method: str = "", scale: float = 1, mean: float = 0, error: float = 0
    ) -> str:
        """``torch.function(size).method() * scale + mean`` drawn in a dtype with random numbers."""
        # of 8 bits there are no random numbers, and of complex32 none that can be scaled
        dtype = torch.float32 if self.dtype.itemsize == 1 else self.dtype
        dtype = torch.complex64 if dtype is torch.complex32 else dtype
        off = max(0.1, error) * abs(scale)
        # a round number, so that the same is written of what this makes
        scale = next((x for x in (1.0, float(f"{scale:.0e}")) if abs(x - scale) <= off), scale)
        text = self.call(function, dtype=dtype) + method
        text += f" * {rounded(scale)}" if scale != 1 else ""
        text += f" {'-' if mean < 0 else '+'} {rounded(abs(mean))}" if mean else ""
        return text if dtype is self.dtype else f"{grouped(text)}.to({self.dtype})"

    def mask(self, share: float) -> str:
        return f"{self.call('rand', dtype=torch.float32)} < {rounded(share)}"

    # --- torch's factories ---

    def call(
        self,
        function: str,
        arguments: str = "",
        dtype: torch.dtype | None = None,
        usual: torch.dtype = torch.float32,
    ) -> str:
        """``torch.function(arguments)``, by default of the size, with a dtype unless ``usual``."""
        arguments, dtype = arguments or ", ".join(map(str, self.size)) or "()", dtype or self.dtype
        if dtype is not usual or (self.explicit and usual is torch.float32):
            arguments += f", dtype={dtype}"
        generator = self.generator if function.startswith("rand") else ""
        return f"torch.{function}({arguments}{self.place}{generator})"

    def full(self, value: complex) -> str:
        if not self.size:
            return self.tensor(number_text(value, self.dtype))
        if value == 0 and not isinstance(value, complex) and math.copysign(1, value) > 0:
            return self.call("zeros")
        if value == 1:
            return self.call("ones")
        usual = torch.int64 if isinstance(value, int) else torch.float32
        return self.call("full", f"{self.size}, {number_text(value, self.dtype)}", usual=usual)

    def tensor(self, items: str) -> str:
        usual = self.dtype if self.dtype in (torch.bool, torch.int64) else torch.float32
        return self.call("tensor", items, usual=usual)


def grouped(text: str) -> str:
    """``text`` in parentheses, unless a method can be called on it as it stands."""
    whole = ast.parse(text, mode="eval").body
    return text if isinstance(whole, ast.Call | ast.Name | ast.Subscript) else f"({text})"


def wide(value: Tensor) -> Tensor:
    """``value`` in a dtype that torch computes with."""
    if value.dtype is torch.complex32:
        return value.to(torch.complex64)
    return value.float() if value.is_floating_point() and value.dtype.itemsize == 1 else value


def all_finite(value: Tensor) -> bool:
    """Whether ``value`` holds neither NaN nor infinity; one pass without a mask."""
    if not value.numel() or is_index(value) or is_opaque(value.dtype):
        return True
    value = wide(value[tuple(slice(0, 1) if step == 0 else slice(None) for step in value.stride())])
    value = torch.view_as_real(value) if value.is_complex() else value
    return all(bool(bound.isfinite()) for bound in value.aminmax())


def _sample(value: Tensor) -> Tensor:
    target = torch.complex128 if value.is_complex() else torch.float64
    if value.numel() <= SAMPLE:
        return value.flatten().to(target)
    # By index, so that a large expanded or strided tensor is not copied whole.
    places = torch.linspace(0, value.numel() - 1, SAMPLE, device="cpu", dtype=torch.float64).long()
    index = torch.unravel_index(places.to(value.device), value.shape)
    return value[index].to(target)
