"""Holds a compiled run against eager's. Embedded in repro scripts of kind accuracy, after the comparison itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from minidbg.oracle.compare import layout_difference, mismatch, snapshot
from minidbg.oracle.reruns import disturbed, to_float64

MOST_MARGIN = 10.0


def margin_for(figures: Mapping[str, Any]) -> float:
    """How many times more than allowed a smaller graph must be off, for reduction not to drift into rounding noise.

    ``figures`` are those of the whole graph's wrong results; of other failures they are empty, and the margin is 1.
    """
    excess = float(figures.get("excess", 1.0))
    return min(MOST_MARGIN, max(1.0, math.sqrt(excess)))


# --- embedded from here ---


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

    def in_float64() -> Any:
        try:
            return left_by(eager(to_float64))
        except Exception:  # noqa: BLE001 - not every program has a float64 form; then there is no reference
            return None

    found = mismatch(
        *left,
        in_float64,
        eager_again=lambda: left_by(eager(disturbed, seed=1)),
        tolerances=case.get("tolerances"),
        margin=case.get("margin", 1.0),
        notes=notes,
    )
    layout = found is None and (case.get("signature") or {}).get("message") == "output: stride"
    return layout_difference(*left) if layout else found


def left_by(run: dict[str, Any]) -> Any:
    """All that a run left behind, as leaves to compare."""
    return snapshot(run["outputs"], run["inputs_after"], run["gradients"])
