"""Stages of real repros, each run in child processes."""

from __future__ import annotations

from pathlib import Path

import fails_on
import planted_backends as planted
import planted_compilers
import pytest
import torch

import minidbg
from minidbg import backends, repro
from minidbg.report import stages
from minidbg.report.stages import StageReport, find_stages, keep_stages, stages_of
from minidbg.words.deadline import Deadline
from minidbg.words.errors import NotReproduced
from minidbg.words.outcome import Outcome, Verdict
from minidbg.words.run_spec import CallPath, Level


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("repros") / "relu.py"
    return minidbg.save_repro(lambda x: torch.relu(x) + 1, [torch.randn(3)], planted.raises_on_relu, path)


@pytest.mark.slow
def test_a_backend_of_its_own_is_told_from_the_stages_before_it(script: Path) -> None:
    report = find_stages(script)
    assert list(report.verdicts.values()) == [Verdict.GONE] * 3 + [Verdict.REPRODUCES]
    assert report.guilty == "planted_backends.raises_on_relu"
    assert "aot_eager_decomp_partition pass;" in report.sentence


@pytest.mark.slow
def test_what_a_program_can_change_is_tried(tmp_path: Path) -> None:
    """A backend that fails where both ops are in one graph."""
    program, backend = lambda x: torch.relu(x).sin(), fails_on.raises_on("relu", "sin")
    report = find_stages(minidbg.save_repro(program, [torch.randn(3)], backend, tmp_path / "both.py"))
    assert report.passes == ("a graph break between its ops",)
    assert report.sentence.endswith("fails; passes with a graph break between its ops")


@pytest.mark.slow
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
    kept = stages_of(repro.read_header(path))
    assert kept is not None
    assert kept.number == report.number


@pytest.mark.slow
def test_a_run_that_did_not_end_counts_for_nothing(monkeypatch: pytest.MonkeyPatch, script: Path) -> None:
    """Else a busy machine would blame whatever was being switched off."""
    outcomes = iter([Verdict.REPRODUCES, Verdict.REPRODUCES, Verdict.TIMEOUT])
    monkeypatch.setattr(stages, "at_stage", lambda *args: Outcome(next(outcomes)))
    report = StageReport({"inductor": Verdict.REPRODUCES}, "inductor")
    found = stages.bisected(minidbg.load(script), report, Deadline.after(60))
    assert not found.subsystem
    assert found.notes == ("the bisection of inductor ran out of time",)


@pytest.mark.slow
def test_each_run_is_said_before_it_begins(monkeypatch: pytest.MonkeyPatch, script: Path) -> None:
    said: list[str] = []
    monkeypatch.setattr(stages.asking, "submit", lambda case, **_: Outcome(Verdict.GONE))
    find_stages(script, note=said.append)
    names = ["eager", "aot_eager", "aot_eager_decomp_partition", "planted_backends.raises_on_relu"]
    assert said[:4] == [f"running it with {name}" for name in names]
