"""A session by itself: what it learns from each answer, what it may still spend, and how it tells flaky failures apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from minidbg import workers
from minidbg.core.deadline import Deadline
from minidbg.core.outcome import Kind, Outcome, Signature, Verdict
from minidbg.core.run_spec import BackendRef, RunSpec
from minidbg.fx.case import Case
from minidbg.reduction import session
from minidbg.reduction.candidate import BudgetSpent
from minidbg.reduction.result import Limits, Progress
from minidbg.reduction.session import (
    Reliability,
    Session,
    measured,
    runs_worth_having,
)

GONE, INVALID = Outcome(Verdict.GONE), Outcome(Verdict.INVALID)
FAILS = Outcome(Verdict.REPRODUCES, Signature(Kind.COMPILE))
SLOW = Outcome(Verdict.TIMEOUT, Signature(Kind.HANG))


def changed(name: str) -> Outcome:
    return Outcome(Verdict.CHANGED, Signature(Kind.COMPILE, types=(name,)))


def case_of(nodes: int, kind: Kind | None = Kind.COMPILE, inputs: int = 1) -> Case:
    graph = fx.Graph()
    value, *_ = [graph.placeholder(f"x{number}") for number in range(inputs)]
    for _ in range(nodes):
        value = graph.call_function(torch.sin, (value,))
    graph.output((value,))
    spec = RunSpec(BackendRef("b", "b"), signature=Signature(kind) if kind else None)
    return Case(fx.GraphModule(torch.nn.Module(), graph), (torch.ones(2),) * inputs, spec)


class World:
    """Answers in turn, each after so many seconds."""

    def __init__(self, *answers: Outcome, each_s: float = 1.0) -> None:
        self.answers, self.each_s = list(answers), each_s
        self.now = 0.0
        self.asked: list[Case] = []
        self.limits_s: list[float] = []

    def submit(self, case: Case, *, seconds: float, deadline: Deadline, **_: Any) -> Outcome:
        self.asked.append(case)
        self.limits_s.append(seconds)
        self.now += self.each_s
        return self.answers.pop(0)


def begun(
    monkeypatch: pytest.MonkeyPatch, *answers: Outcome, each_s: float = 1.0, **limits: Any
) -> tuple[Session, World]:  # fmt: skip
    world = World(*answers, each_s=each_s)
    monkeypatch.setattr(session.oracle, "ask", world.submit)
    return Session(Limits(**limits), clock=lambda: world.now, started=0.0), world


# ---- what is learnt


def test_the_smallest_case_that_failed_is_the_best_and_of_equal_ones_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cases = [case_of(3), case_of(4), case_of(2, inputs=2), case_of(2), case_of(2), case_of(1)]
    asks, _ = begun(monkeypatch, FAILS, FAILS, FAILS, FAILS, FAILS, GONE)
    best = []
    for case in cases:
        asks.ask(case)
        best.append(asks.best)
    assert [cases.index(one) for one in best if one is not None] == [0, 0, 2, 3, 3, 3]


def test_a_flaky_answer_is_a_failure_and_the_last_one_shown_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flaky = Outcome(Verdict.FLAKY, Signature(Kind.COMPILE), message="one")
    asks, _ = begun(monkeypatch, flaky, GONE)
    asks.ask(case_of(3))
    asks.ask(case_of(2))
    assert asks.last_shown is flaky
    assert asks.best is not None


def test_nodes_that_frames_held_stay_suspected_until_others_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told = replace(FAILS, suspects=(("a",),))
    asks, _ = begun(monkeypatch, told, FAILS, replace(told, suspects=(("b",),)), told)
    seen = []
    for nodes in (4, 3, 2, 5):
        asks.ask(case_of(nodes))
        seen.append(asks.suspects)
    assert seen == [(("a",),), (("a",),), (("b",),), (("b",),)]


def test_each_other_failure_is_remembered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asks, _ = begun(monkeypatch, changed("A"), changed("A"), changed("B"), Outcome(Verdict.CHANGED), INVALID)
    for nodes in range(5, 0, -1):
        asks.ask(case_of(nodes))
    assert [outcome.signature.types for _, outcome in asks.others.values()] == [("A",), ("B",)]


WRONG_INPUT = Signature(Kind.ACCURACY, message="input: float")


@pytest.mark.parametrize(
    ("phases", "expected", "message", "is_another"),
    [
        ("nodes", WRONG_INPUT, "output: nan", True),
        ("bypass", WRONG_INPUT, "output: nan", False),
        ("sizes nodes", WRONG_INPUT, "output: nan", False),
        ("nodes", WRONG_INPUT, "output: float", False),
        ("nodes", Signature(Kind.ACCURACY, message="output: float"), "input: float", False),
        ("nodes", Signature(Kind.ACCURACY, message="output: float"), "gradient: float", True),
    ],
)
def test_another_failure_is_the_programs_own_and_of_other_memory(
    monkeypatch: pytest.MonkeyPatch, phases: str, expected: Signature, message: str, is_another: bool
) -> None:
    """Not one of values or calls that the program never had, nor the same write seen as an output."""
    seen = Outcome(Verdict.CHANGED, Signature(Kind.ACCURACY, message=message))
    before, phase = ["nodes", *phases.split()][-2:]
    asks, _ = begun(monkeypatch, FAILS, seen)
    for name in (before, phase):
        asks.begin(name)
        asks.ask(case_of(2).with_spec(signature=expected))
    assert bool(asks.others) is is_another


def test_after_a_time_limit_no_larger_graph_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asks, world = begun(monkeypatch, SLOW, GONE)
    asks.ask(case_of(5))
    outcomes = asks.ask_together([case_of(6), case_of(4), case_of(5)])
    assert [one.verdict for one in outcomes] == [Verdict.INVALID, Verdict.GONE, Verdict.INVALID]
    assert outcomes[0].reason == "5 nodes did not finish in time"
    assert len(world.asked) == asks.oracle_calls == 2


def test_a_hang_that_is_looked_for_runs_into_its_limit_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asks, world = begun(monkeypatch, SLOW, SLOW)
    for nodes in (5, 6):
        asks.ask(case_of(nodes, Kind.HANG))
    assert len(world.asked) == 2


# ---- what is asked, and what it may cost


def test_a_flaky_failure_gets_several_chances_and_no_more_than_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asks, world = begun(monkeypatch, GONE, GONE, FAILS, GONE, GONE, GONE, INVALID)
    asks.repeats = 3
    assert asks.ask(case_of(3)).verdict is Verdict.REPRODUCES
    assert asks.ask(case_of(2)).verdict is Verdict.GONE
    assert asks.ask(case_of(1)).verdict is Verdict.INVALID
    assert len(world.asked) == 7


@pytest.mark.parametrize(
    ("limits", "spent_s", "said"),
    [
        ({"seconds": 8.0}, 0.0, "budget of 8 s"),
        ({"seconds": 8.0, "max_calls": 5}, 0.0, "budget of 5 runs"),
        ({"seconds": 8.0, "max_calls": 5}, 4.0, "budget of 8 s"),
    ],
)
def test_what_ended_a_search_is_said_in_words(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any], spent_s: float, said: str
) -> None:
    asks, world = begun(monkeypatch, **limits)
    world.now = spent_s
    assert asks.budget == said


def test_a_share_of_the_budget_is_kept_for_the_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds, left in ((8.0, 4.0), (300.0, 285.0)):
        asks, _ = begun(monkeypatch, seconds=seconds)
        assert asks.remaining() == left
    asks.interrupted = True
    assert asks.remaining() == 0.0


def test_a_search_goes_on_with_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asks, world = begun(monkeypatch, seconds=100.0, max_calls=7, jobs=4)
    world.now = 15.0
    left = asks.limits_left()
    assert (left.seconds, left.max_calls, left.jobs) == (70.0, 7, 4)
    asks.repeats = 3
    assert asks.limits_left().jobs == 1, "runs of a flaky case come one by one"
    assert begun(monkeypatch)[0].limits_left().max_calls is None


def test_a_question_that_the_deadline_ended_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    asks, world = begun(monkeypatch, GONE, SLOW, each_s=2.0, seconds=8.0)
    asks.ask(case_of(3))
    with pytest.raises(BudgetSpent):
        asks.ask(case_of(2))
    assert asks.too_slow_nodes is None
    assert not asks.fails_the_same(case_of(1)), "no time is left for it"
    assert len(world.asked) == 2


def test_an_answer_that_came_as_the_time_ended_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    asks, _ = begun(monkeypatch, FAILS, each_s=9.0, seconds=8.0)
    assert asks.fails_the_same(case_of(3))


@pytest.mark.parametrize(
    ("outcome", "removed"), [(FAILS, False), (SLOW, True), (Outcome(Verdict.CRASHED, Signature(Kind.CRASH)), True), (GONE, False)]
)  # fmt: skip
def test_what_a_killed_run_left_half_written_is_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outcome: Outcome, removed: bool
) -> None:
    found: list[Path] = []
    monkeypatch.setattr(workers, "remove_unfinished", lambda kernels, since: found.append(kernels))
    asks, _ = begun(monkeypatch, outcome, outcome)
    asks.ask(case_of(2))
    assert found == [], "it has no cache"
    asks.kernels, asks.too_slow_nodes = tmp_path, None
    asks.ask(case_of(2))
    assert found == ([tmp_path] if removed else [])


def test_progress_tells_the_rest_by_what_runs_took_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    asks, _ = begun(monkeypatch, GONE, GONE, each_s=3.0)
    told: list[Progress] = []
    asks.listener = told.append
    asks.tell("bisect", 9, 10, rest_calls=4)
    for nodes in (3, 2):
        asks.ask(case_of(nodes))
    asks.tell("bisect", 9, 10, rest_calls=4)
    asks.tell("verify", 9, 10)
    assert [event.rest_seconds for event in told] == [None, 12.0, None]
    assert told[1] == Progress("bisect", 9, 10, 2, 6.0, 12.0)
    assert asks.phase == "verify"


# ---- flaky failures


@pytest.mark.parametrize(
    ("failed", "runs", "is_flaky", "is_too_rare", "repeats"),
    [
        (5, 5, False, False, 1),
        (0, 5, False, True, 30),
        (1, 5, True, False, 14),
        (4, 5, True, False, 4),
        (1, 9, True, True, 23),
    ],
)
def test_a_failure_is_asked_so_often_that_luck_is_ruled_out(
    failed: int, runs: int, is_flaky: bool, is_too_rare: bool, repeats: int
) -> None:
    found = Reliability(failed, runs)
    assert (found.is_flaky, found.is_too_rare, found.repeats) == (is_flaky, is_too_rare, repeats)
    assert str(found) == f"fails in {failed} of {runs} runs"


@pytest.mark.parametrize("jobs", [1, 2])
def test_further_runs_are_counted_until_one_says_nothing_new(
    monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    together: list[int] = []

    def asked(answers: Sequence[Outcome], more: int) -> Reliability:
        left = list(answers)
        asks = begun(monkeypatch)[0]
        asks.limits = replace(asks.limits, jobs=jobs)

        def ask_together(cases: Sequence[Case]) -> list[Outcome]:
            together.append(len(cases))
            return [left.pop(0) for _ in cases]

        monkeypatch.setattr(Session, "ask_together", lambda self, cases: ask_together(cases))
        return measured(case_of(1), asks, failed=1, runs=1, more=more)

    assert asked([FAILS, GONE, FAILS], 3) == Reliability(3, 4)
    assert asked([GONE, GONE, INVALID, GONE], 4) == Reliability(1, 3)
    assert asked([], 0) == Reliability(1, 1)
    assert together == ([2, 1, 2, 2] if jobs == 2 else [1] * 6)


@pytest.mark.parametrize(
    ("kind", "runs"),
    [(Kind.COMPILE, 0), (Kind.RUNTIME, 2), (Kind.ACCURACY, 2), (Kind.CRASH, 2), (Kind.HANG, 0), (None, 0)],
)
def test_further_runs_are_worth_their_time_where_chance_may_decide(kind: Kind | None, runs: int) -> None:
    assert runs_worth_having(case_of(1, kind)) == runs
