"""A budget has everything in it: questions, waiting, the verification. Time is a number that the world of a test moves on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from minidbg import repro, workers
from minidbg.core.deadline import Deadline
from minidbg.core.outcome import Kind, Outcome, Signature, Verdict
from minidbg.core.run_spec import BackendRef, RunSpec
from minidbg.core.settings import Reduce, Settings
from minidbg.fx.case import Case
from minidbg.oracle.execute import execute
from minidbg.reduction import publishing, reducing, session
from minidbg.reduction.candidate import BudgetSpent
from minidbg.reduction.result import Limits, ReductionResult
from minidbg.workers import Ended
from minidbg.wrapper import handle

BUDGET_S = 8.0


class World:
    """Its clock, and how long a question and a run of a script take there."""

    def __init__(self, question_s: float, script_s: float) -> None:
        self.now = 0.0
        self.question_s, self.script_s = question_s, script_s
        self.began: list[float] = []
        """When each question began."""
        self.runs: list[float] = []
        """When each run of a script began."""
        self.drafts: dict[Path, Case] = {}

    def clock(self) -> float:
        return self.now

    def takes(self, needed: float, at_most: float) -> bool:
        """Whether that is the end of it, and not of its time."""
        self.now += min(needed, at_most)
        return needed <= at_most

    def submit(self, case: Case, *, seconds: float, deadline: Deadline, **_: Any) -> Outcome:
        self.began.append(self.now)
        if not self.takes(self.question_s, deadline.left(seconds)):
            return Outcome(Verdict.TIMEOUT, signature=Signature(Kind.HANG))
        return execute(case)

    def judged(self, case: Case, draft: Path, seconds: float, *_: Any, **__: Any) -> Outcome:
        self.runs.append(self.now)
        self.drafts[draft] = case
        if not self.takes(self.script_s, seconds):
            return Outcome(Verdict.TIMEOUT, signature=Signature(Kind.HANG))
        return execute(case)

    def run_alone(self, draft: Path, *, seconds: float, **_: Any) -> Ended:
        self.runs.append(self.now)
        if not self.takes(self.script_s, seconds):
            return Ended(timed_out=True)
        return Ended(exit_status=execute(self.drafts[draft]).verdict.exit_status)


def failing_case() -> Case:
    def forward(x: torch.Tensor) -> Any:
        for layer in range(24):
            x = torch.sin(x) if layer != 17 else torch.relu(x)
        return (x,)

    name = "planted_backends.raises_on_relu"
    backend = BackendRef(name, name, setup=("import planted_backends",))
    case = Case(
        fx.symbolic_trace(forward), (torch.randn(4, 3),), RunSpec(backend), compiler=silent_about_relu
    )
    return publishing.with_failure(case, execute(case))


def silent_about_relu(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    """Its message names no op: there is something to search."""
    if torch.relu in [node.target for node in graph_module.graph.nodes]:
        raise ValueError("no kernel")
    return graph_module.forward


def reduced_in(world: World, folder: Path, monkeypatch: pytest.MonkeyPatch, **limits: Any) -> ReductionResult:
    monkeypatch.setattr(session.oracle, "ask", world.submit)
    monkeypatch.setattr(publishing, "judge_draft", world.judged)
    monkeypatch.setattr(publishing.repro, "run_alone", world.run_alone)
    monkeypatch.setattr(session.Standbys, "start", lambda *_: None)
    monkeypatch.setattr(reducing, "Session", partial(session.Session, clock=world.clock, started=0.0))
    given = Limits(seconds=BUDGET_S, due=BUDGET_S, **limits)
    return reducing.reduce_and_publish(failing_case(), folder, limits=given)


def test_the_verification_has_its_share_of_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = reduced_in(world := World(question_s=1.3, script_s=1.3), tmp_path, monkeypatch)
    assert written.path is not None
    assert not written.certified
    assert "(not certified as minimal: budget of 8 s)" in written.line
    assert "smaller graphs were not all tried: budget of 8 s" in written.path.read_text()
    searched = [at for at in world.began if at < world.runs[0]]
    assert len(searched) >= 4
    assert world.now <= BUDGET_S


def test_what_the_budget_does_not_let_verify_is_not_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that is cut off is no hang, and says nothing about the script: no further form is tried."""
    written = reduced_in(world := World(question_s=1.0, script_s=5.0), tmp_path, monkeypatch)
    assert written.path is None
    assert written.line.endswith("not verified: budget of 8 s")
    assert world.now <= BUDGET_S
    assert len(world.runs) == 1
    assert list(tmp_path.glob("*.py")) == []
    (best,) = tmp_path.glob(".minidbg/reductions/*/best.py")
    assert written.nodes_after < 24
    assert repro.load(best).graph_module is not None


def test_a_judge_in_time_and_a_script_by_itself_too_late_are_no_verification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = reduced_in(world := World(question_s=1.0, script_s=2.0), tmp_path, monkeypatch)
    assert written.path is None
    assert len(world.runs) == 2, "no other form: nothing was seen against the short one"
    assert world.now <= BUDGET_S


def test_a_question_that_the_deadline_cuts_off_is_not_remembered_as_a_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = reduced_in(world := World(question_s=3.0, script_s=1.0), tmp_path, monkeypatch)
    assert len([at for at in world.began if at < BUDGET_S / 2]) == 2, "one ended within half of the budget"
    assert written.also_found == 0


@pytest.mark.parametrize("kind", [Kind.COMPILE, Kind.HANG])
def test_no_question_gets_more_time_than_is_left(monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    now, given = 0.0, []

    def submit(case: Case, *, seconds: float, deadline: Deadline, **_: Any) -> Outcome:
        nonlocal now
        given.append((seconds, deadline.left()))
        now += 3.0
        return Outcome(Verdict.GONE)

    monkeypatch.setattr(session.oracle, "ask", submit)
    asks = session.Session(Limits(seconds=BUDGET_S), clock=lambda: now, started=0.0)
    case = publishing.with_failure(failing_case(), Outcome(Verdict.REPRODUCES, signature=Signature(kind)))
    for _ in range(2):
        asks.ask(case)
    with pytest.raises(BudgetSpent):
        asks.ask(case)
    assert [left for _, left in given] == [4.0, 1.0]


def test_waiting_for_another_process_is_in_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def acquire(lock: object, timeout: float) -> None:
        waited.append(timeout)
        if len(waited) == 1:
            raise reducing.Timeout("lock")

    monkeypatch.setattr(reducing.FileLock, "acquire", acquire)
    limits = Limits(seconds=BUDGET_S).begun()
    with reducing.locked_folder(failing_case(), tmp_path, limits, lambda _: None):
        pass
    assert waited[0] == 0
    assert waited[1] <= BUDGET_S / 2


def test_the_time_begins_with_the_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the capture took is gone from the budget, and the reducing process ends soon after it whatever it does."""
    given: list[float] = []

    def call_in_server(request: workers.Request, **_: Any) -> Ended:
        given.append(request.seconds)
        return Ended(timed_out=True, seconds=request.seconds)

    monkeypatch.setattr(reducing.workers, "call_in_server", call_in_server)
    monkeypatch.setattr(reducing.workers, "prepare", lambda *_: None)
    unread = nullcontext({"left_out_bytes": 0})
    monkeypatch.setattr(handle.oracle, "packed", lambda *_, **__: unread)
    now, keep_capture = 0.0, handle.repro.keep_capture

    def slowly(*args: Any, **how: Any) -> Path:
        nonlocal now
        now += 3.0
        return keep_capture(*args, **how)

    monkeypatch.setattr(handle.repro, "keep_capture", slowly)
    monkeypatch.setattr(handle.Deadline, "after", lambda seconds: Deadline(seconds, lambda: now))
    settings = Settings(seconds=BUDGET_S, reduce=Reduce.NOW, repro_dir=tmp_path)
    report = handle.respond(failing_case(), settings)
    assert report.capture is not None
    assert given == [BUDGET_S - 3.0 + reducing.REDUCTION_GRACE_S]
