"""From a task of a sweep to an order for the pool: which mode, which arguments, how long it may take."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from minidbg.failure import Kind
from minidbg.history import State
from minidbg.judge_script import JUDGE_SCRIPT
from minidbg.metadata import HANG_LIMIT_S
from minidbg.watch.pool import Order, Pool
from minidbg.watch.repros import Repro
from minidbg.watch.settings import WatchSettings, Workers
from minidbg.watch.sweep import Purpose, Task

CANARY_SCRIPT = Path(__file__).with_name("canary_script.py")
DEVICE_SCRIPT = Path(__file__).with_name("device_script.py")
CANARY_SECONDS = 120.0
FIRST_RUN_SECONDS = 180.0
LEAST_SECONDS = 30.0
MOST_SECONDS = 900.0
FACTOR = 5.0
"""A run may take this many times as long as the last one, within the bounds above."""
MOST_BUSY = 10.0
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

    @property
    def free(self) -> int:
        """Workers without work."""
        return max(0, self.settings.jobs - len(self.under_way))

    def start(self, task: Task, repro: Repro, state: State | None) -> None:
        """Order the task."""
        number = self.next_number()
        self.under_way[number] = task, time.time()
        self.pool.run(
            Order(
                number,
                arguments(task, repro, self.mode(task)),
                self.mode(task),
                self.time_limit(task, repro, state),
                memory_bytes=self.settings.memory_bytes or default_memory_bytes(self.settings.jobs),
                pycache=self.bytecode,
            )
        )

    def time_limit(self, task: Task, repro: Repro, state: State | None) -> float:
        """Seconds that the task may take."""
        if task.purpose is Purpose.CANARY:
            return CANARY_SECONDS
        fresh, fixed = self.mode(task) == "fresh", self.settings.seconds
        least = LEAST_SECONDS * busyness()
        if repro.kind is Kind.HANG:
            own = own_limit(repro.table)
            enough = fixed or max(LEAST_HANG_SECONDS, FACTOR * self.usual_seconds)
            return own + least if fresh else min(own, enough)
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
        """Warm workers are forked where that is safe: Linux, and no device that a forked process cannot use."""
        if task.fresh:
            return "fresh"
        forked = forks(self.settings) and task not in self.lost_once
        if self.settings.workers is Workers.AUTO:
            forked = forked and task.job.device == "cpu"
        return "fork" if forked else "prelude"

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


def busyness() -> float:
    """How many times as long as usual anything takes here now, from 1 to ``MOST_BUSY``; 1 where the system does not say.

    A limit that is too short for a busy machine would turn a slow start of an interpreter into a verdict.
    """
    try:
        waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
    except OSError:
        return 1.0
    return min(MOST_BUSY, max(1.0, waiting))


def arguments(task: Task, repro: Repro, mode: str) -> tuple[str, ...]:
    """The command line that judges the task's script.

    A repro of a crash or hang runs its dangerous part in a process of its own, which is slow to start; in a worker, which is
    such a process already, it is asked to do without (``--child``).
    """
    script = str(repro.path.absolute())
    if task.purpose is Purpose.CANARY:
        return (str(CANARY_SCRIPT), script, "--device", task.job.device)
    form = "--child" if repro.kind in (Kind.CRASH, Kind.HANG) and mode != "fresh" else "--json"
    return (JUDGE_SCRIPT, script, "--device", task.job.device, form)


def forks(settings: WatchSettings) -> bool:
    """Whether warm processes are forked at all: by default on Linux, since elsewhere system libraries do not survive it."""
    if settings.workers is Workers.AUTO:
        return sys.platform == "linux"
    return settings.workers is Workers.FORK


def own_limit(table: Mapping[str, object]) -> float:
    """The time limit in the header, which the script keeps by itself."""
    limit = table.get("time_limit_s", HANG_LIMIT_S)
    return float(limit) if isinstance(limit, int | float) else HANG_LIMIT_S


def default_memory_bytes(jobs: int) -> int:
    """What a run may have when nobody said: its share of the machine, and something over."""
    return int(psutil.virtual_memory().total * 0.75 / max(1, min(jobs, 2)))
