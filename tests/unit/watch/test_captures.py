"""Which captures wait to be reduced, told without torch."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from minidbg.watch.repros import read_repros, shown_by, unreduced

SCRIPT = """# /// script
# [tool.minidbg]
# schema = 1
# kind = "compile"
# backend = "toy"
# [tool.minidbg.signature]
# kind = "compile"
# types = ["{error}"]
# ///
def backend():
    return "toy"
"""


@pytest.fixture
def captures(tmp_path: Path) -> Path:
    folder = tmp_path / ".minidbg" / "captures"
    folder.mkdir(parents=True)
    for at, (name, error) in enumerate((("old", "A"), ("new", "B")), 1):
        (folder / f"{name}.py").write_text(SCRIPT.format(error=error))
        os.utime(folder / f"{name}.py", (at, at))
    (folder / "damaged.py").write_text("# ///")
    return folder


def names(folder: Path) -> list[str]:
    return [one.path.stem for one in unreduced(folder)]


def test_the_oldest_waits_first_until_it_is_reduced_or_another(captures: Path, tmp_path: Path) -> None:
    assert names(tmp_path) == ["old", "new"]
    (captures / "old.reduced").touch()
    assert names(tmp_path) == ["new"]
    later = time.time() + 10
    os.utime(captures / "old.py", (later, later))
    assert names(tmp_path) == ["new", "old"]


def test_a_failure_that_a_repro_shows_is_known(captures: Path, tmp_path: Path) -> None:
    (tmp_path / "b.py").write_text(SCRIPT.format(error="B"))
    (tmp_path / "cut_off.py").write_text("")
    repros = read_repros([tmp_path], tmp_path).values()
    found = [shown_by(one, repros) for one in unreduced(tmp_path)]
    assert [one and one.name for one in found] == [None, "b.py"]
