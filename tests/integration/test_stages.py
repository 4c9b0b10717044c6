"""Stages of real repros; what is made of their verdicts is asked of stand-ins in tests/unit/report."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import minidbg
from minidbg import repro
from minidbg.core.errors import NotReproduced
from minidbg.core.run_spec import BackendRef, CallPath, Level, RunSpec
from minidbg.fx.case import Case
from minidbg.report.stages import find_stages


def test_a_graph_of_aot_autograd_has_no_stages(tmp_path: Path) -> None:
    graph = torch.fx.symbolic_trace(lambda x: (torch.ops.aten.relu.default(x),))
    spec = RunSpec(BackendRef("eager", '"eager"'), level=Level.ATEN, call=CallPath.DIRECT)
    path = repro.write(Case(graph, (torch.ones(3),), spec), tmp_path / "aten.py", repro.Form.CAPTURE)
    with pytest.raises(NotReproduced, match="no stages"):
        find_stages(path)


@pytest.mark.slow
@pytest.mark.skipif(torch.__version__ >= (2, 15), reason="torch 2.15 has mended this failure")
def test_what_inductor_has_to_leave_out_is_found(tmp_path: Path) -> None:
    """cumsum of a 0-dim full: a pattern of torch 2.11 to 2.14 fails on it."""
    program = lambda x: x + torch.full((), 5.0).cumsum(0)  # noqa: E731
    path = minidbg.save_repro(program, [torch.randn(2)], "inductor", tmp_path / "cumsum.py")
    report = find_stages(path, seconds=250)
    assert report.guilty == "inductor"
    assert report.passes[0] == "`pattern_matcher=False`"
