"""Reductions that are ended from outside: Ctrl-C in the user's program and on the command line, and SIGKILL; real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import cli, python
from support.signalled import Signalled

import minidbg
from minidbg import repro

pytestmark = pytest.mark.slow

BACKEND = """
import pathlib, time, torch


def slow_and_broken(gm, example_inputs):
    with pathlib.Path(__file__).with_name("asked.txt").open("a") as file:
        file.write(f"{len(gm.graph.nodes)}\\n")
    time.sleep(0.4)
    if any(node.target is torch.relu for node in gm.graph.nodes):
        raise ValueError("no kernel")
    return gm.forward
"""
PROGRAM = """
import torch, minidbg
from slow_backend import slow_and_broken


def model(x):
    for layer in range(40):
        x = torch.relu(x) if layer == 29 else torch.sin(x)
        x = x + 1
    return x


if __name__ == "__main__":
    torch.compile(model, backend=minidbg.wrap(slow_and_broken, reduce={reduce!r}))(torch.randn(3, 4))
"""


def write_program(folder: Path, reduce: str) -> None:
    (folder / "slow_backend.py").write_text(BACKEND)
    (folder / "train.py").write_text(PROGRAM.format(reduce=reduce))


def asked(folder: Path) -> list[int]:
    """The nodes of each graph that the backend has got, as it wrote them down."""
    path = folder / "asked.txt"
    return list(map(int, path.read_text().split())) if path.exists() else []


def wait_until(holds: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 120
    while not holds():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, "the reduction asked nothing"
        time.sleep(0.02)


def capture_in(folder: Path) -> Path:
    """The capture of a program that has failed in ``folder``."""
    write_program(folder, "later")
    python("train.py", cwd=folder, timeout=120)
    (folder / "asked.txt").unlink()
    (capture,) = (folder / "minidbg_repros" / ".minidbg" / "captures").glob("*.py")
    return capture


def started(command: list[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


def test_ctrl_c_while_the_repro_is_verified_lets_that_end(tmp_path: Path) -> None:
    write_program(tmp_path, "now")
    process = started([sys.executable, "train.py"], tmp_path)
    wait_until(lambda: any(tmp_path.glob("minidbg_repros/.minidbg/drafts/*/draft.py")), process)
    os.kill(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert "ValueError: no kernel" in stderr
    assert "; run: python minidbg_repros/compile_relu_" in stderr.splitlines()[-1]


def test_ctrl_c_in_the_users_program_writes_the_best_and_raises_the_programs_error(tmp_path: Path) -> None:
    write_program(tmp_path, "now")
    process = started([sys.executable, "train.py"], tmp_path)
    wait_until(lambda: len(asked(tmp_path)) > 3, process)
    os.kill(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "ValueError: no kernel" in stderr
    assert "KeyboardInterrupt" not in stderr
    assert "not certified as minimal" in stderr.splitlines()[-1]
    (path,) = (tmp_path / "minidbg_repros").glob("*.py")
    assert repro.run(path).verdict is minidbg.Verdict.REPRODUCES


def reducing(folder: Path, capture: Path) -> Signalled:
    """``minidbg reduce`` that has asked a few questions."""
    command = Signalled("reduce", capture, "--jobs", "1", cwd=folder)
    command.wait_until(lambda: len(asked(folder)) > 3)
    return command


def test_ctrl_c_of_the_command_writes_the_best_and_says_how_to_go_on(tmp_path: Path) -> None:
    command = reducing(tmp_path, capture_in(tmp_path))
    command.send()
    status, stdout, stderr = command.end(120)
    path = stdout.strip()
    assert status == 130
    assert repro.run(tmp_path / path).verdict is minidbg.Verdict.REPRODUCES
    lines = stderr.splitlines()
    assert lines[-1] == f"minidbg: interrupted; to go on: minidbg reduce {path}"
    assert "not certified as minimal" in lines[-2]


def test_a_second_ctrl_c_ends_the_command_at_once_and_the_next_goes_on(tmp_path: Path) -> None:
    capture = capture_in(tmp_path)
    command = reducing(tmp_path, capture)
    command.send()
    command.wait_until(command.says("minidbg: interrupted: verifying the best so far"))
    command.send()
    began = time.monotonic()
    status, stdout, stderr = command.end()
    assert (status, stdout) == (130, "")
    assert time.monotonic() - began < 4, "what it had asked ends with it"
    assert stderr.splitlines()[-1] == f"  to go on: minidbg reduce {capture.relative_to(tmp_path)}"
    done = cli("reduce", capture, "--jobs", "1", "--json", cwd=tmp_path, check=True)
    assert json.loads(done.stdout)["certified"]


def test_sigterm_of_the_command_leaves_nothing_behind(tmp_path: Path) -> None:
    command = reducing(tmp_path, capture_in(tmp_path))
    command.send(signal.SIGTERM)
    assert command.end()[0] == -signal.SIGTERM


def test_a_killed_reduce_command_ends_as_one_that_was_left_alone(tmp_path: Path) -> None:
    capture = capture_in(tmp_path)
    command = [sys.executable, "-m", "minidbg", "reduce", str(capture), "--json", "--jobs", "1"]
    alone = json.loads(python(*command[1:], "--dir", "alone", cwd=tmp_path, check=True).stdout)
    before = len(asked(tmp_path))
    process = started(command, tmp_path)
    wait_until(lambda: len(asked(tmp_path)) > before + 3, process)
    process.kill()
    process.communicate()
    written = json.loads(python(*command[1:], cwd=tmp_path, check=True).stdout)
    assert Path(written["path"]).name == Path(alone["path"]).name
    assert written["certified"]
