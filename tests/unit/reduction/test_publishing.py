"""From the smallest case to what is announced: the forms that are tried, and what is told of the way. Nothing is run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.doubles import Children
from torch import fx

from minidbg.core.deadline import Deadline
from minidbg.core.outcome import Kind, Outcome, Signature, Verdict
from minidbg.core.run_spec import BackendRef, CallPath, Context, RunSpec
from minidbg.fx.case import Case
from minidbg.judge.command import JUDGE_SCRIPT
from minidbg.reduction import publishing
from minidbg.reduction.candidate import BudgetSpent
from minidbg.reduction.publishing import (
    EXACTNESS_NOTES,
    Reduced,
    ended_early,
    forms,
    how_it_ended,
    in_time,
    limit_of_a_run,
    result_of,
    script_values_suffice,
    single_threaded,
    what_is_missing,
    why_not,
)
from minidbg.reduction.result import Limits
from minidbg.reduction.session import Session
from minidbg.repro import Exactness, read_header
from minidbg.workers import Ended, Request

COMPILE = Signature(Kind.COMPILE, types=("ValueError",))
OTHER = Signature(Kind.COMPILE, types=("KeyError",))


def relu(x: Any) -> Any:
    return torch.relu(x)


def case_of(program: Callable[..., Any] = relu, *inputs: Any, **spec: Any) -> Case:
    inputs = inputs or (torch.ones(2),)
    spec.setdefault("signature", COMPILE)
    return Case(fx.symbolic_trace(program), inputs, RunSpec(BackendRef("b", "b"), **spec))


def a_session(now: float = 0.0) -> Session:
    return Session(Limits(seconds=8.0), clock=lambda: now, started=0.0)


# ---- forms


def test_forms_go_from_what_reads_well_to_what_surely_fails() -> None:
    original, *steps = (case_of(lambda x, n=number: x + n) for number in range(6))
    smallest = case_of()
    found = list(forms(Reduced(smallest, tuple(steps)), original))
    assert [form.exactness for form in found] == [
        Exactness.SEEDED, Exactness.SMALL, *[Exactness.EXACT] * 7
    ]  # fmt: skip
    assert [form.case for form in found[:3]] == [smallest] * 3
    assert (found[3].case.spec.call, found[3].case.graph_module) == (CallPath.DIRECT, smallest.graph_module)
    assert [form.case for form in found[4:8]] == steps[:0:-1], "the last four steps, smallest first"
    assert found[8].case is original
    assert found[0].note == ""
    assert all(form.note for form in found[1:])


def test_a_graph_that_goes_by_a_direct_call_is_not_tried_so_again() -> None:
    found = list(forms(Reduced(case_of(call=CallPath.DIRECT)), case_of()))
    assert len(found) == 4


def test_a_form_with_one_thread_says_so_beside_what_else_it_says() -> None:
    for note in ("", EXACTNESS_NOTES[Exactness.SMALL]):
        form = single_threaded(publishing.ScriptForm(case_of(), Exactness.SMALL, note))
        assert (form.case.spec.context.threads, form.case.spec.context.threads_matter) == (1, True)
        *before, last = form.note.split("; ")
        assert before == ([note] if note else [])
        assert last == "with more than one thread the process dies instead"


def test_values_that_a_script_makes_are_asked_for_where_there_are_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Case] = []
    monkeypatch.setattr(Session, "fails_the_same", lambda self, case: asked.append(case) or False)
    form = publishing.ScriptForm(case_of(relu, torch.linspace(3, 5, 7)), Exactness.SEEDED)
    assert not script_values_suffice(form, a_session())
    assert not torch.equal(asked[0].inputs[0], form.case.inputs[0])
    without = publishing.ScriptForm(case_of(lambda n: n + 1, 3), Exactness.SEEDED)
    assert script_values_suffice(without, a_session())
    assert len(asked) == 1


@pytest.mark.parametrize("needed", [True, False])
def test_a_script_sets_the_variables_of_the_program_only_where_it_is_gone_without_them(
    needed: bool, tmp_path: Path
) -> None:
    """Which compiler and which card are the machine's, and stay."""
    shown = Outcome(Verdict.REPRODUCES, signature=COMPILE)

    def ends(request: Request) -> Ended:
        if request.argv[0] == JUDGE_SCRIPT:
            return Ended(stdout=json.dumps(shown.to_json()))
        assert {"OMP_NUM_THREADS", "MY_FLAG"} <= request.env.keys()
        assert "CXX" not in request.env
        sets = "{'OMP_NUM_THREADS': '1', 'MY_FLAG': '2'}" in Path(request.argv[0]).read_text()
        return Ended(exit_status=1 if sets or not needed else 0)

    context = Context(env={"OMP_NUM_THREADS": "1", "MY_FLAG": "2", "CXX": "/usr/bin/g++"})
    limit = Limits().value_limit_bytes
    asks = Session(Limits(), submit=Children(ends))
    _, draft = publishing.verify(
        case_of(context=context), Exactness.SEEDED, tmp_path, session=asks, value_limit_bytes=limit
    )
    assert draft is not None
    text = draft.read_text()
    assert ("OMP_NUM_THREADS" in text) is ("MY_FLAG" in text) is needed
    assert "CXX" not in text
    assert read_header(draft).spec.context.env_matters is needed


# ---- what is told


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Reduced(case_of()), ""),
        (Reduced(case_of(), ended_by="budget of 8 s"), "smaller graphs were not all tried: budget of 8 s"),
        (
            Reduced(case_of(), certified=True, ended_by="budget of 8 s"),
            "plainer values and settings were not all tried: budget of 8 s",
        ),
    ],
)
def test_what_a_spent_budget_left_out_is_told(found: Reduced, said: str) -> None:
    assert ended_early(found) == said


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        (Ended(timed_out=True, seconds=7.4), "no end within 7 s"),
        (Ended(exit_status=3), "exit status 3"),
        (Ended(exit_status=3, stdout="a\nb\n", stderr_tail="c"), "exit status 3: b"),
        (Ended(signal=11, stderr_tail="a\nSegmentation fault\n"), "SIGSEGV: Segmentation fault"),
        (Ended(exit_status=0, stdout="x" * 600), "exit status 0: " + "x" * 500),
    ],
)
def test_how_a_script_ended_by_itself_is_said_in_words(ended: Ended, said: str) -> None:
    assert how_it_ended(ended) == said


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (Outcome(Verdict.INVALID, reason="eager fails", message="m"), "eager fails"),
        (Outcome(Verdict.CHANGED, message="a\nb", stderr="c"), "the last line printed was: b"),
        (Outcome(Verdict.CHANGED, stderr="x" * 300), "the last line printed was: " + "x" * 200),
        (Outcome(Verdict.CHANGED), "nothing was printed"),
        (Outcome(Verdict.GONE), "there the backend agrees with eager; nothing was printed"),
    ],
)
def test_why_there_is_no_repro_is_what_its_last_run_showed(last: Outcome, said: str) -> None:
    assert why_not(last, None) == said


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (Outcome(Verdict.REPRODUCES), False),
        (Outcome(Verdict.FLAKY, reproduced=3, runs=4), True),
        (Outcome(Verdict.FLAKY, reproduced=4, runs=4), False),
        (Outcome(Verdict.FLAKY), False),
    ],
)
def test_a_script_that_fails_in_some_runs_says_in_how_many(outcome: Outcome, told: bool) -> None:
    note = "flaky: its script fails in 3 of 4 fresh interpreters"
    assert (note in result_of(Path("r.py"), case_of(), case_of(), outcome, a_session()).notes) is told


# ---- the budget


def test_a_run_gets_what_is_left_until_the_deadline() -> None:
    assert limit_of_a_run(None, 120.0) == 120.0
    assert limit_of_a_run(a_session(3.0), 120.0) == 5.0
    assert limit_of_a_run(a_session(3.0), 2.0) == 2.0
    with pytest.raises(BudgetSpent):
        limit_of_a_run(a_session(8.0), 120.0)


def test_a_run_that_the_deadline_has_ended_is_no_answer() -> None:
    hang = Outcome(Verdict.TIMEOUT, Signature(Kind.HANG))
    assert in_time(hang, None) is in_time(hang, a_session(3.0)) is hang
    with pytest.raises(BudgetSpent):
        in_time(hang, a_session(9.0))
    late = Outcome(Verdict.REPRODUCES, COMPILE)
    assert in_time(late, a_session(9.0)) is late


# ---- the passing neighbour


X = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("smallest", "neighbour", "said"),
    [
        (
            case_of(lambda x: torch.relu(x.sin()), X),
            case_of(lambda x: x.sin(), X),
            "passes without torch.relu",
        ),
        (
            case_of(lambda x, y: torch.relu(x) + y, X, X),
            case_of(lambda x: torch.relu(x) + x, X),
            "passes with 1 of the 2 inputs",
        ),
        (case_of(relu, X), case_of(relu, -X), ""),
    ],
    ids=["an op", "an input", "values"],
)
def test_what_the_passing_neighbour_lacks_is_told(smallest: Case, neighbour: Case, said: str) -> None:
    assert what_is_missing(smallest, neighbour) == said


def test_a_search_that_is_over_goes_on_to_the_deadline_with_its_scripts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """What was kept of the budget for the verification is spent now."""
    seen: list[Deadline] = []

    def verify(*_: Any, session: Session, **__: Any) -> tuple[Outcome, None]:
        seen.append(session.until)
        if len(seen) == 2:
            raise BudgetSpent
        return Outcome(Verdict.GONE), None

    monkeypatch.setattr(publishing, "verify", verify)
    exact = publishing.ScriptForm(case_of(), Exactness.EXACT)
    monkeypatch.setattr(publishing, "forms", lambda *_: [exact, exact])
    asks = a_session()
    found = publishing.publish_first_that_fails(case_of(), Reduced(case_of()), tmp_path, asks)
    assert seen == [asks.deadline] * 2
    assert (found.path, found.verdict, found.ended_by) == (None, Verdict.GONE, "budget of 8 s")
