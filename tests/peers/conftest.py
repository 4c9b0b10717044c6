"""Each retold test goes the quick way by default, and by fresh interpreters under ``-m slow``."""

from __future__ import annotations

import pytest
from support.new_process import as_in_a_new_process  # noqa: F401 - a fixture for all tests here
from support.quick_path import take_the_quick_path

BOTH_WAYS = ["quick", pytest.param("fresh", marks=pytest.mark.slow)]


@pytest.fixture(params=BOTH_WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the repro is verified: in a fork of this process, or as a user would run it."""
    if request.param == "quick":
        take_the_quick_path(monkeypatch)
    return str(request.param)
