"""One home for what the tests of a failing program begin with: nothing compiled, no failure answered, the same random numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from minidbg.backend.budget import PROCESS


@pytest.fixture(autouse=True)
def as_in_a_new_process() -> Iterator[None]:
    PROCESS.reset()
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    PROCESS.reset()
    torch._dynamo.reset()
