"""What is done about a captured failure."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from minidbg import processes
from minidbg.backend import respond
from minidbg.errors import MinidbgError
from minidbg.settings import Settings


def test_a_folder_that_can_be_written_stays(tmp_path: Path) -> None:
    settings = Settings(repro_dir=tmp_path / "repros")
    assert respond.with_folder_that_can_be_written(settings) == (settings, "")
    assert not list((tmp_path / "repros" / ".minidbg" / "drafts").iterdir())


def test_a_folder_that_cannot_be_written_is_told_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_the_way = tmp_path / "repros"
    in_the_way.write_text("a file")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "temporary"))
    settings, complaint = respond.with_folder_that_can_be_written(Settings(repro_dir=in_the_way))
    assert settings.repro_dir == tmp_path / "temporary" / f"minidbg_repros-{os.getuid()}"
    assert complaint.startswith(f"{in_the_way} cannot be written (")
    assert in_the_way.read_text() == "a file"


def test_a_reducing_process_without_an_answer_says_how_it_ended() -> None:
    with pytest.raises(MinidbgError, match="ended after 7 s"):
        respond.written_by(processes.ChildResult(timed_out=True, seconds=7.0))
    with pytest.raises(MinidbgError, match=r"signal 11\): last words"):
        respond.written_by(processes.ChildResult(signal=11, stderr_tail="first\nlast words\n"))
    with pytest.raises(MinidbgError, match="does not show its failure"):
        respond.written_by(
            processes.ChildResult(answered=True, value={"refused": "does not show its failure"})
        )
