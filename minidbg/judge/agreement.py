"""The comparison of two runs, one of a backend and one of eager: the only one there is, for cases, scripts and calls of a program."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from minidbg.judge.arithmetic import distance_between
from minidbg.judge.compare import Difference, form_difference, mismatch
from minidbg.judge.ensemble import Eager, ensemble_of, left_by
from minidbg.words.run_spec import RunSpec

MOST_MARGIN = 10.0


def margin_for(figures: Mapping[str, Any]) -> float:
    """How many times more than allowed a smaller graph must be off, for reduction not to drift into rounding noise.

    ``figures`` are those of the whole graph's wrong results; of other failures they are empty, and the margin is 1.
    """
    excess = float(figures.get("excess", 1.0))
    return min(MOST_MARGIN, max(1.0, math.sqrt(excess)))


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a run of a backend left behind (``actual``) beside one of eager from the same state (``expected``)."""

    actual: dict[str, Any]
    expected: dict[str, Any]
    eager: Eager
    """Runs the model again: changed, or with another seed."""
    spec: RunSpec

    def difference(self, notes: list[str]) -> Difference | None:
        """The first difference that no legal run of eager explains, or None. ``notes`` hears what is not judged."""
        actual, expected = left_by(self.actual), left_by(self.expected)
        ensemble = ensemble_of(self.eager, expected)
        return mismatch(actual, expected, ensemble, self.spec, notes)

    def difference_of_two_runs(self) -> Difference | None:
        return mismatch(left_by(self.actual), left_by(self.expected), spec=self.spec)

    def difference_of_form(self) -> Difference | None:
        return form_difference(left_by(self.actual), left_by(self.expected))


def error_of(value: torch.Tensor, exact: torch.Tensor) -> float:
    """The root mean square error in units of that of ``exact``, infinite where a finite number has become inf."""
    return math.inf if (value.isinf() & exact.isfinite()).any() else distance_between(value, exact)
