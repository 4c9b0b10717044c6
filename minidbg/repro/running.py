"""A script in a fresh interpreter: judged by the installed oracle, or run by itself as anybody would run it."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from minidbg import processes
from minidbg.failure import Direction, Kind, Outcome, Signature, Verdict
from minidbg.judge_script import JUDGE_SCRIPT
from minidbg.repro.header import Header, read_header

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
    outcome = _answer(ended.stdout)
    if outcome is None:
        outcome = _without_answer(ended, header, seconds)
    return replace(outcome, device=device or outcome.device)


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


def _answer(stdout: str) -> Outcome | None:
    """The outcome in the last line, if the script came so far."""
    lines = [line for line in stdout.splitlines() if line.strip()]
    try:
        return Outcome.from_json(json.loads(lines[-1])) if lines else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _without_answer(ended: processes.ChildResult, header: Header, seconds: float) -> Outcome:
    """What a script that printed no verdict has shown."""
    direction = header.signature.direction if header.signature else Direction.FORWARD
    shown = Outcome(
        Verdict.INVALID, message=ended.stderr_tail[-4000:], seconds=ended.seconds, device=header.device
    )
    if ended.timed_out:
        found = replace(
            shown, signature=Signature(Kind.HANG, direction), reason=f"no answer within {seconds:g} s"
        )
        return replace(found, verdict=Verdict.TIMEOUT).judged_against(header.signature)
    if ended.signal is not None:
        name = signal.Signals(ended.signal).name
        found = replace(
            shown, signature=Signature(Kind.CRASH, direction), signal=ended.signal, reason=f"died of {name}"
        )
        return replace(found, verdict=Verdict.CRASHED).judged_against(header.signature)
    last = ended.stderr_tail.strip().rpartition("\n")[2]
    status = f"exit status {ended.exit_status} without a verdict{': ' if last else ''}{last}"
    verdict = Verdict.SKIPPED if ended.exit_status == 125 else Verdict.INVALID
    return replace(shown, verdict=verdict, reason=status)
