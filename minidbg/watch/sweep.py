"""One sweep as a machine without clock or process: it says what to run next, hears what was seen, and gives answers.

An answer is final. It is given only when the canary of the job's backend has passed, and a changed verdict was confirmed.
Jobs need not wait for the canary: they run beside it and their answers are held back.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from minidbg.failure import Outcome
from minidbg.history import State
from minidbg.watch.outcomes import CanaryAnswer
from minidbg.watch.plan import Job, slow_jobs
from minidbg.watch.repros import Repro
from minidbg.watch.states import Ask, Seen, Settled, Standing, decide

MOST_RUNS = 6
"""Runs of one job in one sweep; who cannot be confirmed by then keeps its state."""


class Purpose(enum.StrEnum):
    """Why something is run."""

    CANARY = "canary"
    RUN = "run"
    CONFIRM = "confirm"
    PROBE = "probe"
    """Again although nothing changed, while there is nothing else to do: to notice what is flaky."""


@dataclass(frozen=True, slots=True)
class Task:
    """Something to run now. Of a canary, ``job`` names a repro that uses the backend."""

    purpose: Purpose
    job: Job
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Sighting:
    """One run and its full outcome."""

    purpose: Purpose
    seen: Seen
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Answer:
    """What a job came to."""

    job: Job
    settled: Settled
    sightings: tuple[Sighting, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CanaryKey:
    """A backend on a device."""

    backend: str
    device: str


@dataclass(slots=True)
class Sweep:
    """The jobs of one sweep, in order. ``probing``: no canary, all jobs asked once more for reliability."""

    number: int
    jobs: Sequence[Job]
    repros: Mapping[str, Repro]
    states: Mapping[tuple[str, str], State]
    slots: int = 2
    probing: bool = False
    pending: deque[Job] = field(init=False)
    confirmations: deque[Task] = field(default_factory=deque)
    running: set[Task] = field(default_factory=set)
    sightings: dict[Job, list[Sighting]] = field(default_factory=dict)
    canaries: dict[CanaryKey, CanaryAnswer | None] = field(default_factory=dict)
    """None while it runs."""
    held: dict[CanaryKey, list[Answer]] = field(default_factory=dict)
    slow: frozenset[Job] = field(init=False)
    unjudged: int = 0
    """Jobs without an answer because their backend is broken."""

    def __post_init__(self) -> None:
        self.pending = deque(self.jobs)
        self.slow = slow_jobs(self.jobs, self.states)

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to run or to wait for."""
        return not (self.pending or self.confirmations or self.running)

    def key(self, job: Job) -> CanaryKey:
        """The canary that stands for the job."""
        return CanaryKey(self.repros[job.repro].backend_key, job.device)

    def next_task(self) -> Task | None:
        """What to start on a free worker, or None for now. It counts as running until it is reported or given up."""
        task = self.choose()
        if task is not None:
            self.running.add(task)
        return task

    def choose(self) -> Task | None:
        """Confirmations first: they announce flips. A job whose backend has no canary yet sends the canary."""
        if self.confirmations:
            return self.confirmations.popleft()
        job = self.next_job()
        if job is None:
            return None
        key = self.key(job)
        if not self.probing and key not in self.canaries:
            self.canaries[key] = None
            return Task(Purpose.CANARY, job)
        self.pending.remove(job)
        state = self.states.get((job.repro, job.device))
        fresh = state is not None and state.fresh and state.script == self.repros[job.repro].digest
        return Task(Purpose.PROBE if self.probing else Purpose.RUN, job, fresh)

    def next_job(self) -> Job | None:
        """The first pending job; slow ones leave one worker for the others."""
        crowded = sum(task.job in self.slow for task in self.running) >= max(1, self.slots - 1)
        if crowded:
            quick = next((job for job in self.pending if job not in self.slow), None)
            if quick is not None:
                return quick
        return self.pending[0] if self.pending else None

    def saw_canary(self, task: Task, answer: CanaryAnswer) -> list[Answer]:
        """A canary has reported. Returns the answers that waited for it, or those that it makes itself."""
        self.running.discard(task)
        key = self.key(task.job)
        self.canaries[key] = answer
        held = self.held.pop(key, [])
        if answer.answer == "passes":
            return held
        waiting = [job for job in self.pending if self.key(job) == key]
        self.pending = deque(job for job in self.pending if self.key(job) != key)
        self.confirmations = deque(task for task in self.confirmations if self.key(task.job) != key)
        if answer.answer == "missing":
            return [self.unable(job, Standing.SKIPPED, answer.reason) for job in waiting]
        self.unjudged += len(held) + len(waiting)
        return []

    def saw(self, task: Task, seen: Seen, outcome: Outcome) -> list[Answer]:
        """A job has reported. Returns its answer if that is final."""
        self.running.discard(task)
        canary = self.canaries.get(self.key(task.job))
        if canary is not None and canary.answer != "passes":
            self.unjudged += 1
            return []
        sightings = self.sightings.setdefault(task.job, [])
        sightings.append(Sighting(task.purpose, seen, outcome))
        before = self.states.get((task.job.repro, task.job.device))
        expect = self.repros[task.job.repro].expect
        runs = [sighting.seen for sighting in sightings]
        settled = decide(task.job.repro, task.job.device, before, runs, expect=expect)
        if isinstance(settled, Ask):
            if len(runs) < MOST_RUNS:
                self.confirmations.append(Task(Purpose.CONFIRM, task.job, fresh=True))
                return []
            reason = f"{runs[0].verdict} could not be confirmed in a fresh interpreter: {runs[-1].reason}"
            return self.released(self.unable(task.job, Standing.INVALID, reason))
        return self.released(Answer(task.job, settled, tuple(sightings), outcome.reason))

    def released(self, answer: Answer) -> list[Answer]:
        """The answer, unless it must wait for its canary."""
        key = self.key(answer.job)
        if not self.probing and self.canaries.get(key) is None:
            self.held.setdefault(key, []).append(answer)
            return []
        return [answer]

    def unable(self, job: Job, standing: Standing, reason: str) -> Answer:
        """The answer for a job that cannot be judged: its state stays."""
        state = self.states.get((job.repro, job.device))
        return Answer(job, Settled(state, standing), tuple(self.sightings.get(job, ())), reason)

    def given_up(self, task: Task) -> None:
        """A task that was started will not report."""
        self.running.discard(task)

    def cut_short(self) -> None:
        """The code has changed: start nothing more, and drop what no canary has vouched for."""
        self.pending.clear()
        self.confirmations.clear()
        self.held.clear()


def cannot_run(repro: Repro, devices: Iterable[str], states: Mapping[tuple[str, str], State]) -> list[Answer]:
    """The answers for a damaged repro, which is never run."""
    return [
        Answer(
            Job(repro.name, device),
            Settled(states.get((repro.name, device)), Standing.INVALID),
            (),
            repro.damage,
        )
        for device in devices
    ]
