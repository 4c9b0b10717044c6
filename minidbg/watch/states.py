"""From runs to verdicts: when a repro has flipped, when it is asked again, and when it is flaky.

Everything here is a pure function of what was seen. The rules, in order:

- A run that could not judge (skipped, invalid) changes nothing.
- The first run of a repro, of an edited one, or on another machine begins its history: no flip.
- A flaky repro is taken to be fixed only after so many quiet runs that luck is ruled out.
- A verdict unlike the last one is asked again in fresh interpreters before it counts: once
  (``after_difference``). Although no watched file has changed, ``SAME_CODE_RUNS`` times, or none
  that it loads, twice: something that is not watched may have changed. Where many flip at once the
  first confirmations are by a fork each of one fresh interpreter (``Sweep.may_fork``).
- Flaky: a sweep's fresh runs are neither all like the first run nor all like the last verdict.
- What ``MOST_RUNS`` runs of one sweep cannot confirm changes nothing.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from minidbg.core.outcome import Verdict
from minidbg.history import Flip, Observation, State
from minidbg.watch.repros import Repro

FAILING = frozenset({Verdict.REPRODUCES, Verdict.CHANGED, Verdict.CRASHED, Verdict.TIMEOUT, Verdict.FLAKY})
CONCLUSIVE = FAILING | {Verdict.GONE}

LUCK = 0.01
"""Largest accepted chance that a flaky repro only seemed fixed."""
LEAST_STREAK = 5
SAME_CODE_RUNS = 4
"""Fresh runs that must agree on a new verdict of code that seems to be the same."""
MOST_RUNS = 6


class Transition(enum.StrEnum):
    NEW = "new"
    STILL_FAILING = "still failing"
    STILL_GONE = "still gone"
    FIXED = "FIXED"
    REGRESSED = "REGRESSED"
    CHANGED = "changed"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    REPRODUCES_AGAIN = "reproduces again"
    FLAKY = "flaky"
    SKIPPED = "skipped"
    INVALID = "invalid"


NO_FLIP: Mapping[Verdict, Transition] = {
    **{verdict: Transition(verdict) for verdict in Verdict if str(verdict) in list(Transition)},
    Verdict.GONE: Transition.STILL_GONE,
    Verdict.REPRODUCES: Transition.STILL_FAILING,
}
"""What people call a verdict that is no flip."""
INCONCLUSIVE = frozenset({Transition.SKIPPED, Transition.INVALID})


class Purpose(enum.StrEnum):
    CANARY = "canary"
    RUN = "run"
    CONFIRM = "confirm"


class Job(NamedTuple):
    repro: str
    device: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What a job came to: its new state (None when never judged), and the flip if there was one."""

    job: Job
    transition: Transition
    state: State | None
    flip: Flip | None = None
    runs: tuple[Observation, ...] = ()
    """Those that it rests on."""
    reason: str = ""


StateUpdate: TypeAlias = tuple[Transition, State | None, Flip | None]
"""What the rules say: the transition, the new state, and the flip if there is one."""


def decide(
    job: Job, before: State | None, runs: Sequence[Observation], *, expect: Verdict
) -> Decision | None:
    """What ``runs`` of a job mean after ``before``: the first is the job's own, others confirm it.
    None: it must run once more in a fresh interpreter. A history that begins with anything but
    ``expect`` is asked twice."""
    first, judged = runs[0], [run for run in runs if run.verdict in CONCLUSIVE]
    update: StateUpdate | None
    if first.verdict not in CONCLUSIVE:
        update = NO_FLIP[first.verdict], before, None
    # of another script or machine the verdict before says nothing
    elif before is None or (before.script, before.environment) != (first.script, first.environment):
        update = first_verdict(judged, expect)
    elif before.verdict is Verdict.FLAKY:
        update = after_flaky(before, judged)
    elif first.verdict is before.verdict:
        update = NO_FLIP[before.verdict], carried_on(before, judged), None
    else:
        update = after_difference(before, judged)
    reason = runs[-1].outcome.reason
    if update is None:
        if len(runs) < MOST_RUNS:
            return None
        update = Transition.INVALID, before, None
        reason = f"{first.verdict} could not be confirmed in a fresh interpreter: {runs[-1].reason}"
    return Decision(job, *update, tuple(runs), reason)


def first_verdict(runs: Sequence[Observation], expect: Verdict) -> StateUpdate | None:
    """Where a history begins: the verdict runs agree on, confirmed where not the expected one."""
    first, last = runs[0], runs[-1]
    verdict, disagreements = first.verdict, 0
    if all(run.verdict is first.verdict for run in runs):
        if len(runs) == 1 and first.verdict not in (expect, Verdict.FLAKY):
            return None
    elif len(runs) < 3:
        return None
    else:
        only_warm_differs = not first.fresh and runs[1].verdict is last.verdict
        verdict = last.verdict if only_warm_differs else Verdict.FLAKY
        disagreements = 2 if only_warm_differs else 0
    state = State(
        first.repro, first.device, verdict, first.at, last.at, first.script, first.environment,
        first.code, disagreements=disagreements,
    )  # fmt: skip
    return Transition.NEW, carried_on(state, runs), None


def after_difference(before: State, runs: Sequence[Observation]) -> StateUpdate | None:
    """The first run was unlike the last verdict: ask until it is a flip, noise or flakiness."""
    first, fresh = runs[0], runs[1:]
    same_code = before.code == first.code
    unaffected = first.loaded != "" and before.loaded == first.loaded
    votes = Counter(run.verdict for run in fresh)
    if votes[first.verdict] == len(fresh):
        if len(fresh) < (SAME_CODE_RUNS if same_code else 2 if unaffected else 1):
            return None
        return flip_to(before, first.verdict, runs)
    if len(fresh) < 2:
        return None
    if votes[before.verdict] == len(fresh):
        # The odd one out was the warm worker, or the load of the machine: nothing has changed.
        # Its runs count anew: quiet times ask it as often as one never seen, since it may be flaky.
        odd = before.disagreements + (0 if first.fresh else 1)
        kept = replace(carried_on(replace(before, runs=0, failures=0), fresh), disagreements=odd)
        return NO_FLIP[before.verdict], kept, None
    return became_flaky(before, runs)


def after_flaky(before: State, runs: Sequence[Observation]) -> StateUpdate | None:
    """Count the runs of a flaky repro; it settles on a verdict that comes often enough in a row."""
    state = before
    for run in runs:
        streak = state.streak + 1 if run.verdict is state.streak_verdict else 1
        state = replace(state, streak=streak, streak_verdict=run.verdict)
    verdict = runs[-1].verdict
    if verdict is not Verdict.FLAKY and state.streak >= quiet_runs_needed(before, verdict):
        if not any(run.fresh for run in runs):
            return None
        return flip_to(before, verdict, runs)
    return Transition.FLAKY, carried_on(state, runs), None


def quiet_runs_needed(flaky: State, verdict: Verdict) -> int:
    """Equal verdicts in a row a flaky repro needs, given how often it showed another before."""
    in_streak = flaky.streak if flaky.streak_verdict in FAILING else 0
    failed = max(1, flaky.failures - in_streak) / max(2, flaky.runs - flaky.streak)
    other = min(max(failed if verdict is Verdict.GONE else 1 - failed, 0.05), 0.95)
    return max(LEAST_STREAK, math.ceil(math.log(LUCK) / math.log(1 - other)))


def became_flaky(before: State, runs: Sequence[Observation]) -> StateUpdate:
    """Two verdicts where one was due. The earlier verdict counts as one more run."""
    failures = sum(run.verdict in FAILING for run in runs) + (before.verdict in FAILING)
    counted = replace(before, verdict=Verdict.FLAKY, since=runs[0].at, runs=1, failures=0)
    state = replace(carried_on(counted, runs), failures=failures, streak=0, streak_verdict=None)
    return Transition.FLAKY, state, flip_between(before, Verdict.FLAKY, Transition.FLAKY, runs)


def flip_to(before: State, verdict: Verdict, runs: Sequence[Observation]) -> StateUpdate:
    if Verdict.GONE in (before.verdict, verdict):
        transition = Transition.FIXED if verdict is Verdict.GONE else Transition.REGRESSED
    else:
        transition = Transition.REPRODUCES_AGAIN if verdict is Verdict.REPRODUCES else NO_FLIP[verdict]
    state = replace(
        before, verdict=verdict, since=runs[0].at, runs=0, failures=0, streak=0, streak_verdict=None
    )
    return transition, carried_on(state, runs), flip_between(before, verdict, transition, runs)


def carried_on(state: State, runs: Sequence[Observation]) -> State:
    last = runs[-1]
    known = next((run for run in reversed(runs) if run.loaded), None)
    return replace(
        state, seen=last.at, script=last.script, environment=last.environment, code=last.code,
        loaded=known.loaded if known else "", files=known.files if known else state.files,
        seconds=runs[0].seconds, last_sweep=last.sweep, runs=state.runs + len(runs),
        failures=state.failures + sum(run.verdict in FAILING for run in runs), reason=last.reason,
        disagreements=state.disagreements if last.fresh else max(0, state.disagreements - 1),
    )  # fmt: skip


def flip_between(before: State, after: Verdict, transition: Transition, runs: Sequence[Observation]) -> Flip:
    return Flip(
        repro=before.repro, device=before.device, at=runs[-1].at, kind=str(transition),
        before=before.verdict, after=after, sweep=runs[0].sweep, last_before=before.last_sweep,
    )  # fmt: skip


def usual_seconds(states: Iterable[State], repros: Mapping[str, Repro]) -> float:
    """The longest that a repro which came back has taken."""
    present = (one for one in states if one.repro in repros)
    came_back = [one for one in present if one.verdict is not Verdict.TIMEOUT]
    return max((one.seconds for one in came_back if not repros[one.repro].may_hang), default=0.0)
