"""Jobs of several ranks, as ``torchrun`` starts them: each failure is captured once, and reduced afterwards by one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ranks_program import SITUATIONS

PROGRAM = Path(__file__).with_name("ranks_program.py")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def run(folder: Path, *command: object) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"MINIDBG_STAGES": "0", "OMP_NUM_THREADS": "1"}
    command = (sys.executable, *map(str, command))
    return subprocess.run(command, cwd=folder, env=env, text=True, capture_output=True, timeout=350)


def torchrun(folder: Path, ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    launcher = (
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        ranks,
        "--master-port",
        29500 + os.getpid() % 1000,
    )
    return run(folder, *launcher, PROGRAM, *arguments)


@pytest.mark.parametrize("ranks", [2, 4])
def test_each_situation_is_captured_and_all_ranks_go_on(ranks: int, tmp_path: Path) -> None:
    done = torchrun(tmp_path, ranks, ",".join(SITUATIONS))
    assert done.returncode == 0, done.stderr
    assert "not captured" not in done.stderr
    assert done.stdout.count(f"failed={len(SITUATIONS)}, ") == ranks, done.stdout
    captures = list((tmp_path / "minidbg_repros/.minidbg/captures").glob("*.py"))
    assert 0 < len(captures) <= len(SITUATIONS), "ranks do not keep the same graph twice"


@pytest.mark.parametrize(
    ("situation", "op", "words"),
    [
        ("tensor_parallel", "gelu", "No mesh, DTensor or collective is needed"),
        ("dtensor_gelu", "gelu", "No mesh, DTensor or collective is needed"),
        ("functional_collectives", "all_reduce", "Collectives are part of the failure"),
    ],
)
def test_what_a_rank_captured_is_reduced_by_one_process(
    situation: str, op: str, words: str, tmp_path: Path
) -> None:
    torchrun(tmp_path, 2, situation, op)
    (capture,) = (tmp_path / "minidbg_repros/.minidbg/captures").glob("*.py")
    reduced = run(tmp_path, "-m", "minidbg", "reduce", capture)
    assert "-> 1 nodes" in reduced.stderr, reduced.stderr
    (repro,) = (tmp_path / "minidbg_repros").glob("*.py")
    assert words in " ".join(repro.read_text().split())
    assert run(tmp_path, repro).returncode == 1
