"""Jobs of several ranks, as ``torchrun`` starts them: each failure is captured once, and reduced afterwards by one process."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from ranks_program import SITUATIONS
from support import PLANTED
from support.command_line import python, torchrun

from minidbg.repro import crash_records

PROGRAM = PLANTED / "ranks_program.py"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
CLOSURES = "dynamo of torch 2.11 puts closures into the graph, which no script can name"


def run(folder: Path, *command: object) -> subprocess.CompletedProcess[str]:
    env = {"OMP_NUM_THREADS": "1"}
    return python(*command, cwd=folder, env=env, timeout=350)


def in_ranks(folder: Path, ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(folder, *torchrun(ranks, PROGRAM, *arguments))


@pytest.mark.parametrize("ranks", [2, 4])
def test_each_situation_is_captured_and_all_ranks_go_on(ranks: int, tmp_path: Path) -> None:
    done = in_ranks(tmp_path, ranks, ",".join(SITUATIONS))
    assert done.returncode == 0, done.stderr
    assert "not captured" not in done.stderr
    assert done.stdout.count(f"failed={len(SITUATIONS)}, ") == ranks, done.stdout
    captures = list((tmp_path / "minidbg_repros/.minidbg/captures").glob("*.py"))
    assert 0 < len(captures) <= len(SITUATIONS), "ranks do not keep the same graph twice"


@pytest.mark.parametrize(
    ("situation", "bug", "group"),
    [
        ("tensor_parallel", "gelu", ""),
        ("dtensor_gelu", "gelu run", ""),
        ("dtensor_in", "redistribute", "alone: collectives come back at once"),
        ("functional_collectives", "all_reduce", "alone: collectives come back at once"),
        ("ddp", "raises on_last_rank", "which the backend asks for"),
    ],
)
def test_what_a_rank_captured_is_reduced_by_one_process(
    situation: str, bug: str, group: str, tmp_path: Path
) -> None:
    if situation not in SITUATIONS:
        pytest.skip(CLOSURES)
    in_ranks(tmp_path, 2, situation, *bug.split())
    (capture,) = (tmp_path / "minidbg_repros/.minidbg/captures").glob("*.py")
    reduced = run(tmp_path, "-m", "minidbg", "reduce", capture)
    assert "-> 1 nodes" in reduced.stderr, reduced.stderr
    (repro,) = (tmp_path / "minidbg_repros").glob("*.py")
    assert group in repro.read_text()
    assert ("init_process_group" in repro.read_text()) is bool(group)
    assert run(tmp_path, repro).returncode == 1


def test_healthy_graphs_run_whatever_the_ranks_exchange(tmp_path: Path) -> None:
    done = in_ranks(tmp_path, 2, ",".join(SITUATIONS), "aot_eager", "healthy")
    assert done.stdout.count("failed=0, not_run=0, not_verified={") == 2, done.stdout + done.stderr
    assert "it talks to other ranks" in done.stdout


def test_a_rank_that_dies_leaves_its_record_and_the_one_that_waits_none(tmp_path: Path) -> None:
    done = in_ranks(tmp_path, 2, "functional_collectives", "dies", "on_last_rank")
    assert done.returncode != 0
    (record,) = crash_records.records_of_dead(tmp_path / "minidbg_repros")
    assert "(rank 1 of 2) died while running a graph for the first time" in crash_records.death(record)


def test_a_wait_for_another_rank_is_told_apart_from_a_compiler_that_hangs(tmp_path: Path) -> None:
    folder = tmp_path / "minidbg_repros"
    words = torchrun(2, PROGRAM, "functional_collectives", "hangs", "on_last_rank")
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, *map(str, words)], cwd=tmp_path, **silent) as job:
        ends = time.monotonic() + 200
        lines: list[str] = []
        while [" waiting " in line for line in lines] != [True, False]:
            assert time.monotonic() < ends, lines
            time.sleep(0.2)
            at_work = crash_records.at_work(folder, lambda: time.time() + crash_records.LONG_S)
            lines = sorted(at_work, key=lambda line: line.partition("rank")[2])
        job.terminate()  # torchrun passes it on
    assert "rank 0 of 2" in lines[0]
    assert "waiting for other ranks in a collective" in lines[0]
    assert "rank 1 of 2" in lines[1]
    assert "compiling a graph" in lines[1]
    assert "(rank 0 of 2) died while waiting" in crash_records.death(*crash_records.waited_in_vain(folder))
    assert "(rank 1 of 2) died while compiling" in crash_records.death(*crash_records.records_of_dead(folder))
