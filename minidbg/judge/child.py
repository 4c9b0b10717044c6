"""Judging what may kill the process that judges it: in a child, whose death says what happened."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from minidbg.judge.death import outcome_of_death, printed
from minidbg.words.outcome import Outcome
from minidbg.words.run_spec import RunSpec
from minidbg.workers import memory_limit, run_python

COMPILES = "phase compile"
STDERR_SHOWN = 4000


def judge_in_child(command: Sequence[str], spec: RunSpec, device: str | None, backend: str | None) -> Outcome:
    """The outcome that ``python *command`` finds in a process of its own, or what its death says.

    Its time begins when it says that it compiles: imports and the eager run are not the backend's.
    """
    more = [*(["--device", device] if device else []), *(["--backend", backend] if backend else [])]
    done = run_python(
        [*command, "--child", *more],
        seconds=time_limit(spec),
        memory_bytes=memory_limit(),
        begins_at=COMPILES,
    )
    sys.stderr.write(done.stderr_tail[-STDERR_SHOWN:])
    found = printed(done) or outcome_of_death(done, spec)
    return replace(found, seconds=round(done.seconds, 3), device=device or spec.device)


def time_limit(spec: RunSpec) -> float:
    return float(os.environ.get("MINIDBG_TIME_LIMIT_S") or spec.time_limit_s)
