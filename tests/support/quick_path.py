"""The whole way from wrap to a verified repro, without a process for each step: for many small failures in a short time.

Oracle calls run in the reducing process, and the script runs in a fork of a process that has torch. All else is as it is
for a user. ``failing_program`` gives what he would find.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fails_on import all_nodes, name_of

import minidbg
from minidbg import oracle, torch_internals, workers
from minidbg.core.machine import Deadline
from minidbg.core.outcome import Outcome, Verdict
from minidbg.core.settings import Settings
from minidbg.fx.case import Case
from minidbg.judge import command
from minidbg.judge.script import outcome_of_script
from minidbg.oracle.execute import execute
from minidbg.reduction import reducing
from minidbg.reduction.result import Limits
from minidbg.wrapper import handle
from minidbg.wrapper.process import PROCESS
from support.doubles import Children

SCRIPT_SECONDS = 60.0
torch_internals.forks_survive_autograd()  # here, where all tests are read: forks of this process are to run backward


def take_the_quick_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reduction is a fork of this process, and runs, those of scripts too, start no interpreter from here on."""
    monkeypatch.setattr(PROCESS, "responder", partial(handle.respond, reduce=reduce_in_fork))


def reduce_in_fork(case: Case, package: object, settings: Settings, deadline: Deadline) -> workers.Ended:
    limits = Limits(seconds=settings.seconds, due=deadline.at, value_limit_bytes=settings.value_limit_bytes)
    with workers.stream_to_the_user() as stream:
        argument = {"folder": settings.repro_dir, "limits": asdict(limits), "stream": stream.fileno()}
        return workers.call_in_fork(
            lambda: reducing.reduce_in_child(argument, None, lambda _: case, Children(ends)),
            seconds=deadline.left() + reducing.REDUCTION_GRACE_S,
        )


def ends(request: workers.Request) -> workers.Ended:
    """A question is answered in the reducing process itself, a script is judged and run in a fork of it."""
    if request.call:
        outcome = execute(oracle.unpacked(request.argument["case"]))
        return workers.Ended(answered=True, value=outcome.to_json())
    if request.argv[0] == command.JUDGE_SCRIPT:
        return workers.Ended(stdout=json.dumps(judge_in_fork(Path(request.argv[1])).to_json()))
    return run_in_fork(Path(request.argv[0]), seconds=request.seconds)


def judge_in_fork(path: Path, *, seconds: float = SCRIPT_SECONDS) -> Outcome:
    """What the installed judge says of the script at ``path``."""

    def in_child() -> object:
        return outcome_of_script(command.script_of(command.definitions_of(str(path)), str(path))).to_json()

    done = workers.call_in_fork(in_child, seconds=seconds)
    if not done.answered:
        return Outcome(Verdict.INVALID, reason=done.error or done.stderr_tail)
    return Outcome.from_json(done.value)


def run_in_fork(path: Path, *, seconds: float) -> workers.Ended:
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
    PROCESS.__init__(responder=PROCESS.responder)
    wrapped = minidbg.wrap(backend, repro_dir=folder, seconds=120)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever type the backend raises
        torch.compile(function, backend=wrapped, **given)(*args)
    report = minidbg.report_of(caught.value)
    assert report is not None, caught.value
    assert report.path is not None, report.line
    assert [path.name for path in folder.glob("*.py")] == [report.path.name]
    return Found(caught.value, report.path, report.path.read_text(), minidbg.load(report.path))
