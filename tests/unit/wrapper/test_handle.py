"""What is done about a captured failure."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.doubles import Hands
from torch import fx

from minidbg import workers
from minidbg.core.errors import AccuracyError, MinidbgError
from minidbg.core.outcome import Kind, Signature, Verdict
from minidbg.core.run_spec import BackendRef, RunSpec
from minidbg.core.settings import Reduce, Settings
from minidbg.fx.case import Case
from minidbg.fx.copying import capture_by_dynamo
from minidbg.reduction.result import ReductionResult
from minidbg.wrapper import Report, handle
from minidbg.wrapper.capture import Failure, case_of_failure
from minidbg.wrapper.chain import Link

ONES = torch.ones(3)


def captured_in(folder: Path, value: torch.Tensor = ONES, **more: Any) -> Report:
    graph_module, inputs = capture_by_dynamo(torch.relu, (value,))
    case = Case(graph_module, inputs, RunSpec(BackendRef("b", "b"), signature=Signature(Kind.COMPILE)))
    return handle.respond(case, Settings(repro_dir=folder, reduce=Reduce.LATER, **more))


def test_a_capture_holds_no_more_values_than_the_setting_allows(tmp_path: Path) -> None:
    for limit, stored in ((799, False), (800, True)):
        capture = captured_in(
            tmp_path / str(limit), torch.randint(50, (100,)), value_limit_bytes=limit
        ).capture
        assert capture.with_suffix(".safetensors").exists() is stored


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    (folder := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def captured_elsewhere(folder: Path) -> Path:
    """Where the capture is whose folder cannot be written: a file is in the way."""
    (in_the_way := folder / "repros").write_text("a file")
    report = captured_in(in_the_way)
    spare = report.capture.parents[2]
    assert report.line.startswith(f"{in_the_way} cannot be written (File exists), so {spare} is used; ")
    assert in_the_way.read_text() == "a file"
    return spare


def test_a_folder_that_cannot_be_written_is_told_and_replaced_by_this_users_own(
    tmp_path: Path, temporary: Path
) -> None:
    for _ in range(2):
        assert captured_elsewhere(tmp_path) == temporary / f"minidbg_repros-{os.getuid()}"
    (own,) = temporary.iterdir()
    assert own.stat().st_mode & 0o077 == 0, "what a program computes is nobody else's business"


def test_a_link_that_somebody_else_has_put_among_the_temporary_files_is_not_written_through(
    tmp_path: Path, temporary: Path
) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (temporary / f"minidbg_repros-{os.getuid()}").symlink_to(elsewhere)
    spare = captured_elsewhere(tmp_path)
    assert spare.parent == temporary
    assert not spare.is_symlink()
    assert list(elsewhere.iterdir()) == []


# ---- what is said


def failure(error: Exception | None = None, kind: Kind = Kind.COMPILE, **more: Any) -> Failure:
    graph = fx.symbolic_trace(lambda x: (torch.relu(x) + 1,))
    error = error or ValueError("no kernel\nfor this")
    return Failure(
        graph, more.pop("inputs", (ONES,)), Link(more.pop("backend", "eager")), kind, error, **more
    )


# ---- whether the backend is to blame


def refuses() -> fx.GraphModule:
    return fx.symbolic_trace(lambda x: (x @ x,))


@pytest.mark.parametrize(
    ("kind", "error", "ranks", "blameless"),
    [
        (Kind.RUNTIME, ValueError(), "1", True),
        (Kind.COMPILE, ValueError(), "1", False),
        (Kind.RUNTIME, MemoryError(), "1", False),
        (Kind.RUNTIME, ValueError(), "2", False),
    ],
    ids=["it is asked", "compiling", "no memory", "several ranks"],
)
def test_eager_is_asked_about_a_run_that_it_can_repeat(
    kind: Kind, error: Exception, ranks: str, blameless: bool
) -> None:
    failed = replace(failure(error, kind, inputs=(torch.ones(2, 3),)), graph_module=refuses())
    assert handle.eager_fails_too(failed, {"WORLD_SIZE": ranks}) is blameless


def test_what_eager_runs_is_the_backends_failure_and_the_history_of_its_inputs_stays() -> None:
    x = torch.ones(3, requires_grad=True) * 2
    failed = failure(kind=Kind.RUNTIME, inputs=(x, 3))
    graph = fx.symbolic_trace(lambda x, n: (x.mul_(n),))
    before = x.grad_fn
    assert not handle.eager_fails_too(replace(failed, graph_module=graph), {})
    assert x.grad_fn is before


# ---- what no script can hold


def test_where_not_even_the_text_can_be_written_the_reason_is_said_alone(tmp_path: Path) -> None:
    (tmp_path / "repros").write_text("a file")
    report = handle.report_without_script(
        failure(), MinidbgError("odd"), Settings(repro_dir=tmp_path / "repros")
    )
    assert (report.line, report.capture) == ("not captured: odd", None)


def test_what_the_file_system_refuses_becomes_a_report() -> None:
    def raises(*_: Any, **__: Any) -> Report:
        raise OSError(28, "full")

    handle.PROCESS.responder = raises
    line = r"not captured, the file system refused: .*full; repro_dir= names another"
    assert re.match(line, handle.handle(failure(), Settings()).line)


# ---- handling


@pytest.fixture
def responded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Case, Settings]]:
    """What was to be written and reduced; each takes two seconds of the budget."""
    found: list[tuple[Case, Settings]] = []
    handle.PROCESS.clock = clock = Hands()

    def respond(case: Case, settings: Settings, same_as: Path | None = None) -> Report:
        found.append((case, settings))
        clock.now += 2.0
        repro = Path("r.py") if settings.reduce is Reduce.NOW else None
        return Report(f"report {len(found)}, same as {same_as}", repro)

    handle.PROCESS.responder = respond
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return found


def test_reductions_spend_the_seconds_of_the_process_and_captures_spend_none(
    responded: list[tuple[Case, Settings]],
) -> None:
    handle.handle(failure(), Settings(reduce=Reduce.LATER))
    assert handle.PROCESS.budget.spent_s == 0.0
    handle.handle(failure(), Settings(seconds=10.0))
    assert handle.PROCESS.budget.spent_s == 2.0
    handle.handle(failure(ValueError("another")), Settings(seconds=10.0))
    assert responded[-1][1].seconds == 8.0
    handle.handle(failure(ValueError("a third")), Settings(seconds=4.0))
    case, settings = responded[-1]
    assert settings.reduce is Reduce.LATER
    assert "4 s" in case.provenance.notes[-1]


def test_who_listens_hears_each_failure_with_what_became_of_it(
    responded: list[tuple[Case, Settings]],
) -> None:
    heard: list[Any] = []
    handle.PROCESS.listeners.append(lambda *told: heard.append(told))
    failed = failure()
    report = handle.handle(failed, Settings())
    assert heard == [(failed, report)]


def test_wrong_results_of_another_backend_or_op_are_another_bug(
    responded: list[tuple[Case, Settings]],
) -> None:
    """Their signatures say little: ``output: float``."""
    rows = [("eager", "relu"), ("eager", "sin"), ("aot_eager", "relu"), ("eager", "relu")]
    for number, (backend, op) in enumerate(rows):
        signature = {"message": "output: float"}
        error = AccuracyError("wrong", {"signature": signature, "where": "output 0", "category": "float"})
        error.op = op
        graph = fx.symbolic_trace(lambda x, number=number: (x + number,))
        failed = failure(error, Kind.ACCURACY, backend=backend)
        handle.handle(replace(failed, graph_module=graph), Settings())
    now, later = Reduce.NOW, Reduce.LATER
    assert [settings.reduce for _, settings in responded] == [now, now, now, later]


WRITTEN = ReductionResult(None, 3, 1, 7, 2.0, True, Verdict.REPRODUCES)
REPRO = replace(WRITTEN, path=Path("r.py"))
CAPTURED = "; the capture is in {capture}"


@pytest.mark.parametrize(
    ("ends", "path", "line"),
    [
        (MinidbgError("it was ended"), None, f"it was ended{CAPTURED}"),
        (OSError(11, "full"), None, "not reduced: no process can be started for it here ([Errno 11] full); run: minidbg reduce {capture}"),
        (OSError("its server was ended"), None, "not reduced: its server was ended; run: minidbg reduce {capture}"),
        (workers.Ended(timed_out=True, seconds=7.0), None, f"not reduced: the reducing process was ended after 7 s{CAPTURED}"),
        (workers.Ended(answered=True, value={"refused": "passes"}), None, f"passes{CAPTURED}"),
        (workers.Ended(answered=True, value=WRITTEN.to_json()), None, f"{WRITTEN.line}{CAPTURED}"),
        (workers.Ended(answered=True, value=REPRO.to_json()), Path("r.py"), REPRO.line),
    ],
)  # fmt: skip
def test_of_a_reduction_its_repro_is_named_or_the_capture_and_why_there_is_none(
    tmp_path: Path, ends: Any, path: Path | None, line: str
) -> None:
    def result(**_: Any) -> workers.Ended:
        if isinstance(ends, Exception):
            raise ends
        return ends

    case = case_of_failure(failure(), Settings())
    ask = lambda _: SimpleNamespace(result=result)  # noqa: E731
    report = handle.respond(case, Settings(repro_dir=tmp_path, reduce=Reduce.NOW), ask=ask)
    assert (report.line, report.path) == (line.format(capture=report.capture), path)
    assert report.capture.is_relative_to(tmp_path)


class WithFunction(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *args: Any, **more: Any) -> Any:
        return super().__torch_function__(*args, **more)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (ONES, ""),
        (torch.nn.Parameter(torch.ones(3)), ""),
        (torch.ones(4)[1:], "x was a view with a base of its own (x._base)"),
        (torch.ones(3).as_subclass(WithFunction), "x was a WithFunction, which has a __torch_function__"),
    ],
)
def test_a_case_notes_what_of_an_input_our_runs_lack(value: torch.Tensor, says: str) -> None:
    case = case_of_failure(failure(inputs=(value,)), Settings())
    assert list(case.provenance.notes) == ([f"in the program {says}"] if says else [])
