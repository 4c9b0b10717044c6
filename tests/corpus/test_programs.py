"""Programs that fail, and what a person then has: the verdict, the signature, the script, and what is said of them."""

from __future__ import annotations

import pytest

from corpus import running

ROWS = running.rows()
SITTINGS = sorted({row.sitting for row in ROWS})


def ask(sitting: str) -> None:
    rows = [row for row in ROWS if row.sitting == sitting]
    left_out = running.not_asked(rows)
    if sum(map(len, left_out.values())) == len(rows):
        pytest.skip("no row can be asked here: " + "; ".join(left_out))
    differences = running.failing(rows)
    assert not differences, "\n".join(["", *differences])


@pytest.mark.timeout(900)
def test_what_comes_of_a_failing_program() -> None:
    ask("quick")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sitting", [one for one in SITTINGS if one != "quick"])
def test_what_comes_of_every_failing_program(sitting: str) -> None:
    ask(sitting)


def test_every_program_can_be_asked_here() -> None:
    """Skipped, with the reasons, where some cannot: another torch, no GPU, no answer yet."""
    if left_out := running.not_asked(ROWS):
        pytest.skip("; ".join(f"{why}: {' '.join(names)}" for why, names in left_out.items()))


def test_every_answer_belongs_to_a_program() -> None:
    assert set(running.PROGRAMS.glob("*/*.txt")) <= {row.answers for row in ROWS}
