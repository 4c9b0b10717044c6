"""Holds a compiled run against eager's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from minidbg.judge.arithmetic import _has_floats, _rms, are_close, distance_between, far_apart
from minidbg.judge.compare import _same_but_for_rounding, layout_difference, mismatch
from minidbg.judge.precision import (
    DROPPED_BITS,
    LowerPrecision,
    RoundingNoise,
    MonteCarloArithmetic,
    random_states,
    to_float64,
)
from minidbg.judge.snapshot import CannotCompare, _can_stand_for, snapshot
from minidbg.judge.undefined import UndefinedResults, ZeroFilled
from minidbg.torch_internals.thread_state import thread_state_kept
from minidbg.words.outcome import LAYOUT
from minidbg.words.run_spec import RunSpec

MOST_MARGIN = 10.0
NEAR = 4.0  # an error that many times smaller or larger has another reason than the precision


def margin_for(figures: Mapping[str, Any]) -> float:
    """How many times more than allowed a smaller graph must be off, for reduction not to drift into rounding noise.

    ``figures`` are those of the whole graph's wrong results; of other failures they are empty, and the margin is 1.
    """
    excess = float(figures.get("excess", 1.0))
    return min(MOST_MARGIN, max(1.0, math.sqrt(excess)))


def explaining_precision(
    actual: dict[str, Any], expected: dict[str, Any], eager: Callable[..., dict[str, Any]], where: str
) -> tuple[str, float, float] | None:
    """The precision whose arithmetic gives errors like those in leaf ``where``, and its relative error and the actual one.

    Of those that explain all differences, the one whose error is nearest. None where none is near, or a leaf is wrong
    by more; an inf counts where eager in that precision gives it too.
    """
    a, e = (left_by(run)[where].value for run in (actual, expected))
    if not (isinstance(a, torch.Tensor) and isinstance(e, torch.Tensor) and e.dtype is torch.float32):
        return None
    off, found = error_of(a, e), []
    for precision in DROPPED_BITS:
        low: Any = next(lower_runs(eager, precision), {})
        value = low[where].value if where in low else None
        if isinstance(value, torch.Tensor) and value.shape == e.shape:
            own = error_of(value, e)
            ratio = 1.0 if own == off else off / (own or math.inf)
            if off and 1 / NEAR < ratio < NEAR:
                found.append((abs(math.log(ratio)), precision, own, off))
    for _, precision, own, off in sorted(found):
        if difference(actual, expected, eager, [], tolerances=precision) is None:
            return precision, own, off
    return None


def error_of(value: torch.Tensor, exact: torch.Tensor) -> float:
    """The root mean square error in units of that of ``exact``, infinite where a finite number has become inf."""
    return math.inf if (value.isinf() & exact.isfinite()).any() else distance_between(value, exact)


FEW_ELEMENTS = 1000  # in more of them two seeds do not agree by chance
MOST_SEEDS = 12  # a coin shows one side as often by chance, once in 2,000 graphs
MOST_LOWER = 3  # eager runs in a lower precision; one alone may be exact by luck
MOST_ANSWERS = 8  # eager runs with other answers; an element that changes in none of them is judged
NO_MOVE = 1e-5  # sums in another order, relative
FEW_ROUNDINGS = 4  # eager runs with other rounding errors, when nothing in them moves


def differ(
    actual: dict[str, Any],
    expected: dict[str, Any],
    eager: Callable[..., dict[str, Any]],
    spec: RunSpec,
    notes: list[str],
) -> dict[str, Any] | None:
    """The first difference that counts, or None. A layout differs only where that is the failure that ``spec`` looks for."""
    found = difference(actual, expected, eager, notes, tolerances=spec.tolerances, margin=spec.margin)
    layout = found is None and spec.signature is not None and spec.signature.message == LAYOUT
    return layout_difference(left_by(actual), left_by(expected)) if layout else found


def difference(
    actual: dict[str, Any],
    expected: dict[str, Any],
    eager: Callable[..., dict[str, Any]],
    notes: list[str],
    *,
    tolerances: Any,
    margin: float = 1.0,
) -> dict[str, Any] | None:
    """The first difference of values that counts, or None. ``eager`` runs the model again: changed, or with another seed.

    ``tolerances`` and ``margin`` are those of a RunSpec. ``notes`` hears what was not judged.
    """
    left = left_by(actual), left_by(expected)
    others = OtherRuns(eager, left[1])
    lower = lower_runs(eager, tolerances) if isinstance(tolerances, str) else rounded_runs(eager)
    return mismatch(
        *left,
        lambda: changed_run(eager, to_float64),
        eager_again=others.again,
        other_answers=others,
        other_roundings=Runs(other_roundings(others)),
        lower=Runs(lower),
        tolerances=tolerances,
        margin=margin,
        notes=notes,
    )


class Runs:
    """Runs of eager, each made when it is first asked for."""

    def __init__(self, made: Iterator[Any]) -> None:
        self.made = made
        self.known: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        yield from self.known
        for run in self.made:
            self.known.append(run)
            yield run


class OtherRuns(Runs):
    """Eager runs with other answers where torch leaves them open.

    They differ from ``expected`` only where another answer shows: kernels that such a run takes for others have other rounding errors.
    """

    def __init__(self, eager: Callable[..., dict[str, Any]], expected: Any) -> None:
        super().__init__(self.with_other_answers())
        self.eager, self.expected = eager, expected
        self.met: dict[str, None] = {}
        self.is_open = self.decides = self.narrow = True

    def again(self) -> Any:
        """Eager with another seed; None where it draws no numbers and something is open, which is judged by element.

        Where nothing is open, which this run finds out, no other run is needed.
        """
        mode = UndefinedResults()
        torch.manual_seed(1)
        states = random_states()
        if (run := changed_run(self.eager, mode.applied_to, seed=1)) is None:
            torch.manual_seed(1)
            try:
                return left_by(self.eager(seed=1))
            except Exception as error:
                if all(map(torch.equal, states, random_states())):
                    raise
                raise CannotCompare("it draws random numbers, and eager fails with others") from error
        self.decides, self.narrow, self.is_open = mode.decides, mode.narrow, bool(mode.met)
        draws = not all(map(torch.equal, states, random_states()))
        if not self.is_open:
            return self.with_more_seeds(run) if draws else run
        return self.with_more_seeds(left_by(self.eager(seed=1))) if draws else None

    def with_more_seeds(self, found: Any) -> Any:
        """``found``, with values of other seeds where it has the expected ones: two draws of few possible numbers are often equal."""
        for seed in range(2, MOST_SEEDS):
            rest = [where for where, leaf in found.items() if is_like(leaf, self.expected.get(where))]
            if not rest:
                break
            if (run := changed_run(self.eager, seed=seed)) is None:
                break
            found = {**found, **{where: run[where] for where in rest if where in run}}
        return found

    def with_other_answers(self) -> Iterator[Any]:
        usual = None
        for number in range(MOST_ANSWERS if self.is_open else 0):
            mode = UndefinedResults(number)
            usual = usual or changed_run(self.eager, ZeroFilled().applied_to)  # type: ignore[no-untyped-call]
            if usual and (run := changed_run(self.eager, mode.applied_to)):
                self.met |= mode.met
                yield what_moved(run, usual, self.expected, NO_MOVE)


def other_roundings(others: OtherRuns) -> Iterator[Any]:
    """Eager runs with other rounding errors; none where no op decides by a float.

    What moves no more than its rounding errors explain is put back: what differs from eager's was decided by rounding.
    """
    expected, number = others.expected, 0
    most = FEW_ROUNDINGS if others.decides else 0
    while number < most:
        number += 1
        mode = RoundingNoise(number)
        if (run := changed_run(others.eager, mode.applied_to)) is None:
            continue
        run = what_moved(run, expected, expected, math.sqrt(mode.step))
        if any(leaf is not expected.get(where) for where, leaf in run.items()):
            most = MOST_ANSWERS
        yield run


def what_moved(run: Any, base: Any, expected: Any, bound: float) -> Any:
    """``run`` with the expected values where it is not far from ``base``: off by less than ``bound``, in units of value and tensor."""
    return {
        where: substitute_where_far(leaf, base.get(where), expected.get(where), bound)
        for where, leaf in run.items()
    }


def substitute_where_far(leaf: Any, base: Any, expected: Any, bound: float) -> Any:
    """One leaf of ``what_moved``; ``expected`` itself where nothing is far."""
    if not (base and expected):
        return leaf
    value, usual, wanted = leaf.value, base.value, expected.value
    if isinstance(value, float) and isinstance(usual, float):
        return expected if abs(value - usual) <= bound * abs(usual) else leaf
    if _same_but_for_rounding(value, usual):
        return expected
    if not (_has_floats(value) and _can_stand_for(usual, value) and _can_stand_for(wanted, value)):
        return leaf
    far = far_apart(value, usual, bound, bound * _rms(usual))
    return leaf._replace(value=torch.where(far, value, wanted)) if far.any() else expected


def lower_runs(eager: Callable[..., dict[str, Any]], precision: str) -> Iterator[Any]:
    """Eager runs in a lower precision, whose errors are allowed as eager's own."""
    for number in range(MOST_LOWER):
        mode = LowerPrecision(precision, number)
        with mode:  # around backward too
            run = changed_run(eager, mode.changed)
        if run is None:
            return
        yield run


def rounded_runs(eager: Callable[..., dict[str, Any]]) -> Iterator[Any]:
    """Eager runs whose last bits are rounded at random (Monte Carlo arithmetic): one run of eager may be exact by luck.

    Above all where large numbers cancel: the gradient of a bias that a normalization takes away again is rounding alone.
    """
    for number in range(MOST_LOWER):
        mode = MonteCarloArithmetic(number)
        with mode:
            run = changed_run(eager, mode.changed)
        if run is None:
            return
        yield run


def changed_run(eager: Callable[..., dict[str, Any]], *change: Any, **seed: int) -> Any:
    """What eager leaves behind; None where the program does not bear the change: no float64 form, an index out of bounds."""
    with thread_state_kept():  # also what a frame of the failed run had held open
        try:
            return left_by(eager(*change, **seed))
        except Exception:  # noqa: BLE001 - whatever an op says
            return None


def is_like(leaf: Any, expected: Any) -> bool:
    """Whether a small output of another run has the expected values."""
    one, two = leaf.value, expected.value if expected else None
    if leaf.kind == "output" and isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        return two.numel() <= FEW_ELEMENTS and _can_stand_for(one, two) and are_close(one, two, 0.0, 0.0)
    return isinstance(one, (bool, int, float)) and type(one) is type(two) and one == two


def left_by(run: dict[str, Any]) -> Any:
    """All that a run left behind, as leaves to compare."""
    return snapshot(run["outputs"], run["inputs_after"], run["gradients"])
