"""What the machine has: how much memory each child may hold, and how much longer than usual anything takes."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest
from support.doubles import Box

from minidbg.core.machine import MOST_BUSY, ThisMachine, busyness, memory_limit


@pytest.mark.parametrize(
    ("given", "free", "at_once", "limit"),
    [
        ("", 1000, 1, 800),
        ("", 1000, 2, 400),
        ("", 1000, 64, 400),
        ("", None, 1, None),
        ("70", 1000, 1, 70),
        ("70", None, 8, 70),
        ("much", 1000, 1, 800),
    ],
)
def test_a_child_has_four_fifths_of_what_is_free_and_one_of_several_half_of_that(
    monkeypatch: pytest.MonkeyPatch, given: str, free: int | None, at_once: int, limit: int | None
) -> None:
    monkeypatch.setenv("MINIDBG_MEMORY_BYTES", given)
    assert memory_limit(at_once, Box(memory=free)) == limit


@pytest.mark.parametrize(("waiting", "times"), [(0.0, 1), (4.0, 1), (12.0, 3), (400.0, MOST_BUSY)])
def test_a_busy_machine_takes_longer(waiting: float, times: float) -> None:
    assert busyness(Box(waiting=waiting)) == times


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc elsewhere")
def test_what_is_free_in_a_container_is_what_its_cgroup_has_left(tmp_path: Path) -> None:
    here, free = ThisMachine(tmp_path), psutil.virtual_memory().available
    assert 0.7 * free < here.memory_free() < 1.4 * free
    (tmp_path / "memory.max").write_text(f"{300 << 20}\n")
    (tmp_path / "memory.current").write_text(f"{200 << 20}\n")
    assert here.memory_free() == 100 << 20
    (tmp_path / "memory.max").write_text("max\n")
    assert here.memory_free() > 100 << 20
