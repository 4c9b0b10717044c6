"""A part of the field trial: a dozen models that people run notice nothing of minidbg, and bugs planted into them are found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from programs.field_models import DOZEN
from support.command_line import python
from support.rotating import day

SURVEYS = Path(__file__).parents[1] / "tools" / "surveys"


def rows_of(survey: str, folder: Path, *arguments: str) -> list[dict[str, object]]:
    done = python(SURVEYS / survey, *arguments, "--json", folder / "rows.jsonl", cwd=folder, timeout=880)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("backend", "modes", "models"),
    [
        ("aot_eager", "eval,train", DOZEN[day() % 3 :: 3]),
        ("inductor", "train", ["GPT2LMHeadModel", "SwinModel"]),
    ],
)
def test_models_run_in_silence_with_the_same_bits(
    tmp_path: Path, backend: str, modes: str, models: list[str]
) -> None:
    rows = rows_of("field.py", tmp_path, "--backends", backend, "--modes", modes, "--models", *models)
    assert len(rows) == len(models) * len(modes.split(","))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_bugs_planted_into_models_are_found(tmp_path: Path) -> None:
    rows = rows_of("planted_elements.py", tmp_path, "--models", *DOZEN[:2])
    matters = [row for row in rows if row["matters"]]
    assert len(matters) >= 8
    assert all(row["found"] for row in matters), rows
