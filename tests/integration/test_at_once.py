"""Several minidbg processes at once on one machine: they share a kernel cache, and perhaps a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import PLANTED
from support.command_line import python

from minidbg import repro

pytestmark = pytest.mark.slow


PROGRAM = """
import os, torch
import minidbg, planted_backends

def model(x):
    for _ in range(6):
        x = torch.tanh(x) + 1
    return torch.relu(x) * 2

torch.set_num_threads(1)
minidbg.wrap("eager")
children = []
for _ in range(8):
    pid = os.fork()
    if pid:
        children.append(pid)
        continue
    try:
        torch.compile(model, backend=minidbg.wrap(planted_backends.raises_on_relu, seconds=200))(torch.randn(3))
    except Exception as error:
        os.write(1, f"{minidbg.report_of(error).path}\\n".encode())
    finally:
        os._exit(0)
for pid in children:
    os.waitpid(pid, 0)
"""


@pytest.mark.timeout(400)
def test_eight_processes_leave_one_repro(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    env = {"PYTHONPATH": str(PLANTED), "OMP_NUM_THREADS": "1"}
    done = python("train.py", cwd=tmp_path, env=env, timeout=380)
    paths = done.stdout.split()
    assert len(paths) == 8, done.stderr
    (made,) = (tmp_path / "minidbg_repros").glob("*.py")
    assert {(tmp_path / path).resolve() for path in paths} == {made.resolve()}
    assert repro.read_header(made).nodes == 1
    assert repro.run(made).verdict == "reproduces"
    hidden = tmp_path / "minidbg_repros" / ".minidbg"
    assert len(list((hidden / "captures").glob("*.py"))) == 1
    assert not [path for place in ("drafts", "crash_records") for path in (hidden / place).glob("*")]


REMAINDER = """
import torch, minidbg

def model(a, b):
    a = torch.sin(a) + 2
    return torch.cos(torch.remainder(a + 1, b).relu()) * 2

try:
    backend = minidbg.wrap("inductor", seconds=200)
    torch.compile(model, backend=backend)(torch.linspace(-1, 1, 64), torch.full((64,), float("inf")))
except Exception as error:
    print(minidbg.report_of(error).path)
"""


@pytest.mark.timeout(500)
def test_four_processes_with_one_kernel_cache_find_the_same_repro(tmp_path: Path) -> None:
    """All start with an empty cache, so that each compiles, and loads, what the others are just writing."""
    folders = [tmp_path / f"{place}" for place in range(4)]
    for folder in folders:
        folder.mkdir()
        (folder / "train.py").write_text(REMAINDER)
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    streams = {"env": environ, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    programs = [subprocess.Popen([sys.executable, "train.py"], cwd=folder, **streams) for folder in folders]
    found = []
    for program, folder in zip(programs, folders, strict=True):
        out, err = program.communicate(timeout=480)
        assert out.strip(), err
        found.append(folder / out.strip().splitlines()[-1])
    models = {path.read_text().partition("class Repro")[2].partition("\n# /// script")[0] for path in found}
    assert len(models) == 1, models
    assert {repro.read_header(path).nodes for path in found} == {1}
