"""The arithmetic of errors: how far apart two tensors are, and which elements are wrong beside eager's own error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

# How much farther from float64 than eager's the compiled result may be, as in torch._dynamo.utils.same.
FACTOR = 2.0  # root mean square over the tensor
FACTOR_NOISY = 3.0  # the same for half precision, or below NOISY_BELOW elements: chance weighs more
FACTOR_TINY = 10.0  # the same for at most TINY elements: eager may be exact by luck
NOISY_BELOW, TINY = 1000, 10
FACTOR_PEAK = 10.0  # each element against eager's worst one: a single wrong element is lost in a mean
BETTER = 4e-2  # where only eager is NaN or inf, the compiled value may be off float64 by this, relative
ABOUT_0 = 1e-3  # in units of the tensor: beside such a value a relative error says nothing
CHUNK = 1 << 20  # elements judged at a time, so that float64 copies stay small


def wrong_elements(
    actual: torch.Tensor,
    expected: torch.Tensor,
    tolerance: tuple[float, float, float],
    reference: torch.Tensor | None = None,
    noise: torch.Tensor | None = None,
    margin: float = 1.0,
) -> dict[str, Any] | None:
    """The category (nan, inf, integer, bool, float), the worst element, figures and a ``text``; None if none is wrong.

    ``reference`` is the result in float64, ``noise`` what eager gave another time. ``excess`` in the answer says how
    many times more than allowed the worst element is off; wrong are elements with more than ``margin``.
    """
    relative, absolute, rounding = tolerance
    near = rounding, absolute
    # nothing tells whose rounding it is: eager counts as exact, within the size of the tensor
    if reference is None:
        near = rounding, absolute + rounding * _rms(expected)
    runs = actual, expected, expected if reference is None else reference, noise
    errors = _errors(runs, near, _factor(expected.numel(), expected.dtype))
    wrong, odd, largest_abs, largest_rel = _Count(), _Count(), 0.0, 0.0
    for start, (a, e, r, _) in _chunks(*runs):
        finite = a.isfinite() & e.isfinite()
        known = finite & r.isfinite()
        off, size = _distance(a, e, finite), _size(e, finite)
        largest_abs = max(largest_abs, float(off.max()))
        largest_rel = max(largest_rel, float(torch.where(size > 0, off / size, 0.0).max()))
        excess = _ratio(off, relative * size + absolute)
        allowed = near[0] * _size(r, known) + near[1] + FACTOR_PEAK * errors["peak_eager"]
        from_float64 = _ratio(_distance(a, r, known), allowed).clamp(min=errors["as_a_whole"])
        wrong.add(start, torch.where(known, torch.minimum(excess, from_float64), excess), off, margin)
        if not finite.all():
            differs = _differ(a, e) & ~_agrees(a, r, expected.dtype)
            odd.add(start, torch.where(differs, math.inf, 0.0), differs.double(), margin)
    if not (wrong.number or odd.number):
        return None
    # what there is more of: memory that is read by mistake may hold a NaN or not
    if odd.number > wrong.number:
        category, worst = "inf", odd
    else:
        category, worst = "float" if _has_floats(expected) else "integer", wrong
        category = "bool" if expected.dtype is torch.bool else category
    at = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst.index), expected.shape))
    found, wanted = actual[at], expected[at]
    if category == "inf" and (found.isnan() or wanted.isnan()):
        category = "nan"
    figures = {"index": list(at), "actual": _number(found), "expected": _number(wanted)}
    figures |= {"excess": _finite(worst.most), "wrong": worst.number, "elements": expected.numel()}
    if worst is wrong:
        figures |= {"max_abs": _finite(largest_abs), "max_rel": _finite(largest_rel)}
    if category == "float":
        figures |= _float_figures(_wide(found), _wide(wanted), worst.allowed, _rms(expected))
    if reference is not None and worst is wrong:
        figures |= {key: _finite(errors[key]) for key in ("rmse_compiled", "rmse_eager", "rmse_allowed")}
    return {"category": category, **figures, "text": _sentence(category, expected, figures)}


class _Count:
    """How many elements exceed the margin, the most that one exceeds it, and which one is farthest beyond what is allowed."""

    def __init__(self) -> None:
        self.number, self.most = 0, 0.0
        self.index, self.allowed, self.farthest = 0, 0.0, 0.0

    def add(self, start: int, excess: torch.Tensor, off: torch.Tensor, margin: float) -> None:
        self.number += int((excess > margin).sum())
        self.most = max(self.most, float(excess.max()))
        beyond = torch.where(excess > margin, off - off / excess, 0.0)
        index = int(beyond.argmax())
        if beyond[index] > self.farthest:
            self.index, self.farthest = start + index, float(beyond[index])
            self.allowed = float(off[index] - beyond[index])


def _errors(runs: Any, near: tuple[float, float], factor: float) -> dict[str, float]:
    compiled = eager = allowed = peak = 0.0
    known_elements = 0
    for _, (a, e, r, again) in _chunks(*runs):
        finite = a.isfinite() & e.isfinite()
        known = finite & r.isfinite()
        own = _distance(e, r, known)
        if again is not None:
            own = torch.maximum(own, _distance(again, e, finite & again.isfinite()))
        known_elements += int(known.sum())
        compiled = math.hypot(compiled, _norm(_distance(a, r, known)))
        eager = math.hypot(eager, _norm(own))
        allowed = math.hypot(allowed, _norm(torch.where(known, near[0] * _size(r, known) + near[1], 0.0)))
        peak = max(peak, float(own.max()))
    root = math.sqrt(max(known_elements, 1))
    limit = (allowed + factor * eager) / root
    as_a_whole = (
        math.inf if compiled == math.inf or compiled > limit == 0 else compiled / root / (limit or 1.0)
    )
    return {
        "rmse_compiled": compiled / root,
        "rmse_eager": eager / root,
        "rmse_allowed": limit,
        "peak_eager": peak,
        "as_a_whole": as_a_whole,
    }


def _float_figures(found: torch.Tensor, wanted: torch.Tensor, allowed: float, usual: float) -> dict[str, Any]:
    size = float(wanted.abs())
    unit, size = ("relative", size) if size > ABOUT_0 * usual else ("absolute", 1.0)
    error = float((found - wanted).abs()) / size
    return {"unit": unit, "error": _finite(error), "allowed": _finite(allowed / size)}


def _sentence(category: str, expected: torch.Tensor, figures: dict[str, Any]) -> str:
    what = f"{str(expected.dtype).removeprefix('torch.')}, {expected.device}"
    at = f" at {figures['index']}" if figures["index"] else ""
    if category != "float":
        text = "is {actual}{at}, eager gives {expected} ({wrong} of {elements} elements wrong; {what})"
        return text.format(**figures, at=at, what=what)
    rounded = {key: f"{value:.1e}" for key, value in figures.items() if isinstance(value, float)}
    text = "differs: {unit} error {error}{at}, allowed {allowed} ({what})"
    if "rmse_eager" in figures:
        text += "; RMSE against float64: backend {rmse_compiled}, eager {rmse_eager}"
    return text.format(**{**figures, **rounded}, at=at, what=what)


def distance_between(one: torch.Tensor, two: torch.Tensor) -> float:
    """The norm of the difference in units of the norm of ``two``, over the elements that are finite in both."""
    off = size = 0.0
    for _, (x, y) in _chunks(one, two):
        finite = x.isfinite() & y.isfinite()
        off = math.hypot(off, _norm(_distance(x, y, finite)))
        size = math.hypot(size, _norm(_size(y, finite)))
    return off / (size or 1.0)


def error_of(value: torch.Tensor, exact: torch.Tensor) -> float:
    """The root mean square error in units of that of ``exact``, infinite where a finite number has become inf."""
    return math.inf if (value.isinf() & exact.isfinite()).any() else distance_between(value, exact)


def is_noise(one: torch.Tensor, two: torch.Tensor, error: float = 0.0) -> bool:
    """Whether two runs of eager differ by no more than rounding: floats by the root of their dtype's precision, or ``error``.

    ``error`` is relative: that of one run, where it is known, which autocast makes larger than the dtype tells.
    """
    if not _has_floats(one):
        return torch.equal(one, two)
    noise = size = 0.0
    for _, (x, y) in _chunks(one, two):
        finite = x.isfinite() & y.isfinite()
        if _differ(x, y).any():
            return False
        noise = math.hypot(noise, _norm(_distance(x, y, finite)))
        size = math.hypot(size, _norm(_size(x, finite)))
    return noise <= max(math.sqrt(torch.finfo(one.dtype).eps), error) * size


def are_close(a: torch.Tensor, e: torch.Tensor, relative: float, absolute: float) -> bool:
    """``torch.allclose`` for all dtypes, NaN equal to NaN; integers and bools: equal."""
    if not _has_floats(e):
        return torch.equal(a, e)
    pairs = (pair for _, pair in _chunks(a, e, change=_computable))
    return all(torch.allclose(_parts(x), _parts(y), relative, absolute, equal_nan=True) for x, y in pairs)


def far_apart(one: torch.Tensor, two: torch.Tensor, relative: float, absolute: float) -> torch.Tensor:
    if not _has_floats(two):
        return one != two
    one, wide = _wide(one), _wide(two)
    far = ~torch.isclose(one, wide, relative, absolute, equal_nan=True) | _differ(one, wide)
    return far.to(two.device)


def largest(value: torch.Tensor) -> float:
    """The largest finite value of a float tensor, without its sign; 0 when there is none, and for other dtypes."""
    if not (_has_floats(value) and value.numel()):
        return 0.0
    return max(float(_size(part, part.isfinite()).max()) for _, (part,) in _chunks(value, change=_computable))


def _factor(elements: int, dtype: torch.dtype) -> float:
    if elements <= TINY:
        return FACTOR_TINY
    return FACTOR_NOISY if elements < NOISY_BELOW or dtype in (torch.float16, torch.bfloat16) else FACTOR


def _number(value: torch.Tensor) -> Any:
    number = value.item()
    return str(number) if isinstance(number, complex) else _finite(number)


def _has_floats(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _computable(value: torch.Tensor) -> torch.Tensor:
    """``value`` where torch has all arithmetic: narrow floats as float32, and on the CPU when a device lacks float64."""
    value = value.cpu() if value.device.type == "mps" else value
    if not _has_floats(value) or torch.finfo(value.dtype).bits >= 32:
        return value
    return value.to(torch.complex64 if value.is_complex() else torch.float32)


def _wide(value: torch.Tensor) -> torch.Tensor:
    if not _has_floats(value):
        return value
    return _computable(value).to(torch.complex128 if value.is_complex() else torch.float64)


def _distance(x: torch.Tensor, y: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    """How far apart two wide tensors are, in float64, 0 outside ``where``; integers that differ are 1 apart or more."""
    if _has_floats(x):
        return torch.where(where, (x - y).abs(), 0.0)
    return torch.where(where & (x != y), (x.double() - y.double()).abs().clamp(min=1.0), 0.0)


def _size(x: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    return torch.where(where, x.abs() if _has_floats(x) else x.double().abs(), 0.0)


def _ratio(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.where((x > 0) & y.isfinite(), x / y, 0.0)


def _differ(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Where two tensors have other NaN or inf; the finite part of a complex number that is not finite may be off by ``BETTER``."""
    one, two = (torch.where(z.isfinite().unsqueeze(-1), 0.0, _parts(z).double()) for z in (x, y))
    return ~torch.isclose(one, two, BETTER, BETTER, equal_nan=True).all(-1)


def _parts(x: torch.Tensor) -> torch.Tensor:
    """The numbers of each element, in a last dimension: a real one, or a real and an imaginary part."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x.unsqueeze(-1)


def _agrees(a: torch.Tensor, reference: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Where ``a`` is NaN or inf as float64 rounded to ``dtype`` is, or both are finite and near each other."""
    rounded = _wide(reference.to(dtype))
    finite = a.isfinite() & reference.isfinite()
    near = _distance(a, reference, finite) <= BETTER * (1 + _size(reference, finite))
    return near & ~_differ(a, rounded)


def _chunks(
    *tensors: torch.Tensor | None, change: Callable[..., Any] | None = None
) -> Iterator[tuple[int, Any]]:
    flat = [None if tensor is None else tensor.reshape(-1) for tensor in tensors]
    for start in range(0, next(tensor.numel() for tensor in flat if tensor is not None), CHUNK):
        parts = (None if tensor is None else tensor[start : start + CHUNK] for tensor in flat)
        yield start, [None if part is None else (change or _wide)(part) for part in parts]


def _rms(x: torch.Tensor) -> float:
    total = 0.0
    for _, (part,) in _chunks(x):
        total = math.hypot(total, _norm(_size(part, part.isfinite())))
    return total / math.sqrt(max(x.numel(), 1))


def _norm(x: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(x))


def _finite(number: float) -> Any:
    return number if math.isfinite(number) else str(number)
