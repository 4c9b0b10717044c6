"""A machine that lacks something: the user's exception arrives unharmed, the message is clear, the capture is kept."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support import PLANTED
from support.command_line import python

pytestmark = pytest.mark.slow


PROGRAM = """
import os, resource, sys, torch
import minidbg, planted_backends

def model(x):
    return torch.relu(torch.sin(x)) + 1

lack, folder = sys.argv[1:]
x = torch.linspace(-1, 1, 5)

if lack == "descriptors":
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
backend = minidbg.wrap(planted_backends.raises_on_relu, repro_dir=folder, seconds=60)
torch.compile(model, backend=backend)(x)
"""


def failed(tmp_path: Path, lack: str, folder: Path, *before: str) -> str:
    """The program's last line of stderr; its own exception is above it, and it ends with status 1."""
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    env = {"PYTHONPATH": str(PLANTED), "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = python(program, lack, folder, before=before, cwd=tmp_path, env=env, timeout=250)
    assert done.returncode == 1, done.stderr
    assert "ReluNotSupported: cannot lower relu" in done.stderr
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("minidbg: "), done.stderr
    return line


def script_in(folder: Path, line: str) -> Path:
    found = re.search(r"(\S+\.py)", line)
    assert found, line
    return folder / found[1]


def test_full_disk_is_told_and_the_capture_goes_elsewhere(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    if (
        os.getuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", full]).returncode
    ):
        pytest.skip("a small disk can be made by root only")
    try:
        line = failed(tmp_path, "disk", full / "repros")
    finally:
        subprocess.run(["umount", full], check=True)
    assert "cannot be written (No space left on device)" in line
    assert "3 -> 1 nodes" in line
    assert script_in(tmp_path, line.partition("run: python ")[2]).is_file()


@pytest.mark.parametrize("lack", ["descriptors", "cores", "shared memory"])
def test_little_is_enough(tmp_path: Path, lack: str) -> None:
    before: dict[str, list[str]] = {
        "cores": ["taskset", "-c", str(min(os.sched_getaffinity(0)))],
        "shared memory": ["unshare", "-m", "sh", "-c", 'umount -l /dev/shm; exec "$@"', "sh"],
    }
    if lack in before and shutil.which(before[lack][0]) is None:
        pytest.skip(f"no {before[lack][0]} here")
    if lack == "shared memory" and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("mounts can be changed by root only")
    line = failed(tmp_path, lack, tmp_path / "repros", *before.get(lack, []))
    assert "3 -> 1 nodes" in line
    assert script_in(tmp_path, line.partition("run: python ")[2]).is_file()
