"""The whole way from wrap to a verified repro, without a process for each step: for many small failures in a short time.

Oracle calls run in the reducing process, and the script runs in a fork of a process that has torch. All else is as it is
for a user. ``failing_program`` gives what he would find.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import pytest
import torch
from fails_on import all_nodes, name_of

import minidbg
from minidbg import asking, repro, torch_internals, workers
from minidbg.asking.execute import execute
from minidbg.fx.case import Case
from minidbg.judge import command
from minidbg.judge.script import outcome_of
from minidbg.reduction import reducing
from minidbg.reduction.result import Limits
from minidbg.reduction.session import PrestartedInterpreters
from minidbg.words.outcome import Outcome, Verdict
from minidbg.wrapper.process import PROCESS

SCRIPT_SECONDS = 60.0
torch_internals.forks_survive_autograd()  # here, where all tests are read: forks of this process are to run backward


def take_the_quick_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reduction is a fork of this process, and runs, those of scripts too, start no interpreter from here on."""
    monkeypatch.setattr(reducing, "prepare", lambda case: None)
    monkeypatch.setattr(reducing, "call_reduce_in_child", reduce_in_fork)
    monkeypatch.setattr(asking, "packed", not_packed)
    monkeypatch.setattr(asking, "submit", ask_here)
    monkeypatch.setattr(repro, "run", judge_in_fork)
    monkeypatch.setattr(repro, "run_alone", run_in_fork)
    monkeypatch.setattr(PrestartedInterpreters, "start", lambda *_: None)


def not_packed(case: Case, **limits: Any) -> Any:
    return nullcontext({"left_out_bytes": 0})


def reduce_in_fork(
    case: Case,
    package: Any,
    folder: Path,
    limits: Limits,
    stream: TextIO,
    deadline: Any,
    *,
    on_interrupt: Any,
) -> workers.ChildResult:
    return workers.call_in_fork(
        lambda: reducing.reduce_on_stream(case, folder, limits, stream),
        seconds=deadline.left() + reducing.GRACE_S,
        on_interrupt=on_interrupt,
    )


def ask_here(case: Case, **limits: Any) -> Outcome:
    return execute(case)


def judge_in_fork(path: Path, *, seconds: float = SCRIPT_SECONDS, **how: Any) -> Outcome:
    """What the installed judge says of the script at ``path``."""

    def in_child() -> object:
        return outcome_of(command.script_of(command.definitions_of(str(path)), str(path))).to_json()

    done = workers.call_in_fork(in_child, seconds=seconds)
    if not done.answered:
        return Outcome(Verdict.INVALID, reason=done.error or done.stderr_tail)
    return Outcome.from_json(done.value)


def run_in_fork(path: Path, *, seconds: float = SCRIPT_SECONDS, **how: Any) -> workers.ChildResult:
    """How the script at ``path`` ends by itself."""

    def in_child() -> object:
        sys.argv = [str(path)]
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as ended:
            return ended.code or 0
        return 0

    done = workers.call_in_fork(in_child, seconds=seconds)
    return replace(done, exit_status=done.value) if done.answered else replace(done, stderr_tail=done.error)


@dataclass(frozen=True)
class Found:
    """What a user has after his program has failed."""

    error: Exception
    path: Path
    text: str
    case: Case

    @property
    def ops(self) -> list[str]:
        """Names of the calls of the repro's graph, those of nested graphs first."""
        nested = [node for node in all_nodes(self.case.graph_module) if node.op.startswith("call")]
        outer = set(self.case.graph_module.graph.nodes)
        ordered = [
            *[node for node in nested if node not in outer],
            *[node for node in nested if node in outer],
        ]
        return [name_of(node) for node in ordered]


def failing_program(
    function: Callable[..., Any], args: Sequence[Any], backend: Any, folder: Path, **given: Any
) -> Found:
    """Compile and call ``function``, which must fail and leave a verified repro; ``given`` goes to torch.compile."""
    torch._dynamo.reset()
    PROCESS.__init__()
    wrapped = minidbg.wrap(backend, repro_dir=folder, seconds=120)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever type the backend raises
        torch.compile(function, backend=wrapped, **given)(*args)
    report = minidbg.report_of(caught.value)
    assert report is not None, caught.value
    assert report.path is not None, report.line
    assert [path.name for path in folder.glob("*.py")] == [report.path.name]
    return Found(caught.value, report.path, report.path.read_text(), minidbg.load(report.path))
