"""How the values of an input are made: a distribution fitted to real values, and its text.

A ``Fill`` is small and says nothing about single values, so that a script need not carry the weights of a
private model. What must be kept for the failure to come back is kept: the range of integers, the sign of
non-negative values, masks, constants, counting sequences.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from minidbg.source.expressions import tensor_literal

FEW = 8
"""Integers and booleans up to this number are written one by one."""
ENOUGH = 200
"""Of fewer values one cannot tell whether they are uniform or normal."""
MOST_DISTINCT = 1 << 20
"""Integers among which different ones are drawn: as many are shuffled."""
SAMPLE = 1 << 16
"""Elements looked at to fit a distribution."""

_OPAQUE_NAMES = ("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2", "float4_e2m1fn_x2")
_OPAQUE = {getattr(torch, name) for name in _OPAQUE_NAMES if hasattr(torch, name)}
"""Dtypes without numbers: made from bytes."""


class FillKind(enum.StrEnum):
    NORMAL = "normal"
    """mean, standard deviation"""
    UNIFORM = "uniform"
    """low, high"""
    MAGNITUDE = "magnitude"
    """root mean square; all values have its sign"""
    RECTIFIED = "rectified"
    """root mean square of the values that are not zero: a normal one cut at 0"""
    PROBABILITIES = "probabilities"
    """the dimension that sums to 1"""
    TWO_VALUES = "two_values"
    """share of the first, first, second"""
    LOWER = "lower"
    """diagonal, value on and under it; 0 above"""
    UPPER = "upper"
    """diagonal, value on and above it; 0 under"""
    INTEGERS = "integers"
    """low, high (exclusive)"""
    BOOLS = "bools"
    """share of True"""
    FULL = "full"
    """value"""
    NO_MEMORY = "no_memory"
    """zeros that are not in memory: a ZeroTensor"""
    CONSTRUCTED = "constructed"
    """by the text, from the parts of a tensor subclass"""
    COUNT = "count"
    """start, step, along the last dimension"""
    PERMUTATION = "permutation"
    DISTINCT = "distinct"
    """low, high (exclusive): integers, none of them twice"""
    BYTES = "bytes"
    """random bytes seen as the dtype"""
    LITERAL = "literal"
    """text: nested lists"""
    STORED = "stored"
    """text: the key in the .safetensors file"""
    PYTHON = "python"
    """text: an expression; the input is no tensor"""
    WRITTEN = "written"
    """text: the statements of the script it was read from"""


@dataclass(frozen=True, slots=True)
class Fill:
    kind: FillKind
    numbers: tuple[complex, ...] = ()
    text: str = ""


def is_opaque(dtype: torch.dtype) -> bool:
    return dtype in _OPAQUE


def literal_fill(value: Tensor) -> Fill:
    return Fill(FillKind.LITERAL, text=tensor_literal(value))


@torch.no_grad()
def fit(value: Tensor, *, structured: bool = True, literal: bool = True) -> Fill:
    """The fill that makes values like those of ``value``: ``[*S]``, real data, no NaN or inf needed.

    NaN and infinities are left out of the fit. Integers keep their exact range. A tensor of one value, or of few
    integers, is a literal. Not ``structured``: only what holds for the values in any order, such as their range. Not ``literal``: no single values.
    """
    value = value.detach()
    if value.dtype in _OPAQUE:
        return Fill(FillKind.BYTES)
    if value.numel() == 0:
        return Fill(FillKind.FULL, (False if value.dtype is torch.bool else 0,))
    if value.numel() == 1:
        return Fill(FillKind.FULL, (value.item(),)) if value.ndim or not literal else literal_fill(value)
    if literal and value.numel() <= FEW and not value.is_floating_point() and not value.is_complex():
        first = value.flatten()[0]
        return literal_fill(value) if bool((value != first).any()) else Fill(FillKind.FULL, (first.item(),))
    if value.dtype is torch.bool:
        return _fit_bools(value, structured)
    if value.is_complex():
        return Fill(FillKind.NORMAL, (0.0, _simple(_root_mean_square(_sample(value).abs()))))
    return (_fit_floats if value.is_floating_point() else _fit_integers)(value, structured)


def _fit_bools(value: Tensor, structured: bool) -> Fill:
    share = value.float().mean().item()
    if share in (0.0, 1.0):
        return Fill(FillKind.FULL, (share == 1.0,))
    return (_triangle(value, True) if structured else None) or Fill(FillKind.BOOLS, (_share(share),))


def _share(share: float) -> float:
    return _two_digits(min(max(share, 0.01), 0.99))


def _fit_integers(value: Tensor, structured: bool) -> Fill:
    wide = value if value.dtype in (torch.int32, torch.int64) else value.to(torch.int64)
    low, high = (int(bound) for bound in wide.aminmax())
    if value.dtype is torch.uint64 and low < 0:
        return Fill(FillKind.INTEGERS, (0, 2**63 - 1))
    if low == high:
        return Fill(FillKind.FULL, (low,))
    found = (_count(wide) or _permutation(wide, low, high)) if structured else None
    if found is None and _are_distinct_on_purpose(wide, high - low + 1):
        found = Fill(FillKind.DISTINCT, (low, high + 1))
    return found or Fill(FillKind.INTEGERS, (low, high + 1))


def _are_distinct_on_purpose(value: Tensor, choices: int) -> bool:
    count = value.numel()
    if not count <= choices <= MOST_DISTINCT or count * count < 6 * choices:
        return False
    return int(torch.unique(value).numel()) == count


def _count(value: Tensor) -> Fill | None:
    steps = value.diff(dim=-1) if value.shape[-1] > 1 else None
    if steps is None or not bool((steps == steps.flatten()[0]).all()):
        return None
    rows = value.reshape(-1, value.shape[-1])
    if not bool((rows == rows[0]).all()) or int(steps.flatten()[0]) == 0:
        return None
    return Fill(FillKind.COUNT, (int(rows[0, 0]), int(steps.flatten()[0])))


def _permutation(value: Tensor, low: int, high: int) -> Fill | None:
    if value.ndim != 1 or low != 0 or high != value.numel() - 1:
        return None
    return Fill(FillKind.PERMUTATION) if torch.unique(value).numel() == value.numel() else None


def _fit_floats(value: Tensor, structured: bool) -> Fill:
    sample = _sample(value)
    if torch.unique(sample[:4096]).numel() <= 2 or bool(sample.isnan().all()):
        found = _fit_few_values(value if value.dtype.itemsize > 1 else value.float(), structured)
        if found is not None:
            return found
    sample = sample[sample.isfinite()]
    if sample.numel() == 0 or bool((sample == sample[0]).all()):
        return Fill(FillKind.FULL, (sample[0].item() if sample.numel() else 0.0,))
    return (_probabilities(value, sample) if structured else None) or _distribution(sample)


def _fit_few_values(value: Tensor, structured: bool) -> Fill | None:
    if bool(value.isnan().all()):
        return Fill(FillKind.FULL, (math.nan,))
    distinct = _few_values(value)
    if len(distinct) == 1:
        return Fill(FillKind.FULL, (distinct[0],))
    if len(distinct) != 2:
        return None
    first, second = distinct
    if structured and 0 in distinct and (found := _triangle(value, second if first == 0 else first)):
        return found
    if value.numel() < 16 or not (math.isfinite(first) and math.isfinite(second)):
        return None
    return Fill(FillKind.TWO_VALUES, (_share((value == first).double().mean().item()), first, second))


def _few_values(value: Tensor) -> list[float]:
    low, high = torch.aminmax(value)  # sorting a large tensor takes seconds
    has_others = low.isnan() or not ((value == low) | (value == high)).all()
    return [] if has_others else [bound.item() for bound in (low, high)][: 1 if low == high else 2]


def _triangle(value: Tensor, inside: complex) -> Fill | None:
    """A causal mask, ``tril`` or ``triu`` of one value with one of the usual diagonals; None for other tensors."""
    if value.ndim < 2 or value.shape[-1] < 2 or value.shape[-2] < 2:
        return None
    full = torch.full(value.shape, inside, dtype=value.dtype, device=value.device)
    offset = value.shape[-1] - value.shape[-2]
    for diagonal in dict.fromkeys((0, 1, -1, offset, offset + 1)):
        if torch.equal(full.tril(diagonal), value):
            return Fill(FillKind.LOWER, (diagonal, inside))
        if torch.equal(full.triu(diagonal), value):
            return Fill(FillKind.UPPER, (diagonal, inside))
    return None


def _probabilities(value: Tensor, sample: Tensor) -> Fill | None:
    if value.ndim == 0 or sample.min() < 0 or sample.max() > 1 or sample.numel() < 8:
        return None
    for dim in (-1, 1):
        if -value.ndim <= dim < value.ndim and value.shape[dim] > 1:
            sums = value.select(0, 0).unsqueeze(0).double() if dim != 0 and value.ndim > 1 else value.double()
            sums = sums.sum(dim)
            if bool((sums - 1).abs().max() < max(1e-3, 4 * torch.finfo(value.dtype).eps)):
                return Fill(FillKind.PROBABILITIES, (dim,))
    return None


def _distribution(sample: Tensor) -> Fill:
    n = sample.numel()
    low, high = sample.min().item(), sample.max().item()
    if low >= 0 or high <= 0:
        return _fit_one_sign(sample, low, high)
    mean, deviation = sample.mean().item(), sample.std(correction=0).item()
    if n >= ENOUGH and _kurtosis(sample) < 2.2:
        return Fill(FillKind.UNIFORM, (_two_digits(low), _two_digits(high)))
    if abs(mean) <= max(0.1, 3 / math.sqrt(n)) * deviation:
        mean = 0.0
    return Fill(FillKind.NORMAL, (_two_digits(mean), _simple(deviation, 3 / math.sqrt(2 * n))))


def _fit_one_sign(sample: Tensor, low: float, high: float) -> Fill:
    sign = 1.0 if low >= 0 else -1.0
    size = sample.abs()
    zeros = (size == 0).double().mean().item()
    if sign > 0 and 0.2 < zeros < 0.8:
        return Fill(FillKind.RECTIFIED, (_simple(_root_mean_square(size[size > 0])),))
    if sign > 0 and high <= 1 and high > 0.8 and low < 0.2 and _kurtosis(sample) < 2.2:
        return Fill(FillKind.UNIFORM, (0.0, 1.0))
    if size.min() > 0.2 * size.max() or (_kurtosis(sample) < 2.2 and sample.numel() >= ENOUGH):
        return Fill(FillKind.UNIFORM, (_two_digits(low), _two_digits(high)))
    return Fill(FillKind.MAGNITUDE, (sign * _simple(_root_mean_square(size)),))


def _kurtosis(sample: Tensor) -> float:
    """Fourth standardised moment; 1.8 for uniform values, 3 for normal ones."""
    centred = sample - sample.mean()
    variance = centred.square().mean()
    return (centred.pow(4).mean() / variance.square()).item() if variance > 0 else math.inf


def _root_mean_square(sample: Tensor) -> float:
    return sample.double().square().mean().sqrt().item()


def _two_digits(value: float) -> float:
    return float(f"{value:.1e}")


def _simple(value: float, tolerance: float = 0.1) -> float:
    short = float(f"{value:.0e}")
    for candidate in (1.0, short):
        if abs(candidate - value) <= max(0.1, tolerance) * abs(value):
            return candidate
    return _two_digits(value)


def _sample(value: Tensor) -> Tensor:
    target = torch.complex128 if value.is_complex() else torch.float64
    if value.numel() <= SAMPLE:
        return value.flatten().to(target)
    # By index, so that a large expanded or strided tensor is not copied whole.
    places = torch.linspace(0, value.numel() - 1, SAMPLE, device="cpu", dtype=torch.float64).long()
    index = torch.unravel_index(places.to(value.device), value.shape)
    return value[index].to(target)
