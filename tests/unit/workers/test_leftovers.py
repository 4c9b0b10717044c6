"""What a killed process left behind goes with the next start; nothing of a living one, of another machine, or of other people."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from minidbg.workers.leftovers import has_ended, make_temporary_folder, started_ms, this_place

PROGRAM = """
import os, signal, sys
from pathlib import Path
from minidbg.workers.leftovers import make_temporary_folder
print(make_temporary_folder("server", Path(sys.argv[1])), flush=True)
os.kill(os.getpid(), int(sys.argv[2]))
"""
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("signal", [9, 15])
def test_the_folder_of_a_killed_process_goes_with_the_next_start(tmp_path: Path, signal: int) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), str(signal)], capture_output=True, text=True, check=False, timeout=60,
        cwd=ROOT,
    )  # fmt: skip
    left = Path(killed.stdout.strip())
    assert killed.returncode == -signal
    (left / "server.log").write_text("")
    (left / "deep").mkdir()
    own = make_temporary_folder("server", tmp_path)
    assert list(tmp_path.iterdir()) == [own]


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
