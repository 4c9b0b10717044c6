"""A script in a fresh interpreter: judged by the installed oracle, or run by itself as anybody would run it."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from minidbg import processes
from minidbg.failure import Outcome
from minidbg.judge_script import JUDGE_SCRIPT
from minidbg.processes.deaths import outcome_of
from minidbg.repro.header import read_header

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def run(
    path: Path | str,
    *,
    device: str | None = None,
    backend: str | None = None,
    tolerances: tuple[float, float] | str | None = None,
    seconds: float = 120.0,
    standby: processes.Standby | None = None,
    python: str | None = None,
) -> Outcome:
    """Judge the script at ``path`` in a fresh interpreter, from an empty folder, for at most ``seconds``.

    ``standby`` is an interpreter made by ``start_ahead``, which saves the time that importing torch takes.
    ``python`` is another interpreter, with a torch of its own and without minidbg.
    ``tolerances``, relative and absolute or the name of a precision, replace those of the script for wrong results.

    A run that dies or does not come back is an Outcome too, judged against what the script expects. Raises UnreadableRepro.
    """
    header = read_header(path)
    argv = [JUDGE_SCRIPT, str(header.path.absolute()), "--json"]
    argv += ["--device", device] if device else []
    argv += ["--backend", backend] if backend else []
    given = (tolerances,) if isinstance(tolerances, str) else tuple(map(repr, tolerances or ()))
    argv += ["--tolerances", *given] if given else []
    ended = _run(argv, seconds, standby, python)
    outcome = outcome_of(ended, header.signature, limit_s=seconds)
    return replace(outcome, device=device or outcome.device or header.device)


def run_alone(
    path: Path, *, seconds: float, standby: processes.Standby | None = None
) -> processes.ChildResult:
    """How ``python path`` ends, run by itself from an empty folder for at most ``seconds``."""
    return _run([str(path.absolute())], seconds, standby)


def _run(
    argv: list[str], seconds: float, standby: processes.Standby | None, python: str | None = None
) -> processes.ChildResult:
    with tempfile.TemporaryDirectory(prefix="minidbg-run-") as folder:
        # No fresh bytecode folder: compiling torch's own modules again would cost half a minute a run.
        # As in a shell of somebody who never set them: a repro that needs a number of threads sets it itself.
        if standby is not None:
            return standby.run(argv, seconds=seconds, cwd=folder)
        env = dict.fromkeys((*THREAD_VARIABLES, *(["PYTHONHOME"] if python else [])))
        return processes.run_python(
            argv, seconds=seconds, cwd=folder, env=env, python=python or sys.executable
        )


def start_ahead(backend: str) -> processes.Standby:
    """A fresh interpreter for one ``run`` of a script for ``backend`` (its name), which imports torch meanwhile."""
    modules = ["torch", "torch._dynamo", *(["torch._inductor.compile_fx"] if backend == "inductor" else [])]
    return processes.Standby(modules, env=dict.fromkeys(THREAD_VARIABLES))
