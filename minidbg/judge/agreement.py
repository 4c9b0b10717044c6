"""Holds a compiled run against eager's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from minidbg.judge.arithmetic import distance_between
from minidbg.judge.compare import USUAL, Difference, layout_difference, mismatch
from minidbg.judge.ensemble import Eager, ensemble_of, left_by, lower_runs
from minidbg.judge.precision import DROPPED_BITS, LowerPrecision
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
    actual: dict[str, Any], expected: dict[str, Any], eager: Eager, where: str
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
        low: Any = next(lower_runs(eager, partial(LowerPrecision, precision)), {})
        value = low[where].value if where in low else None
        if isinstance(value, torch.Tensor) and value.shape == e.shape:
            own = error_of(value, e)
            ratio = 1.0 if own == off else off / (own or math.inf)
            if off and 1 / NEAR < ratio < NEAR:
                found.append((abs(math.log(ratio)), precision, own, off))
    for _, precision, own, off in sorted(found):
        if differ(actual, expected, eager, replace(USUAL, tolerances=precision), []) is None:
            return precision, own, off
    return None


def error_of(value: torch.Tensor, exact: torch.Tensor) -> float:
    """The root mean square error in units of that of ``exact``, infinite where a finite number has become inf."""
    return math.inf if (value.isinf() & exact.isfinite()).any() else distance_between(value, exact)


def differ(
    actual: dict[str, Any],
    expected: dict[str, Any],
    eager: Eager,
    spec: RunSpec,
    notes: list[str],
) -> Difference | None:
    """The first difference that counts, or None. A layout differs only where that is the failure that ``spec`` looks for.

    ``eager`` runs the model again: changed, or with another seed. ``notes`` hears what was not judged.
    """
    one, two = left_by(actual), left_by(expected)
    precision = spec.tolerances if isinstance(spec.tolerances, str) else None
    found = mismatch(one, two, ensemble_of(eager, two, precision), spec, notes)
    layout = found is None and spec.signature is not None and spec.signature.message == LAYOUT
    return layout_difference(one, two) if layout else found
