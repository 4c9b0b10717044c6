"""One sweep as a machine without clock or process: says what to run next, hears what runs showed.

The order is that of ``Sweep.in_order``: what a save is likely to concern comes first. Whoever waits
gets a free slot by ``ORDER`` and by what its ``Lane`` says (``Sweep.next_run``). Jobs run beside
their canary; what they show is held until it has passed, and then ``states.decide`` says what it
means.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TypeAlias

from minidbg.core.outcome import Verdict
from minidbg.history import Observation, State
from minidbg.watch.events import Unconfirmed
from minidbg.watch.repros import Repro
from minidbg.watch.settings import is_cpu, machine_of, whole_name
from minidbg.watch.states import FAILING, Decision, Job, Purpose, decide


class Lane(enum.Enum):
    """Which slots a run may take, so that none waits for what takes longer than itself."""

    WARM = enum.auto()
    """First verdicts, from forks of the warm interpreter where the device allows them."""
    FRESH = enum.auto()
    """Fresh interpreters: an eighth as many as warm runs, at least one; as many if none is left."""
    LONG = enum.auto()
    """What may hang, once no warm run waits any more."""


Queue: TypeAlias = tuple[Lane, bool]
"""The runs of a lane that confirm, or its others."""
ORDER: Sequence[Queue] = (
    (Lane.WARM, False),
    (Lane.FRESH, True), (Lane.LONG, True),
    (Lane.FRESH, False),
    (Lane.LONG, False),
)  # fmt: skip
"""Who gets a free slot: first verdicts, confirmations, and then what takes longer."""
BackendKey: TypeAlias = tuple[str, str]
"""``Repro.backend_key``, and a device: what a canary is run for."""
MANY_TO_CONFIRM = 4
"""So many that wait at once are worth the start of a server that imports anew."""
CAN_RUN = frozenset({Verdict.GONE, Verdict.SKIPPED})
"""Of a canary: the backend handles an op; or is not here, as each of its repros will say."""


@dataclass(frozen=True, slots=True)
class Run:
    """A job under way or to start. Of a canary, ``job`` names a repro that uses the backend."""

    purpose: Purpose
    job: Job
    fresh: bool = False
    lane: Lane = Lane.WARM
    forked: bool = False
    """A fresh one in a fork of a server that imported since the sweep began, the same for all."""


@dataclass(slots=True)
class Sweep:
    """Every moment is in seconds since the epoch, and given from outside."""

    number: int
    jobs: Sequence[Job]
    """In any order; then ``in_order``."""
    repros: Mapping[str, Repro]
    states: Mapping[tuple[str, str], State]
    changed: Collection[str] = ()
    """The files whose change it judges."""
    slots: int = 2
    """Runs of one lane at the same time on one machine."""
    device_slots: int = 1
    """Runs at the same time on one device that is not the CPU: they share its memory."""
    code: str = ""
    """Digest of the code that it judges."""
    began: float = 0.0
    superseded: bool = False
    """Whether the code has changed since."""
    decisions: dict[Job, Decision] = field(default_factory=dict)
    """What has been stored and told."""
    waiting: dict[Queue, list[Run]] = field(default_factory=lambda: {queue: [] for queue in ORDER})
    runs: dict[Job, list[Observation]] = field(default_factory=dict)
    """Of each job that is not decided."""
    canaries: dict[BackendKey, Verdict | None] = field(default_factory=dict)
    """What a program of a single op has shown; None until it has."""
    many_flip: bool = False
    agreed: dict[BackendKey, bool] = field(default_factory=dict)
    """Whether forks have shown what interpreters of their own showed then, each time."""
    held: list[tuple[Run, Observation]] = field(default_factory=list)
    """What has been seen before the canary of its backend."""

    def __post_init__(self) -> None:
        self.jobs = self.in_order()
        for job in self.jobs:
            if self.key(job) not in self.canaries:
                self.canaries[self.key(job)] = None
                self.waiting[Lane.WARM, False].append(Run(Purpose.CANARY, job))
            lane = self.lane(job)
            self.waiting[lane, False].append(Run(Purpose.RUN, job, lane is Lane.FRESH, lane))

    def in_order(self) -> list[Job]:
        """What the change is likely to concern first; among equals the quickest."""
        changed = frozenset(self.changed)
        modules = [path.removesuffix(".py").removesuffix("/__init__") for path in changed]
        dotted = [module.replace("/", ".") for module in modules]

        def place(job: Job) -> tuple[int, float]:
            """0 failed in a changed one, 1 fails, loads one, 2 fails, 3 new, loads one, 4 rest."""
            state = self.states.get(job)
            if state is None:
                return 3, 0.0
            failing, touched = state.verdict in FAILING, not changed.isdisjoint(state.files)
            failed_in = tuple(f".{name}" for name in self.repros[job.repro].failing_modules)
            if failing and any(one.endswith(failed_in) for one in dotted):
                return 0, state.seconds
            return (1 if failing else 3) + (not touched), state.seconds

        return sorted(self.jobs, key=place)

    @property
    def unjudged(self) -> int:
        """How many jobs have no decision because their backend is broken."""
        return sum(self.is_broken(job) and job not in self.decisions for job in self.jobs)

    def key(self, job: Job) -> BackendKey:
        return self.repros[job.repro].backend_key, job.device

    def is_broken(self, job: Job) -> bool:
        return (self.canaries[self.key(job)] or Verdict.GONE) not in CAN_RUN

    def before(self, job: Job) -> State | None:
        """The state of the job; none when its script is another by now."""
        state = self.states.get(job)
        is_same = state is not None and state.script == self.repros[job.repro].digest
        return state if is_same else None

    def lane(self, job: Job) -> Lane:
        before = self.before(job)
        timed_out = before is not None and before.verdict is Verdict.TIMEOUT
        if self.repros[job.repro].may_hang or timed_out:
            return Lane.LONG
        return Lane.FRESH if before is not None and before.fresh else Lane.WARM

    def next_run(self, under_way: Collection[Run]) -> Run | None:
        """The next that a slot is free for beside those ``under_way``; it waits no more."""
        running = Counter((machine_of(run.job.device), run.lane) for run in under_way)
        busy = Counter(whole_name(run.job.device) for run in under_way)
        warm = bool(self.waiting[Lane.WARM, False])
        self.many_flip |= len(self.waiting[Lane.FRESH, True]) >= MANY_TO_CONFIRM

        @cache
        def has_room(lane: Lane, device: str) -> bool:
            machine = machine_of(device)
            beside_warm = lane is Lane.FRESH and (warm or running[machine, Lane.WARM])
            slots = max(1, self.slots // 8) if beside_warm else self.slots
            if running[machine, lane] >= slots or (lane is Lane.LONG and warm):
                return False
            return is_cpu(device) or busy[whole_name(device)] < self.device_slots

        for queue in ORDER:
            for run in self.waiting[queue]:
                if has_room(run.lane, run.job.device):
                    self.waiting[queue].remove(run)
                    return replace(run, forked=self.may_fork(run))
        return None

    def may_fork(self, run: Run) -> bool:
        """Whether a fork of a fresh server will do to confirm: once, what is no death, where forks
        of the backend and own interpreters agreed in this sweep, and always for this job."""
        job, state = run.job, self.before(run.job)
        confirms = run.purpose is Purpose.CONFIRM and run.lane is Lane.FRESH
        is_first = confirms and len(self.runs[job]) == 1
        return (
            self.many_flip and is_first and is_cpu(job.device) and not machine_of(job.device)
            and self.agreed.get(self.key(job), False)
            and not (state is not None and state.disagreements)
            and self.runs[job][0].verdict in (Verdict.GONE, Verdict.REPRODUCES)
        )  # fmt: skip

    def lost(self, run: Run) -> None:
        """Its server died under it: it runs again first in its lane, in its own interpreter."""
        if run.forked:
            self.agreed[self.key(run.job)] = False
        self.waiting[run.lane, run.purpose is Purpose.CONFIRM].insert(0, replace(run, fresh=True))

    def saw_canary(self, run: Run, verdict: Verdict) -> list[Decision | Unconfirmed]:
        """A canary reported: what follows for what it held; a broken backend runs nothing more."""
        self.canaries[self.key(run.job)] = verdict
        for queue, runs in self.waiting.items():
            self.waiting[queue] = [one for one in runs if not self.is_broken(one.job)]
        held, self.held = self.held, []
        return [one for run, shown in held for one in self.saw(run, shown)]

    def saw(self, run: Run, shown: Observation) -> list[Decision | Unconfirmed]:
        """A job has reported. Returns the decision if final, or what is to be confirmed if new."""
        job = run.job
        if self.canaries[self.key(job)] is None:
            self.held.append((run, shown))
            return []
        if self.is_broken(job):
            return []
        runs = self.runs.setdefault(job, [])
        if run.purpose is Purpose.CONFIRM and not run.forked:
            agreed = self.agreed.get(self.key(job), True)
            self.agreed[self.key(job)] = agreed and shown.verdict is runs[0].verdict
        runs.append(shown)
        before, repro = self.before(job), self.repros[job.repro]
        decision = decide(job, before, runs, expect=repro.expect)
        if decision is not None:
            del self.runs[job]
            return [decision]
        lane = Lane.LONG if shown.verdict is Verdict.TIMEOUT or repro.may_hang else Lane.FRESH
        self.waiting[lane, True].append(Run(Purpose.CONFIRM, job, True, lane))
        known = before.verdict if before is not None else repro.expect
        if len(runs) > 1 or shown.verdict is known:
            return []
        return [Unconfirmed(
            self.number, job.repro, job.device, known,
            seen=before is not None, verdict=shown.verdict, seconds=round(shown.seconds, 3),
        )]  # fmt: skip

    def supersede(self) -> None:
        """The code has changed: start nothing more, and drop what no canary has vouched for."""
        self.superseded = True
        self.held.clear()
        for runs in self.waiting.values():
            runs.clear()
