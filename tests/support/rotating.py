"""CI asks a part of the slow tests at each commit, another at the next: all of them in ``PARTS`` commits; ``.ci/run --all`` asks all."""

from __future__ import annotations

import subprocess
import zlib
from collections.abc import Sequence
from functools import cache

import pytest

from support import TESTS

PARTS = 10


@cache
def commits() -> int:
    """How many there are up to this one; 0 where the source is no repository."""
    done = subprocess.run(
        ["git", "rev-list", "--count", "HEAD"], cwd=TESTS, capture_output=True, text=True, check=False
    )
    return int(done.stdout) if done.returncode == 0 else 0


def leave_for_later(items: Sequence[pytest.Item]) -> None:
    """Mark the slow tests that are not asked at this commit as exhaustive; each has its turn by its name, so that a new one moves no other."""
    for item in items:
        is_slow = item.get_closest_marker("slow") and not item.get_closest_marker("exhaustive")
        if is_slow and (zlib.crc32(item.nodeid.encode()) + commits()) % PARTS:
            item.add_marker("exhaustive")
