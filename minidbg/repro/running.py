"""A script in a fresh interpreter: judged by the installed judge, or run alone as anyone would."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from minidbg import torch_internals, workers
from minidbg.core import environment
from minidbg.core.machine import busyness, memory_limit
from minidbg.core.outcome import Outcome, Verdict
from minidbg.core.run_spec import PRECISIONS
from minidbg.judge.command import judge_command
from minidbg.judge.death import outcome_of_run, shown_in
from minidbg.repro.header import read_header
from minidbg.workers import Request

START_SECONDS = 10.0
"""What an interpreter takes on an idle machine until a repro's backend is called, at most."""
USUAL_ENV = environment.USUAL_THREADS
"""No fresh bytecode folder: compiling torch's own modules again would cost half a minute a run."""


def run(
    path: Path | str,
    *,
    device: str | None = None,
    backend: str | None = None,
    options: str = "",
    precision: str | None = None,
    judge: str = "",
    seconds: float = 120.0,
    fork: workers.Warmup | None = None,
    submit: workers.Submit = workers.submit,
) -> Outcome:
    """Judge the script at ``path`` in a fresh interpreter, in an empty folder, within ``seconds``.

    ``fork``: in a fork of this process's forkserver, prepared so, which saves the time that
    importing torch takes. ``options``, a dict as text, are added to the backend's options in the
    script. The tolerances of a ``precision`` replace those of the script for wrong results;
    ``judge`` is an expression of metrics that replaces them all.

    A run that dies or does not come back is an Outcome too, judged against what the script expects.
    Raises UnreadableRepro.
    """
    header = read_header(path)
    argv = judge_command(
        header.path, device=device, backend=backend, options=options or None, judge=judge or None,
        tolerances=PRECISIONS[precision] if precision else None,
    )  # fmt: skip
    dies, memory = header.spec.expected.kind.traits.dies, None
    if dies:
        own = float(os.environ.get("MINIDBG_TIME_LIMIT_S") or header.spec.time_limit_s)
        seconds, memory = min(seconds, own + START_SECONDS * busyness()), memory_limit()
    request = Request(argv, seconds=seconds, fork=fork, env=USUAL_ENV, memory_bytes=memory)

    def once() -> Outcome:
        ended = submit(request).result()
        outcome = outcome_of_run(ended, header.spec, limit_s=seconds)
        if not (outcome.reason or outcome.stderr) and outcome.verdict in (Verdict.GONE, Verdict.CHANGED):
            outcome = replace(outcome, stderr=ended.stderr_tail)  # asked for where a failure was expected
        return replace(outcome, device=device or outcome.device or header.spec.device)

    return shown_in(header.spec.attempts if dies else 1, once)


def run_alone(
    path: Path,
    *,
    seconds: float,
    without: Iterable[str] = (),
    submit: workers.Submit = workers.submit,
) -> workers.Ended:
    """How ``python path`` ends, run by itself from an empty folder for at most ``seconds``,
    ``without`` some of this process's environment variables."""
    env = {**USUAL_ENV, **dict.fromkeys(without)}
    return submit(Request((str(path.absolute()),), seconds=seconds, env=env)).result()


def standby_plan(backend: str, without: Iterable[str] = ()) -> workers.Ahead:
    """What an interpreter imports while a search runs, which then runs a script for ``backend``
    (its name), and its variables: not those ``without``, which the script may not need."""
    inductor = torch_internals.INDUCTORS_TABLES if backend == "inductor" else ()
    modules = ("torch", "torch._dynamo", *inductor)
    lacks = dict.fromkeys((*environment.FORKABLE, *without))  # it need not be
    kernels = workers.where_kernels_go()
    return modules, environment.for_judge(environment.USUAL_THREADS, kernels, lacks)
