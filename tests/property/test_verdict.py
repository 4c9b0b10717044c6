"""What is wrong is called wrong, what is right is left alone: the programs of tests/planted/verdict_rows.py.

Each table is one test, which lists the rows that fail. What each row gives is printed by
``python tests/property/test_verdict.py [wrong plain healthy gross wider inductor]``.
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

from support.spoiled import Row, in_float64, is_silent, is_wrong_result, text_of
from verdict_rows import HEALTHY, PLAIN, WRONG


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


def test_a_wrong_result_is_found_whatever_lies_beside_it() -> None:
    assert failing(WRONG, is_wrong_result) == []


def test_a_wrong_result_is_found_with_nothing_beside_it() -> None:
    assert failing(PLAIN, is_wrong_result) == []


def test_a_healthy_result_is_silent() -> None:
    assert failing(HEALTHY, is_no_alarm) == []


def test_a_gross_error_in_a_healthy_program_is_found() -> None:
    # of a whole number about which rounding decides nobody can say how far it may move: it may be an index
    rows = [row for row in HEALTHY if row.reading != "6b.2" and row.name != "a count at a near tie"]
    assert failing(rows, is_wrong_result, grossly_wrong) == []


@pytest.mark.slow
def test_the_programs_of_wrong_results_are_silent_in_wider_arithmetic() -> None:
    assert failing([*WRONG, *PLAIN], is_silent, in_float64) == []


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_programs_are_silent_through_inductor() -> None:
    assert failing([*HEALTHY, *WRONG], is_no_alarm, "inductor") == []


def main() -> None:
    words = sys.argv[1:]
    kinds: list[tuple[str, list[Row], Any, Callable[[Any], bool]]] = [
        ("wrong", WRONG, None, is_wrong_result),
        ("plain", PLAIN, None, is_wrong_result),
        ("healthy", HEALTHY, None, is_no_alarm),
        ("gross", HEALTHY, grossly_wrong, is_wrong_result),
        ("wider", [*WRONG, *PLAIN], in_float64, is_silent),
        ("inductor", [*HEALTHY, *WRONG], "inductor", is_no_alarm),
    ]
    for kind, rows, way, expected in kinds:
        if kind not in (words or ["wrong", "plain", "healthy", "gross", "wider"]):
            continue
        passed, began = 0, time.monotonic()
        for row in rows:
            outcome = row.outcome(way)
            passed += expected(outcome)
            word = "ok    " if expected(outcome) else "FAILS "
            print(f"{word} {kind:8} {row}: {text_of(outcome)}", flush=True)
        print(f"{kind}: {passed} of {len(rows)} in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
