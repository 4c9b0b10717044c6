"""From a task of a sweep to an order for the pool: which mode, which arguments, how long it may take."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import psutil

from minidbg.failure import Kind
from minidbg.history import State
from minidbg.judge_script import JUDGE_SCRIPT
from minidbg.metadata import HANG_LIMIT_S
from minidbg.watch.columns import Column
from minidbg.watch.pool import IN_WORKER, ONE_THREAD, Order, Pool
from minidbg.watch.repros import Repro
from minidbg.watch.settings import WatchSettings, Workers
from minidbg.watch.sweep import Lane, Purpose, Task

CANARY_SECONDS = 120.0
FIRST_RUN_SECONDS = 180.0
LEAST_SECONDS = 30.0
MOST_SECONDS = 900.0
FACTOR = 5.0
"""A run may take this many times as long as the last one, within the bounds above."""
MOST_BUSY = 10.0
LONG_NICE = 5
"""Added to the priority of what may hang: it must not slow down what does not."""
HANG_START_SECONDS = 10.0
"""For an interpreter of its own to start before the hang begins."""
LEAST_HANG_SECONDS = 10.0
"""A repro of the kind hang gets at least this long in a warm worker, and ``FACTOR`` times what other repros need."""


@dataclass(slots=True)
class Runner:
    """The orders under way, at most ``settings.jobs`` of them."""

    pool: Pool
    settings: WatchSettings
    bytecode: str = ""
    under_way: dict[int, tuple[Task, float]] = field(default_factory=dict)
    """By number: the task, and when it was ordered in seconds since the epoch."""
    lost_once: set[Task] = field(default_factory=set)
    """Tasks whose server died under them: they are run once more, in a fresh interpreter."""
    last_number: int = 0
    usual_seconds: float = 0.0
    """The longest that a repro which came back has taken."""

    def start(self, task: Task, repro: Repro, state: State | None) -> None:
        """Order the task."""
        number, mode = self.next_number(), self.mode(task)
        self.under_way[number] = task, time.time()
        self.pool.run(
            Order(
                number,
                judging(repro, task.job.column, canary=task.purpose is Purpose.CANARY),
                mode,
                self.time_limit(task, repro, state, mode),
                memory_bytes=self.settings.memory_bytes or default_memory_bytes(self.settings.jobs),
                pycache=self.bytecode,
                nice=LONG_NICE if task.lane is Lane.LONG else 0,
                one_thread=not task.fresh and not sets_threads(task),
                env=task.job.column.variables,
            )
        )

    def time_limit(self, task: Task, repro: Repro, state: State | None, mode: str) -> float:
        """Seconds that the task may take."""
        if task.purpose is Purpose.CANARY:
            return CANARY_SECONDS
        fresh, fixed = mode == "prelude", self.settings.seconds
        least = LEAST_SECONDS * busyness()
        if repro.kind is Kind.HANG:
            own = own_limit(repro.table)
            enough = fixed or max(LEAST_HANG_SECONDS, FACTOR * self.usual_seconds)
            return min(own, enough) + (HANG_START_SECONDS * busyness() if fresh else 0)
        if fixed is not None:
            return fixed
        if state is None or state.script != repro.digest:
            return FIRST_RUN_SECONDS
        return min(MOST_SECONDS, max(least, FACTOR * state.seconds) + (least if fresh else 0))

    def next_number(self) -> int:
        """A number that no order has had."""
        self.last_number += 1
        return self.last_number

    def mode(self, task: Task) -> str:
        """How the task gets its process: see ``mode_for``."""
        if task in self.lost_once or sets_threads(task):
            return "prelude"
        return mode_for(self.settings.workers, task.job.column.device, fresh=task.fresh, turn=task.turn)

    def ended(self, number: int) -> tuple[Task, float] | None:
        """The task of an order that has ended, and when it was ordered; None for an order of someone else."""
        return self.under_way.pop(number, None)

    def lost(self, task: Task) -> bool:
        """The task's server died. Whether it may be tried again."""
        if task in self.lost_once:
            self.lost_once.discard(task)
            return False
        self.lost_once.add(task)
        return True

    def cancel_all(self) -> None:
        """End everything under way; the ends are still reported."""
        for number in self.under_way:
            self.pool.cancel(number)


def sets_threads(task: Task) -> bool:
    """Whether the task's column says how many threads there are: a fork cannot have more than one."""
    return not ONE_THREAD.keys().isdisjoint(task.job.column.variables)


def busyness() -> float:
    """How many times as long as usual anything takes here now, from 1 to ``MOST_BUSY``; 1 where the system does not say.

    A limit that is too short for a busy machine would turn a slow start of an interpreter into a verdict.
    """
    try:
        waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
    except OSError:
        return 1.0
    return min(MOST_BUSY, max(1.0, waiting))


def judging(repro: Repro, column: Column, *, canary: bool = False) -> tuple[str, ...]:
    """The command that judges a repro in a column in a worker and prints the outcome as JSON: the only way in which we do.

    A repro of a crash or hang runs its dangerous part in a process of its own, which is slow to start; in a worker, which is
    such a process already, it is asked to do without (``--child``).
    """
    script = str(repro.path.absolute())
    if canary:
        return (str(IN_WORKER), "canary", script, column.device, column.options)
    options = ("--options", column.options) if column.options else ()
    how = "--child" if repro.kind in (Kind.CRASH, Kind.HANG) else "--json"
    return (JUDGE_SCRIPT, script, *options, "--device", column.device, how)


def forks(settings: WatchSettings) -> bool:
    """Whether warm processes are forked at all: by default on Linux, since elsewhere system libraries do not survive it."""
    if settings.workers is Workers.AUTO:
        return sys.platform == "linux"
    return settings.workers is Workers.FORK


def mode_for(workers: Workers, device: str, *, fresh: bool, turn: int = 1) -> str:
    """The mode of an order. Forks are for Linux and for devices that a fork can use.

    The first confirmation (``turn`` 1) comes from a fork of the untouched interpreter; if that contradicts the warm one, or more
    are needed, interpreters of their own decide: they differ in what a fork inherits, such as the order of sets.
    """
    forked = workers is Workers.FORK or (
        workers is Workers.AUTO and sys.platform == "linux" and device == "cpu"
    )
    if not forked or (fresh and turn != 1):
        return "prelude"
    return "untouched" if fresh else "fork"


def own_limit(table: Mapping[str, object]) -> float:
    """The time limit in the header, which the script keeps by itself."""
    limit = table.get("time_limit_s", HANG_LIMIT_S)
    return float(limit) if isinstance(limit, int | float) else HANG_LIMIT_S


def default_memory_bytes(jobs: int) -> int:
    """What a run may have when nobody said: its share of the machine, and something over."""
    return int(psutil.virtual_memory().total * 0.75 / max(1, min(jobs, 2)))
