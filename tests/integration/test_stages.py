"""Stages of real repros, each run in child processes."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

import planted_backends as planted
import planted_compilers
import psutil
import pytest
import torch

import minidbg
from minidbg import backends, repro
from minidbg.reduction import stages
from minidbg.reduction.stages import StageReport, find_stages, keep_stages, stages_of, start_in_background
from minidbg.words.errors import NotReproduced
from minidbg.words.outcome import Outcome, Verdict
from minidbg.words.run_spec import CallPath, Level


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("repros") / "relu.py"
    return minidbg.save_repro(lambda x: torch.relu(x) + 1, [torch.randn(3)], planted.raises_on_relu, path)


def test_a_backend_of_its_own_is_told_from_the_stages_before_it(script: Path) -> None:
    report = find_stages(script)
    assert list(report.verdicts.values()) == [Verdict.GONE] * 3 + [Verdict.REPRODUCES]
    assert report.guilty == "planted_backends.raises_on_relu"
    assert "aot_eager_decomp_partition pass;" in report.sentence


@pytest.mark.slow
def test_a_detached_process_leaves_the_report_in_the_header(script: Path) -> None:
    began = time.monotonic()
    assert start_in_background(script)
    assert time.monotonic() - began < 2
    while stages_of(repro.read_header(script)) is None and time.monotonic() - began < 120:
        time.sleep(0.2)
    found = stages_of(repro.read_header(script))
    assert found.guilty == "planted_backends.raises_on_relu"
    assert repro.run(script).verdict is Verdict.REPRODUCES


def test_a_graph_of_aot_autograd_has_no_stages(script: Path, tmp_path: Path) -> None:
    backend = backends.find(planted_compilers.raises_on_relu)
    case = minidbg.load(script).with_spec(level=Level.ATEN, call=CallPath.DIRECT, backend=backend)
    path = repro.write(case, tmp_path / "aten.py")
    with pytest.raises(NotReproduced, match="no stages"):
        find_stages(path)


@pytest.mark.slow
@pytest.mark.skipif(torch.__version__ >= (2, 15), reason="torch 2.15 has mended this failure")
def test_inductor_is_bisected_down_to_one_pass(tmp_path: Path) -> None:
    """cumsum of a 0-dim full: the pattern pass of torch 2.11 to 2.14 fails on it."""
    program = lambda x: x + torch.full((), 5.0).cumsum(0)  # noqa: E731
    path = minidbg.save_repro(program, [torch.randn(2)], "inductor", tmp_path / "cumsum.py")
    report = find_stages(path, seconds=250)
    keep_stages(path, report)
    assert report.guilty == "inductor"
    detail = "pass_pattern_1" if torch.__version__ >= (2, 13) else ""  # before, torch names no pass
    assert (report.subsystem, report.detail) == ("post_grad_passes", detail)
    assert repro.read_header(path).stages["number"] == report.number


def test_a_run_that_did_not_end_counts_for_nothing(monkeypatch: pytest.MonkeyPatch, script: Path) -> None:
    """Else a busy machine would blame whatever was being switched off."""
    outcomes = iter([Verdict.REPRODUCES, Verdict.REPRODUCES, Verdict.TIMEOUT])
    monkeypatch.setattr(stages, "at_stage", lambda *args: Outcome(next(outcomes)))
    report = StageReport({"inductor": Verdict.REPRODUCES}, "inductor")
    found = stages.bisected(minidbg.load(script), report, stages.Allowance(time.monotonic() + 60))
    assert not found.subsystem
    assert found.notes == ("the bisection of inductor ran out of time",)


def test_a_busy_machine_is_waited_for_and_the_wait_costs_no_run(
    monkeypatch: pytest.MonkeyPatch, script: Path
) -> None:
    """Each run is begun after a wait of an hour, and has its whole time limit all the same."""
    limits, waits = [], []

    def submit(case: object, *, seconds: float, **_: object) -> Outcome:
        limits.append(seconds)
        return Outcome(Verdict.GONE)

    def wait() -> float:
        waits.append(3600.0)
        return waits[-1]

    monkeypatch.setattr(stages.asking, "submit", submit)
    find_stages(script, seconds=60, wait=wait)
    assert len(waits) == len(limits) == 4
    assert set(limits) == {stages.CALL_SECONDS}


def test_others_work_is_waited_for_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    used = iter([100.0, 90.0, 10.0])
    monkeypatch.setattr(stages.psutil, "cpu_percent", lambda seconds: next(used))
    assert stages.wait_for_idle_machine() >= 0
    assert next(used, None) is None
    monkeypatch.setattr(stages.psutil, "cpu_percent", lambda seconds: 100.0)
    monkeypatch.setattr(stages, "MOST_WAITING_S", 0.01)
    assert stages.wait_for_idle_machine() >= 0.01


@pytest.mark.slow
def test_nothing_runs_on_when_the_folder_is_gone(tmp_path: Path) -> None:
    backend, path = planted.raises_on_relu, tmp_path / "r" / "relu.py"
    minidbg.save_repro(lambda x: torch.relu(x), [torch.randn(3)], backend, path)
    assert start_in_background(path)
    deadline = time.monotonic() + 60
    while not (mine := processes_for(path)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert mine
    shutil.rmtree(path.parent)
    while processes_for(path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not processes_for(path)


def processes_for(path: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(path.absolute()) in process.cmdline():
                found.append(process)
    return found
