"""What is wrong is called wrong, what is right is left alone: the programs of tests/planted/verdict_rows.py.

Each claim is one test, which lists the rows that fail. What each row gives is printed by
``python tests/property/test_verdict.py [PART OF A CLAIM ...]``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "planted")]

from spoiled import Row, in_float64, is_silent, is_wrong_result, text_of
from support.rotating import day
from verdict_rows import HEALTHY, PLAIN, WRONG

PARTS = 9
"""Days in which the default suite has asked each program; CI asks all of them each time."""


def failing(rows: Iterable[Row], expected: Callable[[Any], bool], way: Any = None) -> list[str]:
    outcomes = ((row, row.outcome(way)) for row in rows)
    return [f"{row}: {text_of(outcome)}" for row, outcome in outcomes if not expected(outcome)]


def is_no_alarm(outcome: Any) -> bool:
    return is_silent(outcome) or "memory" in outcome.reason


def grossly_wrong(run: Any, names: list[str], args: list[Any]) -> Any:
    """All results off by a hundred times their size; integers by a hundred, bools flipped."""

    def changed(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.numel():
            return value
        if value.dtype is torch.bool:
            return ~value
        if not (value.is_floating_point() or value.is_complex()):
            return value + 100
        return value + 100 * (1 + value.detach().abs().nan_to_num(posinf=0.0).amax())

    return tuple(map(changed, run(*args)))


# of a whole number about which rounding decides nobody can say how far it may move: it may be an index
# AOTAutograd's own backward refuses that of 7.3, also without us (torch 2.14)
THROUGH_INDUCTOR = [row for row in (*HEALTHY, *WRONG) if row.reading != "7.3"]
AT_EDGES = ("a count at a near tie", "places in steps of a tenth")
GROSS = [row for row in HEALTHY if row.reading != "6b.2" and row.name not in AT_EDGES]
CLAIMS: dict[str, tuple[list[Row], Callable[[Any], bool], Any]] = {
    "a wrong result is found whatever lies beside it": (WRONG, is_wrong_result, None),
    "a wrong result is found with nothing beside it": (PLAIN, is_wrong_result, None),
    "a healthy result is silent": (HEALTHY, is_no_alarm, None),
    "a gross error in a healthy program is found": (GROSS, is_wrong_result, grossly_wrong),
    "programs of wrong results are silent in wider arithmetic": ([*WRONG, *PLAIN], is_silent, in_float64),
    "programs are silent through inductor": (THROUGH_INDUCTOR, is_no_alarm, "inductor"),
}


@pytest.mark.parametrize("claim", list(CLAIMS)[:4])
def test_a_part_of_the_programs_which_is_another_one_each_day(claim: str) -> None:
    rows, expected, way = CLAIMS[claim]
    assert failing(rows[day() % PARTS :: PARTS], expected, way) == []


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("claim", CLAIMS)
def test_all_programs(claim: str) -> None:
    rows, expected, way = CLAIMS[claim]
    assert failing(rows, expected, way) == []


def main() -> None:
    words = sys.argv[1:]
    for claim, (rows, expected, way) in CLAIMS.items():
        if words and not any(word in claim for word in words):
            continue
        passed, began = 0, time.monotonic()
        for row in rows:
            outcome = row.outcome(way)
            passed += expected(outcome)
            print(f"{'ok    ' if expected(outcome) else 'FAILS '} {row}: {text_of(outcome)}", flush=True)
        print(f"{claim}: {passed} of {len(rows)} in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
