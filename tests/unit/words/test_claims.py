"""Claims on captures: seen by other processes, and gone with the process that made them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from minidbg.words.claims import claimed, is_claimed

HOLD = """
import sys, time
from pathlib import Path
from minidbg.words.claims import claimed

with claimed(Path(sys.argv[1])):
    print("claimed", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    folder = tmp_path / ".minidbg" / "captures"
    folder.mkdir(parents=True)
    return folder / "crash.py"


def test_a_claim_is_seen_within_its_block_and_leaves_nothing(capture: Path) -> None:
    assert not is_claimed(capture)
    with claimed(capture):
        assert is_claimed(capture)
        with claimed(capture):
            pass
        assert is_claimed(capture), "a second claim does not end the first"
    assert not is_claimed(capture)
    assert list(capture.parent.iterdir()) == []


def test_a_claim_of_another_process_ends_with_it_however_it_dies(capture: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(capture)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"claimed\n"
        assert is_claimed(capture)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert not is_claimed(capture)


def test_beside_a_repro_nothing_is_written(tmp_path: Path) -> None:
    repro = tmp_path / "compile_sin.py"
    with claimed(repro):
        assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_or_refuses_ends_no_reduction(tmp_path: Path) -> None:
    with claimed(tmp_path / "x" / ".minidbg" / "captures" / "crash.py"):
        pass
