"""What is done about a captured failure."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from minidbg import workers
from minidbg.fx.case import Case
from minidbg.fx.copying import capture_by_dynamo
from minidbg.words.errors import MinidbgError
from minidbg.words.outcome import Kind, Signature
from minidbg.words.run_spec import BackendRef, RunSpec
from minidbg.words.settings import Reduce, Settings
from minidbg.wrapper import Report, handle

ONES = torch.ones(3)


def captured_in(folder: Path, value: torch.Tensor = ONES, **more: Any) -> Report:
    graph_module, inputs = capture_by_dynamo(torch.relu, (value,))
    case = Case(graph_module, inputs, RunSpec(BackendRef("b", "b"), signature=Signature(Kind.COMPILE)))
    return handle.respond(case, Settings(repro_dir=folder, reduce=Reduce.LATER, **more))


def test_a_folder_that_can_be_written_stays(tmp_path: Path) -> None:
    report = captured_in(tmp_path / "repros")
    assert report.line.startswith("captured, ")
    assert report.capture.is_relative_to(tmp_path / "repros")
    assert not list((tmp_path / "repros" / ".minidbg" / "drafts").iterdir())


def test_a_capture_holds_no_more_values_than_the_setting_allows(tmp_path: Path) -> None:
    for limit, stored in ((799, False), (800, True)):
        capture = captured_in(
            tmp_path / str(limit), torch.randint(50, (100,)), value_limit_bytes=limit
        ).capture
        assert capture.with_suffix(".safetensors").exists() is stored


def test_a_folder_that_cannot_be_written_is_told_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_the_way = tmp_path / "repros"
    in_the_way.write_text("a file")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "temporary"))
    report = captured_in(in_the_way)
    assert report.capture.is_relative_to(tmp_path / "temporary" / f"minidbg_repros-{os.getuid()}")
    assert report.line.startswith(f"{in_the_way} cannot be written (")
    assert in_the_way.read_text() == "a file"


def test_a_reducing_process_without_an_answer_says_how_it_ended() -> None:
    with pytest.raises(MinidbgError, match="ended after 7 s"):
        handle.written_by(workers.ChildResult(timed_out=True, seconds=7.0))
    with pytest.raises(MinidbgError, match=r"signal 11\): last words"):
        handle.written_by(workers.ChildResult(signal=11, stderr_tail="first\nlast words\n"))
    with pytest.raises(MinidbgError, match="does not show its failure"):
        handle.written_by(workers.ChildResult(answered=True, value={"refused": "does not show its failure"}))
