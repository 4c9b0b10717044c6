from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Iterator

import psutil
import pytest

from minidbg import workers
from minidbg.workers.client import SERVERS


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def left_over(kept: set[int]) -> list[int]:
    """Children that are no forkserver; and what a forkserver has started, unless it has ended and is only to be reaped."""
    own = [child.pid for child in psutil.Process().children() if child.pid not in kept]
    for pid in kept:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    own += [child.pid] if child.status() != psutil.STATUS_ZOMBIE else []
    return own


def own_server() -> set[int]:
    return {server.pid for server in SERVERS.values() if server.pid}


@pytest.fixture(scope="session", autouse=True)
def _server_ends() -> Iterator[None]:
    yield
    workers.end_server()


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    """No child, zombie or descriptor more than before the test, but the one interpreter that is kept for questions."""
    if left_over(
        own_server()
    ):  # an interpreter that another folder's test has had started ahead, and not used
        workers.end_server()
    before = open_descriptors()
    kept_before = own_server()
    yield
    kept = own_server()
    if kept and not kept_before:
        before = open_descriptors()  # its control socket and its stderr
    until = time.monotonic() + 2  # who supervised a question ends just after its answer
    while (left := left_over(kept)) and kept and time.monotonic() < until:
        time.sleep(0.01)
    assert left == []
    if open_descriptors() > before:
        gc.collect()
    assert open_descriptors() <= before
