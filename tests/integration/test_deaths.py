"""A backend that takes all memory, from a program that the kernel has killed to a verified repro of one node.

The other ways in which a backend ends a process, or hangs, are programs of the corpus, under ``dies`` and ``hangs``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import PLANTED
from support.command_line import python

from minidbg import repro
from minidbg.core.outcome import Direction, Kind, Verdict
from minidbg.reduction import reducing
from minidbg.reduction.result import Limits
from minidbg.repro import crash_records

MEMORY = 1 << 30  # a fresh interpreter with a CUDA build of torch takes half of it

PROGRAM = """
import os, signal, sys, time
import psutil, torch
import dies, minidbg

def program(x):
    return torch.relu(torch.tanh(x)) + 1

torch.set_num_threads(1)
pid = os.fork()
if pid == 0:
    try:
        torch.compile(program, backend=minidbg.wrap(dies.dies("memory", "compile")))(torch.randn(3, 8))
    finally:
        os._exit(1)
while os.waitpid(pid, os.WNOHANG) == (0, 0):  # as the kernel does when memory runs out
    if psutil.Process(pid).memory_info().rss > int(sys.argv[1]):
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.02)
"""


@pytest.mark.slow
def test_a_process_that_memory_has_killed_becomes_a_verified_repro_of_one_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    env = {"PYTHONPATH": str(PLANTED), "OMP_NUM_THREADS": "1"}
    done = python("train.py", 4 << 30, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    (record,) = crash_records.records_of_dead(tmp_path / "minidbg_repros")
    for name, value in {"MEMORY_BYTES": MEMORY, "TIME_LIMIT_S": 12}.items():
        monkeypatch.setenv(f"MINIDBG_{name}", str(value))
    monkeypatch.setenv("PYTHONPATH", str(PLANTED))
    written = reducing.reduce_path(crash_records.as_capture(record), limits=Limits(seconds=200))
    assert written.path is not None, written.line
    assert (written.verdict, written.certified) == (Verdict.REPRODUCES, True)
    header = repro.read_header(written.path)
    found = (header.spec.kind, header.spec.signature.direction, header.spec.signature.types)
    assert found == (Kind.CRASH, Direction.FORWARD, ("memory limit",))
    assert header.nodes == 1
