"""One sweep as a machine without clock or process: it says what to run next, hears what runs have shown, and decides.

A decision is final. It is given only when the canary of the job's backend has passed, and a changed verdict was confirmed.
Jobs need not wait for the canary: they run beside it and their decisions are held back.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from minidbg.history import Observation, State
from minidbg.watch.events import Unconfirmed
from minidbg.watch.files import Snapshot
from minidbg.watch.repros import Repro, module_names
from minidbg.watch.settings import is_cpu, machine_of, whole_name
from minidbg.watch.states import FAILING, Decision, Job, Purpose, Transition, decide
from minidbg.words.outcome import Outcome, Verdict

MOST_RUNS = 6
"""Runs of one job in one sweep; who cannot be confirmed by then keeps its state."""


class Lane(enum.Enum):
    """Which slots a run may take, so that none waits for what takes longer than itself."""

    WARM = enum.auto()
    """Forks of the warm interpreter; the first verdicts come from here."""
    FRESH = enum.auto()
    """Fresh interpreters: one slot while warm runs are left, all slots after that."""
    LONG = enum.auto()
    """What may hang, after everything else has been started."""


@dataclass(frozen=True, slots=True)
class Run:
    """A job under way, or to be started now. Of a canary, ``job`` names a repro that uses the backend."""

    purpose: Purpose
    job: Job
    fresh: bool = False
    lane: Lane = Lane.WARM
    turn: int = 0
    """How many runs of the job came before it in this sweep."""


@dataclass(frozen=True, slots=True)
class CanaryKey:
    backend: str
    device: str


Queue: TypeAlias = tuple[Lane, str]
"""Of jobs that share a lane and a device."""


@dataclass(slots=True)
class Sweep:
    """The jobs of one sweep, in order.

    Every moment is in seconds since the epoch, and given from outside.
    """

    number: int
    jobs: Sequence[Job]
    repros: Mapping[str, Repro]
    states: Mapping[tuple[str, str], State]
    slots: int = 2
    """Runs at the same time on one machine."""
    device_slots: int = 1
    """Runs at the same time on one device that is not the CPU: they share its memory."""
    whole: bool = False
    """Whether it runs every repro."""
    code: str = ""
    """Digest of the code that it judges."""
    snapshot: Snapshot = field(default_factory=Snapshot)
    """That code."""
    began: float = 0.0
    edited: bool = False
    """Whether the code has changed since."""
    first_verdict: float | None = None
    decisions: dict[Job, Decision] = field(default_factory=dict)
    """What has been stored and told."""
    pending: dict[Queue, deque[tuple[int, Job]]] = field(default_factory=lambda: defaultdict(deque))
    """The jobs that wait, each with its place in the order."""
    confirmations: dict[Queue, deque[Run]] = field(default_factory=lambda: defaultdict(deque))
    running: set[Run] = field(default_factory=set)
    runs: dict[Job, list[Observation]] = field(default_factory=dict)
    canaries: dict[CanaryKey, Outcome | None] = field(default_factory=dict)
    """What a program of a single op has shown: gone where the backend handles it. None while it runs."""
    held: dict[CanaryKey, list[tuple[Job, Decision | Unconfirmed]]] = field(default_factory=dict)
    backends: dict[str, str] = field(init=False)
    """The key of each repro's backend."""
    backendless: set[Job] = field(default_factory=set)
    """Jobs whose backend is broken or not here."""
    unjudged: int = 0
    """Jobs without a decision because their backend is broken."""

    def __post_init__(self) -> None:
        self.backends = {name: self.repros[name].backend_key for name in {job.repro for job in self.jobs}}
        for number, job in enumerate(self.jobs):
            self.pending[self.queue(job)].append((number, job))

    @property
    def finished(self) -> bool:
        return not (any(self.pending.values()) or any(self.confirmations.values()) or self.running)

    def waits(self, lane: Lane) -> bool:
        return any(jobs for (one, _), jobs in self.pending.items() if one is lane)

    def canary(self, job: Job) -> CanaryKey:
        return CanaryKey(self.backends[job.repro], job.device)

    def queue(self, job: Job) -> Queue:
        state, repro = self.states.get((job.repro, job.device)), self.repros[job.repro]
        lane = Lane.WARM
        if repro.spec.expected.kind.traits.endless or (
            state is not None and state.verdict is Verdict.TIMEOUT
        ):
            lane = Lane.LONG
        elif state is not None and state.fresh and state.script == repro.digest:
            lane = Lane.FRESH
        return lane, whole_name(job.device)

    def next_run(self) -> Run | None:
        run = self.choose()
        if run is not None:
            self.running.add(run)
        return run

    def choose(self) -> Run | None:
        """Warm runs, confirmations beside them, what may hang last."""
        running = Counter((machine_of(run.job.device), run.lane) for run in self.running)
        busy = Counter(whole_name(run.job.device) for run in self.running)
        warm = self.waits(Lane.WARM)

        def has_room(lane: Lane, device: str) -> bool:
            machine = machine_of(device)
            beside_warm = lane is Lane.FRESH and (warm or running[machine, Lane.WARM])
            slots = (
                0 if lane is Lane.LONG and warm else max(1, self.slots // 8) if beside_warm else self.slots
            )
            return running[machine, lane] < slots and (is_cpu(device) or busy[device] < self.device_slots)

        for is_first in (True, False):
            for (lane, device), waiting in self.confirmations.items():
                # Warm runs would keep a device of a few slots full to the end; of a single slot they get all.
                has_turn = not is_first or (not is_cpu(device) and self.device_slots > 1)
                if waiting and has_turn and has_room(lane, device):
                    self.confirmations[lane, device] = self.confirmations.pop(
                        (lane, device)
                    )  # others are next
                    return waiting.popleft()
            for lane in (Lane.WARM,) if is_first else (Lane.FRESH, Lane.LONG):
                queues = (
                    jobs
                    for (one, device), jobs in self.pending.items()
                    if one is lane and has_room(lane, device)
                )
                if heads := [jobs[0] for jobs in queues if jobs]:
                    return self.start(min(heads)[1])
        return None

    def start(self, job: Job) -> Run:
        """Take the job out of its queue: its run; or the canary that goes ahead, and the job stays."""
        key, queue = self.canary(job), self.queue(job)
        if key not in self.canaries:
            self.canaries[key] = None
            return Run(Purpose.CANARY, job)
        self.pending[queue].popleft()
        lane = queue[0]
        return Run(Purpose.RUN, job, lane is Lane.FRESH, lane)

    def saw_canary(self, run: Run, shown: Outcome) -> list[Decision | Unconfirmed]:
        """A canary has reported. Returns what waited for it, or what it decides itself."""
        self.running.discard(run)
        key = self.canary(run.job)
        self.canaries[key] = shown
        held = self.held.pop(key, [])
        if shown.verdict is Verdict.GONE:
            return [one for _, one in held]
        waiting = self.without(lambda job: self.canary(job) == key)
        return self.without_backend([*(job for job, _ in held), *waiting], shown)

    def without(self, is_gone: Callable[[Job], bool]) -> list[Job]:
        """Start none of these jobs any more; those that had not been started."""
        taken = []
        for queue, jobs in self.pending.items():
            taken += [one for one in jobs if is_gone(one[1])]
            self.pending[queue] = deque(one for one in jobs if not is_gone(one[1]))
        for key, waiting in self.confirmations.items():
            self.confirmations[key] = deque(run for run in waiting if not is_gone(run.job))
        return [job for _, job in sorted(taken)]

    def without_backend(self, jobs: Iterable[Job], shown: Outcome) -> list[Decision | Unconfirmed]:
        """The decisions on jobs whose backend is not here; none for one that is broken. A job may run twice and is counted once."""
        fresh = [job for job in dict.fromkeys(jobs) if job not in self.backendless]
        self.backendless.update(fresh)
        if shown.verdict is Verdict.SKIPPED:
            return [self.unable(job, Transition.SKIPPED, shown.reason) for job in fresh]
        self.unjudged += len(fresh)
        return []

    def saw(self, run: Run, shown: Observation) -> list[Decision | Unconfirmed]:
        """A job has reported. Returns the decision if it is final, or what is to be confirmed if that is new."""
        self.running.discard(run)
        job, key = run.job, self.canary(run.job)
        canary = self.canaries.get(key)
        if canary is not None and canary.verdict is not Verdict.GONE:
            return self.without_backend([job], canary)
        runs = self.runs.setdefault(job, [])
        runs.append(shown)
        before, repro = self.states.get((job.repro, job.device)), self.repros[job.repro]
        decision = decide(job, before, runs, expect=repro.expect)
        if decision is not None:
            del self.runs[job]
            return self.released(job, decision)
        if len(runs) == MOST_RUNS:
            reason = f"{runs[0].verdict} could not be confirmed in a fresh interpreter: {shown.reason}"
            return self.released(job, self.unable(job, Transition.INVALID, reason))
        lane = (
            Lane.LONG
            if shown.verdict is Verdict.TIMEOUT or repro.spec.expected.kind.traits.endless
            else Lane.FRESH
        )
        again = Run(Purpose.CONFIRM, job, True, lane, len(runs))
        self.confirmations[lane, whole_name(job.device)].append(again)
        is_first = before is None or before.script != repro.digest
        known = repro.expect if before is None or is_first else before.verdict
        if run.purpose is not Purpose.RUN or shown.verdict is known:
            return []
        return self.released(job, Unconfirmed(
            self.number, job.repro, job.device, known,
            seen=not is_first, verdict=shown.verdict, seconds=round(shown.seconds, 3),
        ))  # fmt: skip

    def released(self, job: Job, found: Decision | Unconfirmed) -> list[Decision | Unconfirmed]:
        """What was found, unless it must wait for its canary."""
        key = self.canary(job)
        if self.canaries.get(key) is None:
            self.held.setdefault(key, []).append((job, found))
            return []
        return [found]

    def unable(self, job: Job, transition: Transition, reason: str) -> Decision:
        """Of a job that cannot be judged: its state stays."""
        state = self.states.get((job.repro, job.device))
        return Decision(job, transition, state, None, tuple(self.runs.get(job, ())), reason)

    def cut_short(self) -> None:
        """The code has changed: start nothing more, and drop what no canary has vouched for."""
        self.edited = True
        self.without(lambda job: True)
        self.held.clear()


def in_order(
    jobs: Iterable[Job],
    states: Mapping[tuple[str, str], State],
    changed: Collection[str],
    repros: Mapping[str, Repro],
) -> list[Job]:
    """All ``jobs``, what the change is likely to concern first; among equals the quickest, so that a verdict is there soon."""
    files = frozenset(changed)
    modules = {module for path in files for module in module_names(path)}

    def key(job: Job) -> tuple[int, float]:
        state = states.get((job.repro, job.device))
        return rank(state, files, modules, repros[job.repro]), state.seconds if state else 0.0

    return sorted(jobs, key=key)


def rank(state: State | None, changed: frozenset[str], modules: Collection[str], repro: Repro) -> int:
    """Failed in a changed file (one of ``modules``), failing and loads one, failing, new, loads one, the rest."""
    if state is None:
        return 3
    failing, touched = state.verdict in FAILING, not changed.isdisjoint(state.modules)
    if failing and any(module in modules for module in repro.failing_modules):
        return 0
    return (1 if failing else 3) + (0 if touched else 1)
