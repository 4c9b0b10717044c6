"""A table of which CI asks a part at each commit, another at the next: a whole one in ``of`` commits; ``.ci/run --all`` asks all rows."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest

from support import TESTS


@cache
def commits() -> int:
    """How many there are up to this one; 0 where the source is no repository."""
    done = subprocess.run(
        ["git", "rev-list", "--count", "HEAD"], cwd=TESTS, capture_output=True, text=True, check=False
    )
    return int(done.stdout) if done.returncode == 0 else 0


def is_asked_now(number: int, of: int) -> bool:
    return (number - commits()) % of == 0


def asked_now(number: int, of: int = 3) -> list[pytest.MarkDecorator]:
    """The marks of a row whose others it already has."""
    return [] if is_asked_now(number, of) else [pytest.mark.exhaustive]


def rotating(rows: Iterable[Any], of: int = 3) -> list[Any]:
    """The rows; those that are not asked now are marked exhaustive."""
    return [
        row if is_asked_now(number, of) else pytest.param(row, marks=pytest.mark.exhaustive)
        for number, row in enumerate(rows)
    ]
