"""Fixtures of tests that stop short of writing and reducing."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.new_process import Answers

from minidbg.fx.case import Case
from minidbg.wrapper.process import PROCESS


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Answers:
    """What failures are answered with in place of a reduction."""
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MINIDBG_DIR", str(tmp_path))
    PROCESS.responder = recorded = Answers()
    return recorded


@pytest.fixture
def cases(answers: Answers) -> list[Case]:
    """The cases that were to be reduced; nothing is."""
    return answers.cases
