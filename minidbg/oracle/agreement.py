"""Holds a compiled run against eager's. Embedded in standalone scripts of kind accuracy, after the comparison itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from minidbg.oracle.compare import layout_difference, mismatch, snapshot
from minidbg.oracle.reruns import random_states, to_float64
from minidbg.oracle.undefined import OtherAnswers

MOST_MARGIN = 10.0


def margin_for(figures: Mapping[str, Any]) -> float:
    """How many times more than allowed a smaller graph must be off, for reduction not to drift into rounding noise.

    ``figures`` are those of the whole graph's wrong results; of other failures they are empty, and the margin is 1.
    """
    excess = float(figures.get("excess", 1.0))
    return min(MOST_MARGIN, max(1.0, math.sqrt(excess)))


# --- embedded from here ---

MOST_ANSWERS = 8  # eager runs with other answers; an element that changes in none of them is judged


def differ(
    actual: dict[str, Any],
    expected: dict[str, Any],
    eager: Callable[..., dict[str, Any]],
    case: dict[str, Any],
    notes: list[str],
) -> dict[str, Any] | None:
    """The first difference that counts, or None. ``eager`` runs the model again: changed, or with another seed.

    Of ``case`` it reads ``tolerances`` (dtype name or ``any`` to [relative, absolute]) and ``margin`` (how many times more
    than allowed is asked for; 1 in scripts), and ``signature``: a layout differs only where that is the failure looked for.
    ``notes`` hears what was not judged.
    """
    left = left_by(actual), left_by(expected)
    others = OtherRuns(eager)

    def in_float64() -> Any:
        try:
            return left_by(eager(to_float64))
        except Exception:  # noqa: BLE001 - not every program has a float64 form; then there is no reference
            return None

    found = mismatch(
        *left,
        in_float64,
        eager_again=others.again,
        other_answers=others,
        tolerances=case.get("tolerances"),
        margin=case.get("margin", 1.0),
        notes=notes,
    )
    layout = found is None and (case.get("signature") or {}).get("message") == "output: stride"
    return layout_difference(*left) if layout else found


class OtherRuns:
    """Eager runs with other answers where torch leaves them open, each made when it is first asked for."""

    def __init__(self, eager: Callable[..., dict[str, Any]]) -> None:
        self.eager = eager
        self.met: dict[str, None] = {}
        self.runs: list[Any] = []
        self.number = 0

    def again(self) -> Any:
        """Eager with another seed; None where it draws no numbers and something is open, which is judged by element.

        Where nothing is open, which this run finds out, no other run is needed.
        """
        mode = OtherAnswers()
        torch.manual_seed(1)
        states = random_states()
        try:
            run = left_by(self.eager(mode.applied_to, seed=1))
        except Exception:  # noqa: BLE001 - the program may not bear another answer: an index out of bounds
            return left_by(self.eager(seed=1))
        if not mode.met:
            self.number = MOST_ANSWERS
            return run
        return None if all(map(torch.equal, states, random_states())) else left_by(self.eager(seed=1))

    def __iter__(self) -> Iterator[Any]:
        yield from self.runs
        while self.number < MOST_ANSWERS:
            mode = OtherAnswers(self.number)
            self.number += 1
            try:
                self.runs.append(left_by(self.eager(mode.applied_to)))
            except Exception:  # noqa: BLE001 - as above
                continue
            self.met |= mode.met
            yield self.runs[-1]


def left_by(run: dict[str, Any]) -> Any:
    """All that a run left behind, as leaves to compare."""
    return snapshot(run["outputs"], run["inputs_after"], run["gradients"])
