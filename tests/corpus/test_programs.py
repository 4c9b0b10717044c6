"""Programs that fail, and what a person then has: the verdict, the signature, the script, and what is said of them."""

from __future__ import annotations

import sys

import pytest

from corpus import running

ROWS = running.rows()


def ask(asked: list[running.Row]) -> None:
    differences, _ = running.failing(asked)
    assert not differences, "\n".join(["", *differences])


@pytest.mark.parametrize("group", sorted({row.group for row in ROWS if row.quick}))
def test_what_comes_of_a_failing_program(group: str) -> None:
    ask([row for row in ROWS if row.group == group and row.quick])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("group", sorted({row.group for row in ROWS if not row.quick}))
def test_what_comes_of_every_failing_program(group: str) -> None:
    ask([row for row in ROWS if row.group == group and not row.quick])


def test_every_program_can_be_asked_here() -> None:
    """Skipped, with the reasons, where some cannot: another torch, no GPU."""
    here = running.torch_of(sys.executable)
    if missing := [why for row in ROWS if (why := row.missing(*here))]:
        pytest.skip("; ".join(missing))


def test_every_answer_belongs_to_a_program() -> None:
    assert sorted(running.PROGRAMS.glob("*/*.txt")) == sorted(row.answers for row in ROWS)
