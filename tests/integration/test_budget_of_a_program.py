"""One real program with a slow backend and a small budget: it goes on soon after its seconds are over."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

import minidbg
from minidbg.wrapper.handle import REDUCTION_GRACE_S


def slow_and_wrong(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    """A compile takes 1.5 s. Its message names no op."""
    time.sleep(1.5)
    if torch.relu in [node.target for node in graph_module.graph.nodes]:
        raise ValueError("no kernel")
    return graph_module.forward


@pytest.mark.slow
def test_a_slow_backend_does_not_hold_up_the_program_beyond_its_budget(tmp_path: Path) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        for layer in range(40):
            x = torch.sin(x) if layer != 17 else torch.relu(x)
        return x

    backend = minidbg.wrap(slow_and_wrong, seconds=8, repro_dir=tmp_path)
    with pytest.raises(Exception, match="no kernel") as raised:
        torch.compile(program, backend=backend)(torch.randn(4))
    report = minidbg.report_of(raised.value)
    assert report is not None
    assert report.capture is not None
    assert report.capture.is_file()
    assert "budget of" in report.line, report.line
    counts = report.line.partition(" runs, ")[2]
    assert float(counts.partition(" s")[0]) <= 8 + REDUCTION_GRACE_S
