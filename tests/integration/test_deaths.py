"""Every way in which a backend can end a process: from a program that died to a verified repro of one node.

One program forks a child for each way, as the ranks of a job would be; each leaves its record in the same folder.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest
from support import PLANTED
from support.command_line import python

from minidbg import repro
from minidbg.reduction import reducing
from minidbg.reduction.result import Limits
from minidbg.repro import flights
from minidbg.words.outcome import Verdict

pytestmark = pytest.mark.slow

MEMORY = 1 << 30  # a fresh interpreter with a CUDA build of torch takes half of it

PROGRAM = """
import os, pathlib, signal, sys, time
import psutil, torch
import dies, minidbg

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x, rows):
        for _ in range(3):
            x = torch.tanh(self.first(x))
        x = torch.relu(x[rows])
        return self.second(x) + 1

def die(way, step):
    model = torch.compile(Model(), backend=minidbg.wrap(dies.dies(way, step)))
    rows = torch.tensor([2, 0, 1])
    model(torch.randn(3, 8), rows).sum().backward()

def watched(pid):
    # as the kernel does when memory runs out, and a person when nothing happens
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if psutil.Process(pid).memory_info().rss > int(sys.argv[2]) or is_long_in_a_step(pid):
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)

def is_long_in_a_step(pid):
    for record in pathlib.Path("minidbg_repros/.minidbg/flight").glob(f"*-{pid}-*.py"):
        try:
            return ".idle." not in record.name and time.time() - record.stat().st_ctime > 3
        except OSError:
            pass
    return False

torch.set_num_threads(1)
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
minidbg.wrap("eager")
for way, step in eval(sys.argv[1]):
    pid = os.fork()
    if pid == 0:
        try:
            die(way, step)
        finally:
            os._exit(1)
    watched(pid)
    print(way, step, pid, sep=";", flush=True)
"""

DEATHS: Mapping[tuple[str, str], tuple[str, str, str]] = {
    ("segfault", "run"): ("crash", "forward", "SIGSEGV"),
    ("abort", "backward compile"): ("crash", "backward", "SIGABRT"),
    ("terminate", "compile"): ("crash", "forward", "SIGABRT"),
    ("exit", "compile"): ("crash", "forward", "exit status 7"),
    ("exit", "backward run"): ("crash", "backward", "exit status 7"),
    ("memory", "compile"): ("crash", "forward", "memory limit"),
    ("hang", "compile"): ("hang", "forward", "compile"),
    ("hang", "backward run"): ("hang", "backward", "runtime"),
    ("hang_in_c", "run"): ("hang", "forward", "runtime"),
}
"""Way and step; kind, direction and first word of the signature."""


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """The record of each death."""
    folder = tmp_path_factory.mktemp("deaths")
    program = folder / "train.py"
    program.write_text(textwrap.dedent(PROGRAM))
    env = {"PYTHONPATH": str(PLANTED), "OMP_NUM_THREADS": "1"}
    done = python(program, repr(list(DEATHS)), 4 << 30, cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    pids = {int(line.split(";")[2]): line.split(";") for line in done.stdout.splitlines()}
    records = flights.dead_flights(folder / "minidbg_repros")
    found = {}
    for record in records:
        name = flights.read_name(record)
        way, step, _ = pids[name.pid]
        found[way, step] = record
    return found


def test_each_death_leaves_one_record(left_behind: dict[tuple[str, str], Path]) -> None:
    assert set(left_behind) == set(DEATHS)


@pytest.mark.parametrize(
    "death",
    DEATHS,
    ids="-".join,
)
def test_death_becomes_a_verified_repro_of_one_node(
    left_behind: dict[tuple[str, str], Path], death: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINIDBG_MEMORY_BYTES", str(MEMORY))
    monkeypatch.setenv("MINIDBG_TIME_LIMIT_S", "12")
    monkeypatch.setenv("PYTHONPATH", str(PLANTED))
    capture = flights.as_capture(left_behind[death])
    ast.parse(capture.read_text())
    written = reducing.reduce_path(capture, limits=Limits(seconds=200))
    assert written.path is not None, written.line
    assert written.verdict is Verdict.REPRODUCES
    header = repro.read_header(written.path)
    kind, direction, first = DEATHS[death]
    found = (header.spec.kind, header.spec.signature.direction, header.spec.signature.types[0])
    assert found == (kind, direction, first)
    assert header.nodes == 1
    assert written.certified
    assert "relu" in written.path.read_text().partition("# /// script")[0]
