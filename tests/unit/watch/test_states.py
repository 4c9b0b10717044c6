"""The rules by which runs become verdicts, one claim each. No process, no clock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from minidbg.history import Observation, State
from minidbg.watch.repros import UNKNOWN, Repro
from minidbg.watch.states import (
    Decision,
    Job,
    Purpose,
    Transition,
    decide,
    quiet_runs_needed,
    usual_seconds,
)
from minidbg.words.outcome import Kind, Outcome, Signature, Verdict, is_expected

GONE, REPRODUCES, CHANGED = Verdict.GONE, Verdict.REPRODUCES, Verdict.CHANGED
CRASHED, TIMEOUT, FLAKY = Verdict.CRASHED, Verdict.TIMEOUT, Verdict.FLAKY
SKIPPED, INVALID = Verdict.SKIPPED, Verdict.INVALID


def seen(
    verdict: Verdict, *, fresh: bool = False, code: str = "code 2", loaded: str = "loaded 2", reason: str = ""
) -> Observation:
    outcome = Outcome(verdict, reason=reason, seconds=0.5)
    found = Observation("r.py", "cpu", 20.0, outcome, Purpose.RUN, "script", "machine", sweep=2)
    return replace(found, code=code, loaded=loaded, modules=("a.py",), fresh=fresh)


def state(verdict: Verdict, **changes: object) -> State:
    known = State(
        "r.py", "cpu", verdict, 10.0, 10.0, "script", "machine", "code 1", "loaded 1", last_sweep=1, runs=3
    )
    return replace(known, **changes)


def answer(before: State | None, *runs: Observation, expect: Verdict = REPRODUCES) -> Decision | None:
    return decide(Job("r.py", "cpu"), before, runs, expect=expect)


def decided(before: State | None, *runs: Observation, expect: Verdict = REPRODUCES) -> Decision:
    result = answer(before, *runs, expect=expect)
    assert isinstance(result, Decision), "the rules asked for another run"
    return result


def test_an_expected_first_verdict_is_taken_at_once_and_is_no_flip() -> None:
    result = decided(None, seen(REPRODUCES))
    assert (result.transition, result.flip) == (Transition.NEW, None)
    assert (result.state.verdict, result.state.last_sweep, result.state.since) == (REPRODUCES, 2, 20.0)


def test_an_unexpected_first_verdict_is_asked_again_and_still_no_flip() -> None:
    assert answer(None, seen(GONE)) is None
    result = decided(None, seen(GONE), seen(GONE, fresh=True))
    assert (result.transition, result.flip) == (Transition.NEW, None)


def test_a_failure_that_only_fresh_interpreters_show_is_asked_there_from_then_on() -> None:
    runs = [seen(GONE), seen(REPRODUCES, fresh=True)]
    assert answer(None, *runs) is None
    result = decided(None, *runs, seen(REPRODUCES, fresh=True))
    assert result.state.verdict is REPRODUCES
    assert result.state.fresh


@pytest.mark.parametrize("last", [GONE, REPRODUCES])
def test_a_first_sight_whose_fresh_runs_differ_is_flaky(last: Verdict) -> None:
    other = REPRODUCES if last is GONE else GONE
    result = decided(None, seen(GONE), seen(other, fresh=True), seen(last, fresh=True))
    assert result.state.verdict is FLAKY


def test_an_unchanged_verdict_needs_no_second_run() -> None:
    result = decided(state(REPRODUCES), seen(REPRODUCES))
    assert (result.transition, result.flip) == (Transition.STILL_FAILING, None)
    assert (result.state.since, result.state.seen, result.state.code) == (10.0, 20.0, "code 2")


@pytest.mark.parametrize(
    ("before", "after", "transition"),
    [
        (REPRODUCES, GONE, Transition.FIXED),
        (CHANGED, GONE, Transition.FIXED),
        (CRASHED, GONE, Transition.FIXED),
        (GONE, REPRODUCES, Transition.REGRESSED),
        (GONE, CRASHED, Transition.REGRESSED),
        (REPRODUCES, CHANGED, Transition.CHANGED),
        (REPRODUCES, CRASHED, Transition.CRASHED),
        (REPRODUCES, TIMEOUT, Transition.TIMEOUT),
        (CHANGED, REPRODUCES, Transition.REPRODUCES_AGAIN),
    ],
)
def test_a_flip_counts_once_a_fresh_interpreter_agrees(
    before: Verdict, after: Verdict, transition: Transition
) -> None:
    assert answer(state(before), seen(after)) is None
    result = decided(state(before), seen(after), seen(after, fresh=True))
    assert result.transition is transition
    assert (result.flip.before, result.flip.after) == (before, after)
    assert (result.flip.last_before, result.flip.sweep) == (1, 2)
    assert (result.state.verdict, result.state.since) == (after, 20.0)


def test_a_flip_of_a_repro_that_loads_none_of_the_changed_files_is_asked_twice() -> None:
    runs = [seen(GONE, loaded="loaded 1"), seen(GONE, fresh=True, loaded="")]
    assert answer(state(REPRODUCES), *runs) is None
    assert decided(state(REPRODUCES), *runs, seen(GONE, fresh=True)).transition is Transition.FIXED


def test_a_rerun_in_which_every_run_agrees_is_no_flakiness_though_no_watched_file_changed() -> None:
    """What changed may be a file that nobody watches; issue 15."""
    first, fresh = seen(GONE, code="code 1"), seen(GONE, code="code 1", fresh=True)
    assert [answer(state(REPRODUCES), first, *[fresh] * count) for count in range(4)] == [None] * 4
    result = decided(state(REPRODUCES), first, *[fresh] * 4)
    assert result.transition is Transition.FIXED


def test_a_warm_worker_contradicted_by_two_fresh_interpreters_changes_nothing() -> None:
    runs = [seen(GONE), seen(REPRODUCES, fresh=True)]
    assert answer(state(REPRODUCES), *runs) is None
    result = decided(state(REPRODUCES), *runs, seen(REPRODUCES, fresh=True))
    assert (result.transition, result.flip) == (Transition.STILL_FAILING, None)
    assert not result.state.fresh, "once may be the load of the machine"
    again = decided(result.state, *runs, seen(REPRODUCES, fresh=True))
    assert again.state.fresh


def test_a_contradicted_verdict_counts_its_runs_anew() -> None:
    runs = [seen(GONE), seen(REPRODUCES, fresh=True), seen(REPRODUCES, fresh=True)]
    result = decided(state(REPRODUCES, runs=40, failures=40), *runs)
    assert (result.state.runs, result.state.failures) == (2, 2)


@pytest.mark.parametrize(
    ("code", "fresh"),
    [("code 1", (GONE, REPRODUCES)), ("code 2", (REPRODUCES, GONE))],
    ids=["a rerun", "other code"],
)
def test_fresh_runs_that_disagree_make_a_repro_flaky(code: str, fresh: tuple[Verdict, Verdict]) -> None:
    runs = [seen(GONE, code=code), *(seen(verdict, code=code, fresh=True) for verdict in fresh)]
    result = decided(state(REPRODUCES), *runs)
    assert result.transition is Transition.FLAKY
    assert result.flip.after is FLAKY


@pytest.mark.parametrize("verdict", [SKIPPED, INVALID])
def test_a_run_that_cannot_judge_keeps_the_state(verdict: Verdict) -> None:
    before = state(REPRODUCES)
    result = decided(before, seen(verdict))
    assert (result.state, result.flip) == (before, None)
    assert str(result.transition) == str(verdict)


def test_an_unjudged_confirmation_is_asked_again() -> None:
    assert answer(state(REPRODUCES), seen(GONE), seen(SKIPPED, fresh=True)) is None


@pytest.mark.parametrize("change", ["script", "environment"])
def test_an_edited_repro_or_another_machine_begins_a_new_history(change: str) -> None:
    before = state(REPRODUCES, **{change: "another"})
    result = decided(before, seen(GONE), seen(GONE, fresh=True))
    assert (result.transition, result.flip) == (Transition.NEW, None)
    assert result.state.verdict is GONE


def test_one_quiet_run_of_a_flaky_repro_is_no_fix() -> None:
    before = state(FLAKY, runs=10, failures=5)
    result = decided(before, seen(GONE))
    assert (result.transition, result.flip) == (Transition.FLAKY, None)
    assert (result.state.runs, result.state.failures, result.state.streak) == (11, 5, 1)


def test_enough_quiet_runs_of_a_flaky_repro_are_a_fix() -> None:
    flaky: State = state(FLAKY, runs=10, failures=5)
    standings = []
    while standings[-1:] in ([], [Transition.FLAKY]):
        result = answer(flaky, seen(GONE))
        if result is None:
            result = decided(flaky, seen(GONE), seen(GONE, fresh=True))
        standings.append(result.transition)
        flaky = result.state
    assert standings[-1] is Transition.FIXED
    assert len(standings) == quiet_runs_needed(state(FLAKY, runs=10, failures=5), GONE) == 7


def test_a_rare_failure_needs_more_quiet_runs_than_a_common_one() -> None:
    rare, common = state(FLAKY, runs=20, failures=2), state(FLAKY, runs=20, failures=18)
    assert quiet_runs_needed(rare, GONE) > 40 > quiet_runs_needed(common, GONE)


def test_a_failure_breaks_the_quiet_streak() -> None:
    before = state(FLAKY, runs=10, failures=5, streak=4, streak_verdict=GONE)
    result = decided(before, seen(REPRODUCES))
    assert (result.state.streak, result.state.streak_verdict) == (1, REPRODUCES)


def test_a_known_flaky_failure_is_what_an_expected_failure_may_be() -> None:
    assert is_expected(FLAKY, REPRODUCES)
    assert not is_expected(FLAKY, GONE)
    assert not is_expected(GONE, REPRODUCES)


# How often something is asked in quiet times


def repro_of(kind: Kind = Kind.COMPILE, **changes: object) -> Repro:
    return replace(
        Repro("r.py", Path("r.py"), "script", spec=replace(UNKNOWN, signature=Signature(kind))), **changes
    )


def test_the_usual_time_is_the_longest_of_a_run_that_came_back() -> None:
    states = [
        state(GONE, seconds=3.0),
        state(REPRODUCES, seconds=4.0, device="cuda"),
        state(TIMEOUT, seconds=60.0, device="xpu"),
        state(GONE, repro="another.py", seconds=70.0),
    ]
    assert usual_seconds(states, {"r.py": repro_of()}) == 4.0
    assert usual_seconds(states, {"r.py": repro_of(Kind.HANG)}) == 0.0, "each takes its whole limit"
    assert usual_seconds([], {}) == 0.0


@pytest.mark.parametrize(
    ("flaky", "verdict", "runs"),
    [
        (state(FLAKY, runs=10, failures=5), GONE, 7),
        (state(FLAKY, runs=10, failures=5), REPRODUCES, 7),
        (state(FLAKY, runs=20, failures=18), GONE, 5),
        (state(FLAKY, runs=20, failures=18), REPRODUCES, 44),
        (state(FLAKY, runs=1000, failures=1), GONE, 90),
        (state(FLAKY, runs=14, failures=5, streak=4, streak_verdict=GONE), GONE, 7),
        (state(FLAKY, runs=14, failures=9, streak=4, streak_verdict=REPRODUCES), REPRODUCES, 7),
        (state(FLAKY, runs=2, failures=2, streak=2, streak_verdict=REPRODUCES), REPRODUCES, 7),
    ],
)
def test_so_many_equal_runs_rule_luck_out(flaky: State, verdict: Verdict, runs: int) -> None:
    """With one chance in a hundred; the runs of the streak itself say nothing of how often it failed before."""
    assert quiet_runs_needed(flaky, verdict) == runs


def test_a_flaky_repro_is_fixed_by_a_fresh_run_only() -> None:
    before = state(FLAKY, runs=10, failures=5, streak=6, streak_verdict=GONE)
    assert answer(before, seen(GONE)) is None
    result = decided(before, seen(GONE), seen(GONE, fresh=True))
    assert result.transition is Transition.FIXED
    assert (result.state.streak, result.state.streak_verdict) == (0, None)
    assert (result.state.runs, result.state.failures) == (2, 0)


def test_a_run_that_is_flaky_in_itself_ends_no_flakiness() -> None:
    before = state(FLAKY, runs=10, failures=5, streak=20, streak_verdict=FLAKY)
    assert decided(before, seen(FLAKY)).transition is Transition.FLAKY


def test_a_script_that_says_flaky_at_first_sight_is_believed() -> None:
    assert decided(None, seen(FLAKY)).state.verdict is FLAKY


def test_what_only_the_warm_worker_saw_at_first_sight_is_remembered() -> None:
    result = decided(None, seen(GONE), seen(REPRODUCES, fresh=True), seen(REPRODUCES, fresh=True))
    assert (result.state.verdict, result.state.disagreements) == (REPRODUCES, 2)
    flaky = decided(None, *(seen(one, fresh=True) for one in (GONE, REPRODUCES, REPRODUCES)))
    assert (flaky.state.verdict, flaky.state.disagreements) == (FLAKY, 0), "all were fresh, and disagree"


def test_a_warm_worker_that_is_right_again_is_trusted_by_and_by() -> None:
    odd = state(REPRODUCES, disagreements=2)
    assert decided(odd, seen(REPRODUCES)).state.disagreements == 1
    assert decided(odd, seen(REPRODUCES, fresh=True)).state.disagreements == 2
    assert decided(state(REPRODUCES), seen(REPRODUCES)).state.disagreements == 0


def test_a_contradicted_fresh_interpreter_is_no_disagreement_of_the_warm_one() -> None:
    runs = [seen(GONE, fresh=True), *[seen(REPRODUCES, fresh=True)] * 2]
    assert decided(state(REPRODUCES), *runs).state.disagreements == 0


def test_what_a_verdict_rests_on_is_what_its_last_run_loaded() -> None:
    runs = [seen(GONE), seen(GONE, fresh=True, loaded="")]
    found = decided(state(REPRODUCES), *runs).state
    assert (found.loaded, found.modules, found.seconds) == ("loaded 2", ("a.py",), 0.5)
    nothing = decided(state(GONE, modules=("b.py",)), seen(GONE, loaded="")).state
    assert (nothing.loaded, nothing.modules) == ("", ("b.py",)), "none is known: the files of before"


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Outcome(CHANGED, reason="why", message="said"), "why"),
        (Outcome(CHANGED, message="said\nmore"), "said"),
        (Outcome(CHANGED, message="x" * 300), "x" * 200),
    ],
)
def test_the_reason_of_a_run_is_why_or_what_the_backend_said_first(outcome: Outcome, reason: str) -> None:
    assert replace(seen(CHANGED), outcome=outcome).reason == reason
