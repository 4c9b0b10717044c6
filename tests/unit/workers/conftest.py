from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import psutil
import pytest


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    """No child, zombie or descriptor more than before the test."""
    before = open_descriptors()
    yield
    assert psutil.Process().children(recursive=True) == []
    if open_descriptors() > before:
        gc.collect()
    assert open_descriptors() <= before
