"""What a killed process left behind goes with the next start; nothing of a living one, of another machine, or of other people."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from minidbg.workers.leftovers import has_ended, make_temporary_folder, started_ms, this_place


def test_a_reused_process_number_does_not_keep_it(tmp_path: Path) -> None:
    pid = os.getpid()
    earlier = tmp_path / f"minidbg-server-{this_place()}-{pid}-{started_ms(pid) - 7_200_000}-abc"
    earlier.mkdir()
    make_temporary_folder("server", tmp_path)
    assert not earlier.exists()


def test_what_is_not_of_a_dead_process_here_stays(tmp_path: Path) -> None:
    pid, dead = os.getpid(), 2**22 + 5
    names = (
        f"minidbg-server-{this_place()}-{pid}-{started_ms(pid)}-abc",
        f"minidbg-server-00000000-{dead}-1000-abc",
        f"minidbg-worker-{this_place()}-{dead}-1000-abc",
        f"minidbg-server-{this_place()}-{dead}-1000",
        f"minidbg-server-{this_place()}-{dead}-{'9' * 40}-abc",
        "minidbg-server-abc",
        "somebody-elses",
    )
    for name in names:
        (tmp_path / name).mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    (tmp_path / f"minidbg-server-{this_place()}-{dead}-1000-link").symlink_to(elsewhere)
    make_temporary_folder("server", tmp_path)
    assert all((tmp_path / name).is_dir() for name in names)
    assert (elsewhere / "kept").exists()


def test_a_process_that_cannot_be_asked_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> None:
        raise psutil.AccessDenied(pid)

    monkeypatch.setattr(psutil, "Process", refuse)
    assert not has_ended(12, 1000)
