"""Several minidbg processes at once on one machine: they share a kernel cache, and perhaps a failure."""

from __future__ import annotations

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
