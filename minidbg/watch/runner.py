"""How a repro is run: by which command, in which mode, how long; and what the end of a run says of
it. And how a build is run."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path

from minidbg.core import environment
from minidbg.core.machine import HERE, busyness, memory_limit
from minidbg.core.outcome import Outcome, Verdict
from minidbg.core.run_spec import RunSpec
from minidbg.history import State
from minidbg.judge.command import judge_command
from minidbg.judge.death import outcome_of_run
from minidbg.watch.events import BuildFailed, BuildFinished
from minidbg.watch.repros import Repro
from minidbg.watch.settings import WatchSettings, Workers, is_cpu, machine_of
from minidbg.watch.states import Purpose
from minidbg.watch.sweep import Lane, Run
from minidbg.workers import Ended, Pool, Request, Warmup
from minidbg.workers.child import end_of, kill_group

FIRST_RUN_SECONDS = 180.0
LEAST_SECONDS = 30.0
MOST_SECONDS = 900.0
TIME_LIMIT_FACTOR = 5.0
"""A run may take this many times as long as the last one, within the bounds above."""
LONG_NICE = 5
"""Added to the priority of what may hang: it must not slow down what does not."""
HANG_START_SECONDS = 10.0
"""For an interpreter of its own to start before the hang begins."""
LEAST_HANG_SECONDS = 10.0
"""A repro of the kind hang gets at least this long in a warm worker, and ``TIME_LIMIT_FACTOR``
times what other repros need."""


@dataclass(slots=True)
class Runner:
    pool: Pool
    settings: WatchSettings
    hear: Callable[[Future[Ended]], object]
    """Of the end of each run, from whichever thread knows it."""
    recompiled: tuple[str, ...] = ()
    """Whose bytecode no run uses: the files and folders that are watched."""
    usual_seconds: float = 0.0
    under_way: dict[Future[Ended], Run] = field(default_factory=dict)

    def submit(self, run: Run, repro: Repro, state: State | None) -> None:
        device = run.job.device
        fork = fork_for(self.settings.workers, device, fresh=run.fresh and not run.forked)
        command = judge_command(repro.path, device=device, one_op=run.purpose is Purpose.CANARY)
        memory = self.settings.memory_bytes
        if memory is None and not machine_of(device):
            memory = memory_limit(self.settings.jobs, HERE)
        end = self.pool.submit(Request(
            command, seconds=self.time_limit(run, repro, state, fresh=fork is None), fork=fork,
            memory_bytes=memory, recompiled=self.recompiled, one_thread=not run.fresh,
            nice=LONG_NICE if run.lane is Lane.LONG else 0, anew=run.forked,
        ))  # fmt: skip
        self.under_way[end] = run
        end.add_done_callback(self.hear)

    def time_limit(self, run: Run, repro: Repro, state: State | None, *, fresh: bool) -> float:
        if run.purpose is Purpose.CANARY:
            return FIRST_RUN_SECONDS
        fixed = self.settings.seconds
        busy = busyness(HERE)
        least = LEAST_SECONDS * busy
        if repro.may_hang:
            own = repro.spec.time_limit_s
            enough = fixed or max(LEAST_HANG_SECONDS, TIME_LIMIT_FACTOR * self.usual_seconds)
            return min(own, enough) + (HANG_START_SECONDS * busy if fresh else 0)
        if fixed is not None:
            return fixed
        if state is None or state.script != repro.digest:
            return FIRST_RUN_SECONDS
        enough = max(least, TIME_LIMIT_FACTOR * state.seconds)
        return min(MOST_SECONDS, enough + (least if fresh else 0))


def fork_for(workers: Workers, device: str = "cpu", *, fresh: bool = False) -> Warmup | None:
    """Whether a run is a fork: by default for the CPU on Linux, since elsewhere system libraries do
    not survive it. ``fresh``: an interpreter of its own, which inherits nothing."""
    survives = sys.platform == "linux" and is_cpu(device)
    forks = workers is Workers.FORK or (workers is Workers.AUTO and survives)
    return Warmup() if forks and not fresh else None


# What the end of a run says


def outcome_of_job(repro: Repro, device: str, ended: Ended) -> Outcome:
    if ended.lost:
        reason = ended.error or "the worker process died under it"
        return Outcome(Verdict.INVALID, reason=reason, device=device)
    outcome = outcome_of_run(ended, as_its_header_says(repro), limit_s=round(ended.seconds))
    return replace(outcome, device=device)


def as_its_header_says(repro: Repro) -> RunSpec:
    """How the repro is run. Until it is seen to fail, the kind its header names is expected."""
    return replace(repro.spec, signature=repro.spec.expected)


# A person's build command before a sweep, in a process group of its own

OUTPUT_LINES, MOST_OUTPUT_BYTES = 30, 1 << 20
ERROR = re.compile(r"\b(error|fatal|failed|undefined reference|no such file)\b|Error\b", re.IGNORECASE)


class Build:
    def __init__(self, command: str, folder: Path) -> None:
        """Raises OSError where ``folder`` is none."""
        self.began = time.monotonic()
        self.output = tempfile.TemporaryFile()  # noqa: SIM115 - which ``wait`` closes
        try:
            self.process = subprocess.Popen(
                command, shell=True, cwd=folder, stdin=subprocess.DEVNULL, stdout=self.output,
                stderr=self.output, start_new_session=True, env=environment.for_tool(),
            )  # fmt: skip
        except OSError:
            self.output.close()
            raise

    def wait(self, seconds: float | None = None) -> BuildFinished | BuildFailed:
        """How it ended; cancelled if it takes longer, or on Ctrl-C. Raises TimeoutExpired."""
        try:
            status = self.process.wait(seconds)
        except BaseException:
            self.cancel()
            self.output.close()
            raise
        with self.output as file:
            lines = end_of(file, MOST_OUTPUT_BYTES).splitlines()
        took = round(time.monotonic() - self.began, 3)
        if not status:
            return BuildFinished(took)
        told = [line.strip() for line in lines if line.strip()]
        failures = [line for line in told if ERROR.search(line)] or told[-1:] or [""]
        return BuildFailed(status, took, "\n".join(lines[-OUTPUT_LINES:]), failures[0])

    def cancel(self) -> None:
        kill_group(self.process.pid)
