"""What ``minidbg run`` does with the graph that a dead process has left."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minidbg.commands.run import launch
from minidbg.repro import flights
from minidbg.words.claims import is_claimed
from minidbg.words.settings import Reduce, Settings


def test_a_crash_is_claimed_from_before_it_is_a_capture_until_it_is_reduced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen beside a real daemon: it began with the crash while the process that was to reduce it had hardly started."""
    place = flights.own_name(1, flights.Step.COMPILE).place
    record = flights.flight_folder(tmp_path) / f"{place}-{2**22 + 1}-{10**13}-1.{flights.Step.COMPILE}.py"
    record.parent.mkdir(parents=True)
    record.write_text("# the graph")
    capture = flights.capture_of(record)
    claims: list[bool] = []
    as_capture = flights.as_capture

    def moved(path: Path) -> Path:
        claims.append(is_claimed(capture))
        return as_capture(path)

    def run(*_: Any, **__: Any) -> Any:
        claims.append(is_claimed(capture))
        return SimpleNamespace(stdout="")

    monkeypatch.setattr(flights, "as_capture", moved)
    monkeypatch.setattr(subprocess, "run", run)
    settings = Settings(reduce=Reduce.NOW, repro_dir=tmp_path)
    (line,) = launch.deaths_since(0.0, settings, launch.Ending(-11), lambda text: None)
    assert "not reduced: the capture is in" in line
    assert claims == [True, True]
    assert capture.exists()
    assert not is_claimed(capture)
