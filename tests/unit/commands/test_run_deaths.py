"""What ``minidbg run`` does with the graph that a dead process has left."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from minidbg.commands.run import launch
from minidbg.core.settings import Reduce, Settings
from minidbg.repro import crash_records


def test_a_crash_is_a_capture_when_its_reduction_gave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = crash_records.own_name(1, crash_records.Step.COMPILE).place
    record = (
        crash_records.make_record_folder(tmp_path)
        / f"{place}-{2**22 + 1}-{10**13}-1.{crash_records.Step.COMPILE}.py"
    )
    record.write_text("# the graph")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=""))
    settings = Settings(reduce=Reduce.NOW, repro_dir=tmp_path)
    (line,) = launch.deaths_since(0.0, settings, -11, lambda text: None)
    assert "not reduced: the capture is in" in line
    (capture,) = (tmp_path / ".minidbg" / "captures").glob("crash_*.py")
    assert capture.read_text() == "# the graph"
