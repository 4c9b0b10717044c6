from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from minidbg.backend.budget import PROCESS


@pytest.fixture(autouse=True)
def _as_in_a_new_process() -> Iterator[None]:
    """No failure has been answered, nothing compiled, and the RNG starts anew."""
    PROCESS.reset()
    torch.manual_seed(0)
    yield
    PROCESS.reset()
    torch._dynamo.reset()
