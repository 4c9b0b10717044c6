"""The rules by which runs become verdicts. No process, no clock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from minidbg.core.outcome import Kind, Outcome, Signature, Verdict, is_expected
from minidbg.history import Observation, State
from minidbg.watch.repros import UNREADABLE_SPEC, Repro
from minidbg.watch.states import Decision, Job, Purpose, Transition, decide, quiet_runs_needed, usual_seconds

GONE, REPRODUCES, CHANGED = Verdict.GONE, Verdict.REPRODUCES, Verdict.CHANGED
CRASHED, TIMEOUT, FLAKY = Verdict.CRASHED, Verdict.TIMEOUT, Verdict.FLAKY
SKIPPED, INVALID = Verdict.SKIPPED, Verdict.INVALID


def warm(verdict: Verdict, **changes: object) -> Observation:
    found = Observation(
        "r.py", "cpu", 20.0, Outcome(verdict, seconds=0.5), Purpose.RUN, "script", "machine", sweep=2
    )
    return replace(found, **{"code": "code 2", "loaded": "loaded 2", "files": ("a.py",), **changes})


def fresh(verdict: Verdict, **changes: object) -> Observation:
    return warm(verdict, fresh=True, **changes)


def state(verdict: Verdict, **changes: object) -> State:
    known = State(
        "r.py", "cpu", verdict, 10.0, 10.0, "script", "machine", "code 1", "loaded 1", last_sweep=1, runs=3
    )
    return replace(known, **changes)


def flaky(**changes: object) -> State:
    return state(FLAKY, **{"runs": 10, "failures": 5, **changes})


def answer(before: State | None, *runs: Observation) -> Decision | None:
    return decide(Job("r.py", "cpu"), before, runs, expect=REPRODUCES)


def decided(before: State | None, *runs: Observation) -> Decision:
    result = answer(before, *runs)
    assert isinstance(result, Decision), "the rules asked for another run"
    return result


W, F, OLD = warm, fresh, {"code": "code 1"}
RULES: dict[str, tuple[State | None, list[Observation], str]] = {
    # a history that begins
    "an expected first verdict is taken at once": (None, [W(REPRODUCES)], "new reproduces"),
    "an unexpected one is confirmed, and no flip": (None, [W(GONE), F(GONE)], "new gone"),
    "what only fresh interpreters show": (None, [W(GONE), F(REPRODUCES), F(REPRODUCES)], "new reproduces"),
    "fresh runs that differ at first sight": (None, [W(GONE), F(REPRODUCES), F(GONE)], "new flaky"),
    "a script that says flaky at first sight is believed": (None, [W(FLAKY)], "new flaky"),
    "an edited script": (state(REPRODUCES, script="another"), [W(GONE), F(GONE)], "new gone"),
    "another machine": (state(REPRODUCES, environment="another"), [W(GONE), F(GONE)], "new gone"),
    # one that goes on
    "the same again": (state(REPRODUCES), [W(REPRODUCES)], "still failing reproduces"),
    "skipped keeps the state": (state(REPRODUCES), [W(SKIPPED)], "skipped reproduces"),
    "invalid keeps the state": (state(REPRODUCES), [W(INVALID)], "invalid reproduces"),
    "an unjudged confirmation is asked again": (state(REPRODUCES), [W(GONE), F(SKIPPED), F(GONE)], "FIXED gone, flip"),
    # a flip
    "fixed": (state(REPRODUCES), [W(GONE), F(GONE)], "FIXED gone, flip"),
    "fixed, after it changed": (state(CHANGED), [W(GONE), F(GONE)], "FIXED gone, flip"),
    "fixed, after it crashed": (state(CRASHED), [W(GONE), F(GONE)], "FIXED gone, flip"),
    "regressed": (state(GONE), [W(REPRODUCES), F(REPRODUCES)], "REGRESSED reproduces, flip"),
    "regressed to a crash": (state(GONE), [W(CRASHED), F(CRASHED)], "REGRESSED crashed, flip"),
    "fails otherwise": (state(REPRODUCES), [W(CHANGED), F(CHANGED)], "changed changed, flip"),
    "crashes now": (state(REPRODUCES), [W(CRASHED), F(CRASHED)], "crashed crashed, flip"),
    "takes too long now": (state(REPRODUCES), [W(TIMEOUT), F(TIMEOUT)], "timeout timeout, flip"),
    "fails as it once did": (state(CHANGED), [W(REPRODUCES), F(REPRODUCES)], "reproduces again reproduces, flip"),
    "that loads none of the changed files is asked twice": (
        state(REPRODUCES), [W(GONE, loaded="loaded 1"), F(GONE, loaded=""), F(GONE)], "FIXED gone, flip",
    ),
    "on the same code is asked four times: what changed may be a file that nobody watches": (
        state(REPRODUCES), [W(GONE, **OLD), *[F(GONE, **OLD)] * 4], "FIXED gone, flip",
    ),
    "a warm worker that fresh ones contradict": (
        state(REPRODUCES), [W(GONE), F(REPRODUCES), F(REPRODUCES)], "still failing reproduces",
    ),
    "what six runs cannot confirm keeps its state": (state(REPRODUCES), [W(GONE), *[F(SKIPPED)] * 5], "invalid reproduces"),
    # fresh runs that disagree
    "flaky in a rerun": (state(REPRODUCES), [W(GONE, **OLD), F(GONE, **OLD), F(REPRODUCES, **OLD)], "flaky flaky, flip"),
    "flaky on other code": (state(REPRODUCES), [W(GONE), F(REPRODUCES), F(GONE)], "flaky flaky, flip"),
    "one quiet run of a flaky repro is no fix": (flaky(), [W(GONE)], "flaky flaky"),
    "enough of them are one, once a fresh run agrees": (
        flaky(streak=6, streak_verdict=GONE), [W(GONE), F(GONE)], "FIXED gone, flip",
    ),
    "a run that is flaky in itself ends no flakiness": (
        flaky(streak=20, streak_verdict=FLAKY), [W(FLAKY)], "flaky flaky",
    ),
}  # fmt: skip
"""What each number of runs means: no decision but after the last."""


def test_the_rules() -> None:
    for name, (before, runs, wanted) in RULES.items():
        early = [answer(before, *runs[:count]) for count in range(1, len(runs))]
        assert early == [None] * len(early), name
        last = decided(before, *runs)
        verdict = last.state.verdict if last.state else None
        assert f"{last.transition} {verdict}" + (", flip" if last.flip else "") == wanted, name
        if last.flip is not None:
            flip = last.flip
            assert (flip.before, flip.after, flip.last_before, flip.sweep) == (
                before.verdict,
                verdict,
                1,
                2,
            ), name
            assert (last.state.since, last.state.last_sweep) == (20.0, 2), name
        elif last.transition in (Transition.SKIPPED, Transition.INVALID):
            assert last.state == before, name


COUNTS = [
    # the same verdict counts on, a new one anew; a contradicted one as well, which may be flaky
    (state(REPRODUCES), [W(REPRODUCES)], {"since": 10.0, "seen": 20.0, "code": "code 2", "runs": 4}),
    (state(REPRODUCES, runs=40, failures=40), [W(GONE), F(REPRODUCES), F(REPRODUCES)], {"runs": 2, "failures": 2}),
    (flaky(), [W(GONE)], {"runs": 11, "failures": 5, "streak": 1}),
    (flaky(streak=4, streak_verdict=GONE), [W(REPRODUCES)], {"streak": 1, "streak_verdict": REPRODUCES}),
    (flaky(streak=6, streak_verdict=GONE), [W(GONE), F(GONE)],
     {"streak": 0, "streak_verdict": None, "runs": 2, "failures": 0}),
    # how often warm workers were wrong: twice is enough to ask fresh ones alone, and it is forgotten by and by
    (None, [W(GONE), F(REPRODUCES), F(REPRODUCES)], {"disagreements": 2, "fresh": True}),
    (None, [F(GONE), F(REPRODUCES), F(REPRODUCES)], {"verdict": FLAKY, "disagreements": 0}),
    (state(REPRODUCES), [W(GONE), F(REPRODUCES), F(REPRODUCES)], {"disagreements": 1, "fresh": False}),
    (state(REPRODUCES, disagreements=1), [W(GONE), F(REPRODUCES), F(REPRODUCES)], {"disagreements": 2, "fresh": True}),
    (state(REPRODUCES), [F(GONE), F(REPRODUCES), F(REPRODUCES)], {"disagreements": 0}),
    (state(REPRODUCES, disagreements=2), [W(REPRODUCES)], {"disagreements": 1}),
    (state(REPRODUCES, disagreements=2), [F(REPRODUCES)], {"disagreements": 2}),
    (state(REPRODUCES), [W(REPRODUCES)], {"disagreements": 0}),
    # what it rests on is what its last run loaded, else what is known
    (state(REPRODUCES), [W(GONE), F(GONE, loaded="")], {"loaded": "loaded 2", "files": ("a.py",), "seconds": 0.5}),
    (state(GONE, files=("b.py",)), [W(GONE, loaded="")], {"loaded": "", "files": ("b.py",)}),
]  # fmt: skip


def test_what_a_state_counts() -> None:
    for number, (before, runs, wanted) in enumerate(COUNTS):
        found = decided(before, *runs).state
        assert {name: getattr(found, name) for name in wanted} == wanted, number


@pytest.mark.parametrize(
    ("known", "verdict", "runs"),
    [
        (flaky(), GONE, 7),
        (flaky(), REPRODUCES, 7),
        (flaky(runs=20, failures=2), GONE, 44),
        (flaky(runs=20, failures=18), GONE, 5),
        (flaky(runs=20, failures=18), REPRODUCES, 44),
        (flaky(runs=1000, failures=1), GONE, 90),
        (flaky(runs=14, failures=5, streak=4, streak_verdict=GONE), GONE, 7),
        (flaky(runs=14, failures=9, streak=4, streak_verdict=REPRODUCES), REPRODUCES, 7),
        (flaky(runs=2, failures=2, streak=2, streak_verdict=REPRODUCES), REPRODUCES, 7),
    ],
)
def test_so_many_equal_runs_rule_luck_out(known: State, verdict: Verdict, runs: int) -> None:
    """With one chance in a hundred; the runs of the streak itself say nothing of how often it failed before."""
    assert quiet_runs_needed(known, verdict) == runs


def test_a_flaky_repro_is_fixed_after_so_many_quiet_runs_and_no_sooner() -> None:
    known, transitions = flaky(), []
    while transitions[-1:] in ([], [Transition.FLAKY]):
        result = answer(known, warm(GONE)) or decided(known, warm(GONE), fresh(GONE))
        transitions.append(result.transition)
        known = result.state
    assert (transitions[-1], len(transitions)) == (Transition.FIXED, quiet_runs_needed(flaky(), GONE))


def test_a_known_flaky_failure_is_what_an_expected_failure_may_be() -> None:
    assert is_expected(FLAKY, REPRODUCES)
    assert not is_expected(FLAKY, GONE)
    assert not is_expected(GONE, REPRODUCES)


def test_the_usual_time_is_the_longest_of_a_run_that_came_back() -> None:
    states = [
        state(GONE, seconds=3.0),
        state(REPRODUCES, seconds=4.0, device="cuda"),
        state(TIMEOUT, seconds=60.0, device="xpu"),
        state(GONE, repro="another.py", seconds=70.0),
    ]
    known, hangs = (
        Repro("r.py", Path("r.py"), "script", spec=replace(UNREADABLE_SPEC, signature=Signature(kind)))
        for kind in (Kind.COMPILE, Kind.HANG)
    )
    assert usual_seconds(states, {"r.py": known}) == 4.0
    assert usual_seconds(states, {"r.py": hangs}) == 0.0, "each takes its whole limit"
    assert usual_seconds([], {}) == 0.0


def test_the_reason_of_a_run_is_why_or_what_the_backend_said_first() -> None:
    for outcome, reason in (
        (Outcome(CHANGED, reason="why", message="said"), "why"),
        (Outcome(CHANGED, message="said\nmore"), "said"),
        (Outcome(CHANGED, message="x" * 300), "x" * 196 + " ..."),
    ):
        assert warm(CHANGED, outcome=outcome).reason == reason
