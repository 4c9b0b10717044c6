"""Failures that do not show themselves each time, and those that are found beside the one that is looked for: from a program to what is said."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import PLANTED
from support.command_line import cli, python

pytestmark = pytest.mark.slow

PROGRAM = """
import torch, minidbg, by_chance


def model(x):
    for layer in range(6):
        x = torch.relu(x) if layer == 3 else torch.sin(x)
    return x


backend = minidbg.wrap(by_chance.{backend}, reduce={reduce!r})
torch.compile(model, backend=backend)(torch.randn(3, 4))
"""


class Folder:
    def __init__(self, path: Path, backend: str, reduce: str = "later") -> None:
        (path / "train.py").write_text(PROGRAM.format(backend=backend, reduce=reduce))
        self.path, self.env = path, {"PYTHONPATH": str(PLANTED), "BY_CHANCE": str(path)}

    def run(self) -> str:
        return python("train.py", cwd=self.path, env=self.env).stderr

    def reduce(self, *words: object) -> tuple[int, str, str]:
        done = cli("reduce", *words, "--jobs", "1", cwd=self.path, env=self.env)
        return done.returncode, done.stdout, done.stderr

    @property
    def turns(self) -> int:
        path = self.path / "turns"
        return path.stat().st_size if path.exists() else 0

    def captures(self) -> list[Path]:
        return sorted((self.path / "minidbg_repros" / ".minidbg" / "captures").glob("*.py"))

    def repros(self) -> list[Path]:
        return sorted((self.path / "minidbg_repros").glob("*.py"))


def test_a_failure_in_half_of_its_runs_is_reduced_to_its_culprit(tmp_path: Path) -> None:
    folder = Folder(tmp_path, "fails_in_half_of_its_runs")
    folder.run()
    status, stdout, stderr = folder.reduce(*folder.captures(), "--json")
    assert status == 0, stderr
    written = json.loads(stdout)
    assert written["nodes_after"] == 1
    assert any(re.search(r"flaky: it fails in \d of \d runs", note) for note in written["notes"])


def test_a_failure_that_never_comes_back_is_kept_whole_and_said_so(tmp_path: Path) -> None:
    folder = Folder(tmp_path, "failed_once")
    folder.run()
    status, _, stderr = folder.reduce(*folder.captures())
    assert status == 125
    assert "does not show its failure here: gone" in stderr
    assert folder.captures()
    assert not folder.repros()


def test_a_hang_that_was_a_busy_machine_is_refuted_by_a_few_questions(tmp_path: Path) -> None:
    folder = Folder(tmp_path, "hung_once", "now")
    env = {**os.environ, **folder.env}
    process = subprocess.Popen([sys.executable, "train.py"], cwd=tmp_path, env=env, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not folder.turns and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    status, _, stderr = folder.reduce()
    assert status == 125
    assert "does not show" in stderr
    assert folder.turns < 12


def test_a_failure_seen_again_is_answered_by_its_repro(tmp_path: Path) -> None:
    folder = Folder(tmp_path, "has_two_bugs", "now")
    first = folder.run()
    assert "also found" in first
    (repro,) = folder.repros()
    assert any("the other has no kernel" in path.read_text() for path in folder.captures())
    again = folder.run()
    assert "found before, and its repro still fails" in again
    assert folder.repros() == [repro]
