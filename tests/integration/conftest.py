"""Fixtures of tests that stop short of writing and reducing, and a browser for those that look at pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.new_process import Answers

from minidbg.fx.case import Case
from minidbg.wrapper import handle


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Answers:
    """What failures are answered with in place of a reduction."""
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MINIDBG_DIR", str(tmp_path))
    recorded = Answers()
    monkeypatch.setattr(handle, "respond", recorded)
    return recorded


@pytest.fixture
def cases(answers: Answers) -> list[Case]:
    """The cases that were to be reduced; nothing is."""
    return answers.cases


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The system's Chromium without a window."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no Chromium here: apt install chromium")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()
