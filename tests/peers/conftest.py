"""Each retold test goes the quick way by default, and by fresh interpreters under ``-m slow``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from quick_path import take_the_quick_path

from minidbg.backend.budget import PROCESS

BOTH_WAYS = ["quick", pytest.param("fresh", marks=pytest.mark.slow)]


@pytest.fixture(params=BOTH_WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the repro is verified: in a fork of this process, or as a user would run it."""
    if request.param == "quick":
        take_the_quick_path(monkeypatch)
    return str(request.param)


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    PROCESS.reset()
    torch._dynamo.reset()
