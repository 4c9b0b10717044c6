"""The arithmetic of errors: how far apart tensors are, what is wrong beside eager's own error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Relative and absolute tolerance to eager (assert_close's, but for float64), and the relative one
# against float64, that of scripts: a float32 sum of 1e7 numbers in another order is off by 2e-5.
TOLERANCES = {
    torch.float64: (1e-9, 1e-9, 1e-9),  # less than half a step of float32, which is not to pass
    torch.float32: (1.3e-6, 1e-5, 3e-5),
    torch.bfloat16: (1.6e-2, 1e-5, 3.2e-2),
    torch.float16: (1e-3, 1e-5, 2e-3),
}
# How much farther from float64 than eager's the result may be, as in torch._dynamo.utils.same.
FACTOR = 3.0  # root mean square of all elements (scripts: of each); torch has 2 for large ones
FACTOR_TINY = 10.0  # the same for at most TINY elements: eager may be exact by luck
TINY = 10
FACTOR_PEAK = 10.0  # and each element against the worst one like it: a mean hides a single one
LIKE = 10  # binary orders by which the own errors of elements like each other differ: 1,024 times
ENOUGH_RUNS = 8  # with other rounding, to see where edges are
ROUNDINGS = 16  # at most, of each element alone: products have them, sums that cancel have not
STEPS = 4  # that an element in memory may be off, else other runs are asked: updates are small
EXPONENTS = 2200  # more than float64 has binary exponents
BETTER = 4e-2  # relative error against float64 that is allowed where only eager is NaN or inf
ABOUT_0 = 1e-3  # in units of the tensor: beside such a value a relative error says nothing
CHUNK = 1 << 20  # elements judged at a time, so that float64 copies stay small


class Elements(NamedTuple):
    wrong: dict[str, Any] | None
    """Category (nan, inf, integer, bool, float), worst element, figures, ``text``; or None."""
    decided: int
    """How many differ and are not judged: in eager too, rounding decides about them."""


def wrong_elements(
    actual: Tensor,
    expected: Tensor,
    tolerance: tuple[float, float, float],
    reference: Tensor | None = None,
    runs: Sequence[Tensor] = (),
    margin: float = 1.0,
    decided_from: float = math.inf,
    mixes: bool = True,
) -> Elements:
    """Which elements, or a whole tensor, are farther from float64 than eager's own error allows.

    ``reference`` is the result in float64, ``runs`` are what eager gives with other rounding.
    ``excess`` in the answer says how many times more than allowed the worst element is off; wrong
    are elements with more than ``margin``. Rounding decides about an element where these runs
    differ by more than ``decided_from``, in units of the element and of the tensor. Where the
    program ``mixes`` elements, a small one may have the rounding errors of usual ones.
    """
    relative, absolute, rounding = tolerance
    usual = _rms(expected) if _has_floats(expected) else 0.0
    # nothing tells whose rounding it is: eager counts as exact, within the size of the tensor
    near = rounding, absolute + (rounding * usual if reference is None else 0.0)
    others = [run for run in (reference, *runs) if run is not None]
    values = actual, expected, expected if reference is None else reference, *others
    # of a tensor of rounding errors alone rounding decides nothing: they are judged by their size
    for least in (decided_from, math.inf):
        own = _OwnError(least, usual, expected.dtype, len(runs))
        own.floor *= mixes
        for _, (a, e, r, *rest) in _chunks(*values):
            own.add(a, e, r, rest)
        if not (_has_floats(expected) and 2 * own.whole > usual * math.sqrt(expected.numel())):
            break
    is_updated = relative <= STEPS * own.eps and own.whole <= ROUNDINGS * own.eps * own.size
    if reference is not None and (own.is_of_roundings or is_updated):
        near = min(near[0], ROUNDINGS * own.eps), near[1]
    factor = FACTOR if expected.numel() > TINY else FACTOR_TINY
    mean = near if relative else (near[0] / ROUNDINGS, near[1])  # float8: few are one step off
    compiled, eager, whole = own.as_a_whole(factor, mean)
    wrong, odd, decided, once = _Count(), _Count(), 0, 0
    for start, (a, e, r, *rest) in _chunks(*values):
        finite, r = a.isfinite() & e.isfinite(), torch.where(r.isfinite(), r, e)
        known = finite & r.isfinite()
        off, size = _distance(a, e, finite), _size(e, finite)
        excess = _ratio(off, relative * size + absolute)
        error, peak, is_decided = own.allowed(e, rest)
        if _has_floats(e):
            allowed = near[0] * _size(r, known) + near[1] + FACTOR_PEAK * peak
            from_float64 = _ratio(_distance(a, r, known), allowed)
            as_a_whole = torch.full_like(off, whole).masked_fill(is_decided, 0.0)
            explained = torch.minimum(excess, torch.maximum(from_float64, as_a_whole))
            excess = torch.where(known, explained, excess)
        elif expected.dtype in (torch.bool, torch.int64):  # of indices: they have no distance
            excess = excess.masked_fill(is_decided, 0.0)
        else:
            excess = torch.where(is_decided, _ratio(off, FACTOR_PEAK * error), excess)
        decided += int((is_decided & (off > 0) & (excess <= margin)).sum())
        wrong.add(start, excess, off, margin)
        if not finite.all():
            differs = _differ(a, e)
            for other in rest:
                differs &= ~_agrees(a, other, expected.dtype)
            numbers = torch.stack([x.isfinite() for x in (e, *rest[len(rest) - len(runs) :])])
            at_pole = differs & numbers.any(0) & ~numbers.all(0)
            decided, differs = decided + int(at_pole.sum()), differs & ~at_pole
            once += int(((numbers != numbers[0]).sum(0) == 1).sum())
            odd.add(start, torch.where(differs, math.inf, 0.0), differs.double(), margin)
    if len(runs) >= ENOUGH_RUNS and odd.number <= once:
        decided, odd = decided + odd.number, _Count()
    if not (wrong.number or odd.number):
        return Elements(None, decided)
    # what there is more of: memory that is read by mistake may hold a NaN or not
    if odd.number > wrong.number:
        category, worst = "inf", odd
    else:
        category, worst = "float" if _has_floats(expected) else "integer", wrong
        category = "bool" if expected.dtype is torch.bool else category
    at = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst.index), expected.shape))
    value, wanted = actual[at], expected[at]
    if category == "inf" and (value.isnan() or wanted.isnan()):
        category = "nan"
    figures = {"index": list(at), "actual": _number(value), "expected": _number(wanted)}
    figures |= {"excess": _finite(worst.most), "wrong": worst.number, "elements": expected.numel()}
    if category == "float":
        own_size = float(_wide(wanted).abs())
        unit, scale = ("relative", own_size) if own_size > ABOUT_0 * usual else ("absolute", 1.0)
        away = float((_wide(value) - _wide(wanted)).abs()) / scale
        figures |= {"unit": unit, "error": _finite(away), "allowed": _finite(worst.allowed / scale)}
    if reference is not None and worst is wrong:
        figures |= {"rmse_compiled": _finite(compiled), "rmse_eager": _finite(eager)}
    text = _sentence(category, expected, figures)
    return Elements({"category": category, **figures, "text": text}, decided)


class _OwnError:
    """Eager's own error at each element: how far float64 and other roundings are from it at most.

    ``add`` sees all chunks first; ``allowed`` then says of an element the largest own error at
    elements like it: those whose own error is at most ``LIKE`` times larger. Where all elements are
    off by a few roundings of their own, none is allowed more of its own, or than one of a usual
    element where the program ``mixes`` them. Those that rounding decides about (``decided_from``)
    stand for themselves alone; so do some that no run has moved, since they lie at an edge that
    other runs cross: at most as many as those that just one run and the backend have moved.
    """

    def __init__(self, decided_from: float, usual: float, dtype: torch.dtype, runs: int) -> None:
        self.decided_from, self.usual, self.runs = decided_from, usual, runs
        info = torch.finfo(dtype if usual else torch.float64)
        self.eps, self.least = info.eps if usual else 0.0, info.tiny  # no step is smaller below it
        self.floor = usual * self.eps
        self.peaks, self.reaches = torch.zeros(2, EXPONENTS, dtype=torch.float64)
        """The largest own error by its binary exponent, and by its element's; first that of 0."""
        self.moved_once, self.unseen = 0, 0.0  # by one run and the backend; by the backend alone
        self.relative = 0.0  # the largest own error in units of its element
        self.compiled = self.eager = self.of_eager = self.size = 0.0
        self.number, self.whole = 0, 0.0

    def of(self, e: Tensor, others: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The own error of each element, and whether rounding decides about it."""
        error = torch.zeros(e.shape, dtype=torch.float64, device=e.device)
        for other in others:
            error = torch.maximum(error, _distance(other, e, e.isfinite() & other.isfinite()))
        for run in others[len(others) - self.runs :]:  # as large as it is where one has no number
            error = torch.maximum(error, _size(e, e.isfinite() & ~run.isfinite()))
        if not _has_floats(e):
            return error, error > 0
        return error, error > self.decided_from * (_size(e, e.isfinite()) + self.usual)

    def add(self, a: Tensor, e: Tensor, r: Tensor, others: Sequence[Tensor]) -> None:
        (error, decided), r = self.of(e, others), torch.where(r.isfinite(), r, e)
        counts = a.isfinite() & e.isfinite() & r.isfinite() & ~decided
        self.number += int(counts.sum())
        self.whole = math.hypot(self.whole, _norm(error))
        self.compiled = math.hypot(self.compiled, _norm(_distance(a, r, counts)))
        self.eager = math.hypot(self.eager, _norm(torch.where(counts, error, 0.0)))
        self.of_eager = math.hypot(self.of_eager, _norm(_distance(e, r, counts)))
        self.size = math.hypot(self.size, _norm(_size(r, counts)))
        runs = (_distance(run, e, e.isfinite()) > 0 for run in others[len(others) - self.runs :])
        moved = _distance(a, e, a.isfinite() & e.isfinite()) > 0
        unseen, once = moved & (error == 0), sum(runs, torch.zeros_like(e, dtype=torch.int8)) == 1
        self.moved_once += int((moved & once).sum())
        self.unseen += int(unseen.sum())
        if e.dtype is torch.int64:  # it may be an index: it is none that no run may give
            least, most = torch.stack([e, *others]).aminmax()
            self.unseen += math.inf if (unseen & ((a < least) | (a > most))).any() else 0.0
        size = _size(e, e.isfinite()).cpu()
        self.reaches.scatter_reduce_(0, _exponents(size), error.cpu(), "amax")
        error = torch.where(counts, error, 0.0).cpu()
        self.peaks.scatter_reduce_(0, _exponents(error), error, "amax")
        self.relative = max(self.relative, float((error / size.clamp(min=self.least)).max()))

    def allowed(self, e: Tensor, others: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Each element's own error, the largest of those like it, and if rounding decides on it."""
        error, decided = self.of(e, others)
        like, size = _largest_like(error, self.peaks), _size(e, e.isfinite())
        if self.is_of_roundings:
            of_roundings = size.clamp(min=self.least) * self.relative
            like = torch.minimum(like, of_roundings.clamp(min=self.floor))
        if self.runs >= ENOUGH_RUNS and self.unseen <= self.moved_once:
            decided |= error == 0
            error = torch.where(error == 0, _largest_like(size, self.reaches) / FACTOR_PEAK, error)
        return error, torch.where(decided, error, like), decided

    @property
    def is_of_roundings(self) -> bool:
        """Whether eager is a few roundings off each element, or exact, in all runs."""
        return self.relative <= ROUNDINGS * self.eps

    def as_a_whole(self, factor: float, near: tuple[float, float]) -> tuple[float, float, float]:
        """Root mean square errors against float64, the backend's and eager's, of elements that
        rounding does not decide about, and how many times more than allowed the backend's is."""
        root = math.sqrt(max(self.number, 1))
        limit = (near[0] * self.size + factor * self.eager) / root + near[1]
        compiled = self.compiled / root
        is_off = compiled == math.inf or compiled > limit == 0
        return compiled, self.of_eager / root, math.inf if is_off else compiled / (limit or 1.0)


def _largest_like(values: Tensor, peaks: Tensor) -> Tensor:
    """The largest of ``peaks`` up to ``LIKE`` exponents above each value's; 0 is alone."""
    exponents = _exponents(values.cpu())
    like = torch.where(exponents > 0, exponents + LIKE, 0).clamp(max=EXPONENTS - 1)
    return torch.cummax(peaks, 0).values[like].to(values.device)


def _exponents(error: Tensor) -> Tensor:
    """The index of each error's binary exponent among ``EXPONENTS``; 0 for no error."""
    exponent = torch.frexp(error.clamp(max=torch.finfo(torch.float64).max)).exponent.long()
    return torch.where(error > 0, exponent + EXPONENTS // 2, 0)


class _Count:
    """How many elements exceed the margin, the most that one exceeds it, and which one is farthest
    beyond what is allowed."""

    def __init__(self) -> None:
        self.number, self.most = 0, 0.0
        self.index, self.allowed, self.farthest = 0, 0.0, 0.0

    def add(self, start: int, excess: Tensor, off: Tensor, margin: float) -> None:
        self.number += int((excess > margin).sum())
        self.most = max(self.most, float(excess.max()))
        beyond = torch.where(excess > margin, off - off / excess, 0.0)
        index = int(beyond.argmax())
        if beyond[index] > self.farthest:
            self.index, self.farthest = start + index, float(beyond[index])
            self.allowed = float(off[index] - beyond[index])


def _sentence(category: str, expected: Tensor, figures: dict[str, Any]) -> str:
    what = f"{str(expected.dtype).removeprefix('torch.')}, {expected.device}"
    at = f" at {figures['index']}" if figures["index"] else ""
    if category != "float":
        text = "is {actual}{at}, eager gives {expected} ({wrong} of {elements} elements wrong; {what})"
        return text.format(**figures, at=at, what=what)
    rounded = {key: f"{value:.1e}" for key, value in figures.items() if isinstance(value, float)}
    text = "differs: {unit} error {error}{at}, allowed {allowed} ({what})"
    # one large element's rounding error in the mean would seem to speak for the backend
    if float(figures.get("rmse_compiled", 0.0)) > float(figures.get("rmse_eager", math.inf)):
        text += "; RMSE against float64: backend {rmse_compiled}, eager {rmse_eager}"
    return text.format(**{**figures, **rounded}, at=at, what=what)


def distance_between(one: Tensor, two: Tensor) -> float:
    """The norm of the difference in units of the norm of ``two``, over elements finite in both."""
    off = size = 0.0
    for _, (x, y) in _chunks(one, two):
        finite = x.isfinite() & y.isfinite()
        off = math.hypot(off, _norm(_distance(x, y, finite)))
        size = math.hypot(size, _norm(_size(y, finite)))
    return off / (size or 1.0)


def are_close(a: Tensor, e: Tensor, relative: float, absolute: float) -> bool:
    """``torch.allclose`` for all dtypes, NaN equal to NaN; integers and bools: equal."""
    if not _has_floats(e):
        return torch.equal(a, e)
    pairs = (map(_real_parts, pair) for _, pair in _chunks(a, e, change=_computable))
    return all(torch.allclose(x, y, relative, absolute, equal_nan=True) for x, y in pairs)


def largest(value: Tensor) -> float:
    """The largest finite value of a float tensor, without sign; 0 if none, and for other dtypes."""
    if not (_has_floats(value) and value.numel()):
        return 0.0
    parts = _chunks(value, change=_computable)
    return max(float(_size(part, part.isfinite()).max()) for _, (part,) in parts)


def _number(value: Tensor) -> Any:
    number = value.item()
    return str(number) if isinstance(number, complex) else _finite(number)


def _has_floats(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _computable(value: Tensor) -> Tensor:
    """``value`` for any arithmetic: narrow floats as float32, on the CPU if float64 is lacking."""
    value = value.cpu() if value.device.type == "mps" else value
    if not _has_floats(value) or torch.finfo(value.dtype).bits >= 32:
        return value
    return value.to(torch.complex64 if value.is_complex() else torch.float32)


def _wide(value: Tensor) -> Tensor:
    if not _has_floats(value):
        return value
    return _computable(value).to(torch.complex128 if value.is_complex() else torch.float64)


def _distance(x: Tensor, y: Tensor, where: Tensor) -> Tensor:
    """The distance of two wide tensors, in float64, 0 outside ``where``; unequal integers: >= 1."""
    if _has_floats(x):
        return torch.where(where, (x - y).abs(), 0.0)
    return torch.where(where & (x != y), (x.double() - y.double()).abs().clamp(min=1.0), 0.0)


def _size(x: Tensor, where: Tensor) -> Tensor:
    return torch.where(where, x.abs() if _has_floats(x) else x.double().abs(), 0.0)


def _ratio(x: Tensor, y: Tensor) -> Tensor:
    return torch.where((x > 0) & y.isfinite(), x / y, 0.0)


def _differ(x: Tensor, y: Tensor) -> Tensor:
    """Where two tensors have other NaN or inf; the finite part of a complex number that is not
    finite may be off by ``BETTER``."""
    one, two = (torch.where(z.isfinite()[..., None], 0.0, _real_parts(z).double()) for z in (x, y))
    return ~torch.isclose(one, two, BETTER, BETTER, equal_nan=True).all(-1)


def _real_parts(x: Tensor) -> Tensor:
    """Each element's numbers, in a last dimension: one if real, else real and imaginary part."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x.unsqueeze(-1)


def _agrees(a: Tensor, reference: Tensor, dtype: torch.dtype) -> Tensor:
    """Where ``a`` is NaN or inf as float64 rounded to ``dtype`` is, or both are finite and near."""
    rounded = _wide(reference.to(dtype))
    finite = a.isfinite() & reference.isfinite()
    near = _distance(a, reference, finite) <= BETTER * (1 + _size(reference, finite))
    return near & ~_differ(a, rounded)


def _chunks(*tensors: Tensor | None, change: Callable[..., Any] | None = None) -> Iterator[tuple[int, Any]]:
    flat = [None if tensor is None else tensor.reshape(-1) for tensor in tensors]
    for start in range(0, next(tensor.numel() for tensor in flat if tensor is not None), CHUNK):
        parts = (None if tensor is None else tensor[start : start + CHUNK] for tensor in flat)
        yield start, [None if part is None else (change or _wide)(part) for part in parts]


def _rms(x: Tensor) -> float:
    total = 0.0
    for _, (part,) in _chunks(x):
        total = math.hypot(total, _norm(_size(part, part.isfinite())))
    return total / math.sqrt(max(x.numel(), 1))


def _norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x))


def _finite(number: float) -> Any:
    return number if math.isfinite(number) else str(number)
