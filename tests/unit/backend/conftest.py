from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from recording import Answers

from minidbg.backend import failures
from minidbg.backend.budget import PROCESS


@pytest.fixture(autouse=True)
def _a_fresh_process_as_far_as_minidbg_knows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    PROCESS.reset()
    torch._dynamo.reset()
    for name in ("WORLD_SIZE", "RANK", "MINIDBG_DIR"):
        monkeypatch.delenv(name, raising=False)
    yield
    PROCESS.reset()
    torch._dynamo.reset()


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Failures are answered by a stub; ``answers.cases`` are what was captured."""
    recorded = Answers()
    monkeypatch.setattr(failures, "respond", recorded)
    return recorded
