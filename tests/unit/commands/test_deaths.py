"""What ``minidbg run`` does with the graph that a dead process has left."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minidbg.commands.run import launch
from minidbg.words.claims import is_claimed
from minidbg.words.settings import Reduce, Settings


def test_a_crash_is_claimed_before_the_process_that_reduces_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen beside a real daemon: it began with the crash while that process was still importing torch."""
    capture = tmp_path / ".minidbg" / "captures" / "crash.py"
    capture.parent.mkdir(parents=True)
    claims: list[bool] = []

    def run(*_: Any, **__: Any) -> Any:
        claims.append(is_claimed(capture))
        return SimpleNamespace(stdout="")

    monkeypatch.setattr(subprocess, "run", run)
    settings = Settings(reduce=Reduce.NOW, repro_dir=tmp_path)
    line = launch.reduced(capture, settings, "it died", lambda text: None, interrupted=False)
    assert line.startswith("it died; not reduced")
    assert claims == [True]
    assert not is_claimed(capture)
