"""Stages of real repros, each run in child processes."""

from __future__ import annotations

import re
from pathlib import Path

import fails_on
import planted_backends as planted
import planted_compilers
import pytest
import torch

import minidbg
from minidbg import backends, repro
from minidbg.core.errors import NotReproduced
from minidbg.core.outcome import Verdict
from minidbg.core.run_spec import CallPath, Level
from minidbg.report.stages import find_stages, keep_stages, stages_of


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
    backend = backends.find_reference(planted_compilers.raises_on_relu)
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
    detail = " (pass_pattern_1)" if torch.__version__ >= (2, 13) else ""  # before, torch names no pass
    assert re.fullmatch(rf"number \d+ of its post_grad_passes{re.escape(detail)} skipped", report.passes[0])
    kept = stages_of(repro.read_header(path))
    assert kept is not None
    assert kept.passes == report.passes
