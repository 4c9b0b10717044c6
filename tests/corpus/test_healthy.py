"""What minidbg adds to programs in which nothing is wrong."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from corpus import running

EXPECTED = running.HERE / "healthy.txt"


@pytest.mark.slow
def test_what_a_healthy_program_pays(tmp_path: Path) -> None:
    """One run in eager for each graph and way to call it, no process, no byte kept, and the crash records."""
    done = subprocess.run(
        [sys.executable, running.HERE / "healthy.py", tmp_path], env=running.environ(tmp_path),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    if os.environ.get("MINIDBG_WRITE_CORPUS"):
        EXPECTED.write_text(done.stdout)
    lines = [text.splitlines() for text in (EXPECTED.read_text(), done.stdout)]
    assert lines[0] == lines[1], "\n".join(difflib.unified_diff(*lines, "written down", "now", n=0))
