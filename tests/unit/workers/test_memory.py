"""One limit of memory for every child: of a question, a check, a run under watch."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from minidbg.workers import memory, memory_limit

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc elsewhere")


@pytest.fixture(autouse=True)
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory, "CGROUP", str(tmp_path))
    monkeypatch.delenv("MINIDBG_MEMORY_BYTES", raising=False)
    return tmp_path


def test_the_variable_says_it_however_many_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIDBG_MEMORY_BYTES", str(1 << 30))
    assert memory_limit() == memory_limit(8) == 1 << 30


def test_it_is_four_fifths_of_what_is_free_and_half_of_that_for_each_of_several() -> None:
    free = psutil.virtual_memory().available
    assert 0.6 * free < memory_limit() < free
    assert 0.3 * free < memory_limit(2) < 0.5 * free
    assert 0.3 * free < memory_limit(64) < 0.5 * free


def test_what_is_free_in_a_container_is_what_its_cgroup_has_left(cgroup: Path) -> None:
    (cgroup / "memory.max").write_text(f"{300 << 20}\n")
    (cgroup / "memory.current").write_text(f"{200 << 20}\n")
    assert memory_limit() == 80 << 20
    (cgroup / "memory.max").write_text("max\n")
    assert memory_limit() > 80 << 20
