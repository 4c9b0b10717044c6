"""What many questions leave behind."""

from __future__ import annotations

import pytest
import torch

from minidbg.core.run_spec import BackendRef, RunSpec
from minidbg.fx.case import Case
from minidbg.fx.copying import capture_by_dynamo
from minidbg.oracle import ask

pytestmark = pytest.mark.slow


def test_hundred_mixed_calls_leave_memory_processes_and_files_as_they_were() -> None:
    import planted_backends as planted
    import psutil

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.sin(x)) + 1

    graph, inputs = capture_by_dynamo(model, (torch.linspace(-1, 1, 12),))
    names = ["raises", "segfaults", "exits", "aborts", "leaves_processes"]
    mixed = [planted.returns_gm_forward, *(getattr(planted, f"{name}_on_relu") for name in names)]
    mixed.append(planted.adds_one_to_relu)
    me = psutil.Process()

    def figures() -> tuple[int, int, int]:
        return me.num_fds(), len(me.children(recursive=True)), me.num_threads()

    ask(Case(graph, inputs, RunSpec(BackendRef("x", "x")), compiler=mixed[0]), seconds=30)
    before, resident = figures(), me.memory_info().rss
    for number in range(105):
        backend = mixed[number % len(mixed)]
        ask(Case(graph, inputs, RunSpec(BackendRef("x", "x")), compiler=backend), seconds=0.7)
    assert figures() == before
    assert me.memory_info().rss < resident + (32 << 20)
