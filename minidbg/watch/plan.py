"""What a sweep runs, in which order: failing repros, then those that the change touches, then the rest. All of them."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from minidbg.history import State
from minidbg.watch.states import FAILING

SLOW_S = 5.0
SLOW_FACTOR = 4.0


@dataclass(frozen=True, slots=True, order=True)
class Job:
    """One repro on one device."""

    repro: str
    device: str


def in_order(
    jobs: Iterable[Job], states: Mapping[tuple[str, str], State], changed: Collection[str]
) -> list[Job]:
    """All ``jobs``; among equals the quickest first, so that a verdict is there soon."""
    return sorted(jobs, key=lambda job: rank(job, states.get((job.repro, job.device)), frozenset(changed)))


def rank(job: Job, state: State | None, changed: frozenset[str]) -> tuple[int, float, Job]:
    """Sort key. A repro never seen before counts as touched by the change."""
    if state is None:
        return 2, 0.0, job
    failing = state.verdict in FAILING
    touched = not changed.isdisjoint(state.modules)
    group = {(True, True): 0, (True, False): 1, (False, True): 2, (False, False): 3}[failing, touched]
    return group, state.seconds, job


def slow_jobs(jobs: Sequence[Job], states: Mapping[tuple[str, str], State]) -> frozenset[Job]:
    """Jobs that took so much longer than the others that they must not occupy every worker at once."""
    seconds = {
        job: state.seconds for job in jobs if (state := states.get((job.repro, job.device))) is not None
    }
    if not seconds:
        return frozenset()
    limit = max(SLOW_S, SLOW_FACTOR * statistics.median(seconds.values()))
    return frozenset(job for job, took in seconds.items() if took > limit)
