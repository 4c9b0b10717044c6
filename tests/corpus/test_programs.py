"""Programs that fail, and what a person then has: the verdict, the signature, the script, and what is said of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from corpus import running

ROWS = running.rows()
MOST = 13
"""Rows of a test: three minutes, so that no worker waits long for another one's last test."""


def sittings() -> Iterator[object]:
    """The rows of each sitting that is slow, dealt out where they are many."""
    for sitting in sorted({row.sitting for row in ROWS} - {"quick"}):
        rows = [row for row in ROWS if row.sitting == sitting]
        parts = -(-len(rows) // MOST)
        yield from (pytest.param(rows[part::parts], id=f"{sitting}-{part}") for part in range(parts))


def ask(rows: list[running.Row]) -> None:
    left_out = running.not_asked(rows)
    if sum(map(len, left_out.values())) == len(rows):
        pytest.skip("no row can be asked here: " + "; ".join(left_out))
    differences = running.failing(rows)
    assert not differences, "\n".join(["", *differences])


@pytest.mark.timeout(900)
def test_what_comes_of_a_failing_program() -> None:
    ask([row for row in ROWS if row.quick])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rows", [*sittings()])
def test_what_comes_of_every_failing_program(rows: list[running.Row]) -> None:
    ask(rows)


def test_every_program_can_be_asked_here() -> None:
    """Skipped, with the reasons, where some cannot: another torch, no GPU, no answer yet."""
    if left_out := running.not_asked(ROWS):
        pytest.skip("; ".join(f"{why}: {' '.join(names)}" for why, names in left_out.items()))


def test_every_answer_belongs_to_a_program() -> None:
    assert set(running.PROGRAMS.glob("*/*.txt")) <= {row.answers for row in ROWS}
