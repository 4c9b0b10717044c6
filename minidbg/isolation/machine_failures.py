"""Failures of the machine, which are no answers to a question: unfinished libraries, a full disk, a killed compiler."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from minidbg.failure import Outcome, Signature, Verdict
from minidbg.processes.kernel_cache import VARIABLE, remove_unfinished

PAUSES_S = (0.2, 1.0, 4.0)
"""Before a question is asked again that the machine has answered: what another process is writing is then there."""
MACHINE_FAILURES = {
    "a library in the kernel cache was unfinished": (
        r"(ImportError|OSError): (?P<file>\S+): (cannot open shared object file|file too short|invalid ELF header"
        r"|ELF load command|cannot read file data|failed to map segment)"
    ),
    "a file in the kernel cache was gone": r"FileNotFoundError: \[Errno 2\][^\n]*'(?P<file>[^'\n]+)'",
    "no space was left on the device": r"No space left on device|Errno 28\b|\bENOSPC\b|Disk quota exceeded",
    "the compiler was killed": (
        r"Killed signal terminated program|terminated with signal 9|internal compiler error: Killed"
        r"|CalledProcessError: [^\n]*died with <Signals.SIGKILL"
    ),
    "no process could be made": r"BlockingIOError: \[Errno 11\]|\bf?v?fork: [^\n]*Resource temporarily unavailable",
}
"""Failures of what a question is asked with, never of the backend: why, and what their text looks like.

``file`` must lie in the kernel cache; the same of another file is the backend's own.
"""


def unless_the_machine_failed(ask: Callable[[], Outcome], *, expected: Signature | None) -> Outcome:
    """The outcome of ``ask()``, which is called again where the machine failed and not the backend.

    Where the machine goes on failing, the outcome is invalid and says why. A failure that is ``expected`` is the answer,
    whatever it looks like. Raises OSError when no process can be made.
    """
    for pause in (*PAUSES_S, None):
        try:
            outcome = ask()
            why = machine_failure(outcome, expected)
        except OSError:
            if pause is None:
                raise
        else:
            if why is None:
                return outcome
            if pause is None:
                break
            with contextlib.suppress(KeyError, OSError):
                remove_unfinished(Path(os.environ[VARIABLE]))
        time.sleep(pause)
    return replace(outcome, verdict=Verdict.INVALID, signature=None, reason=f"{why}, again and again")


def machine_failure(outcome: Outcome, expected: Signature | None) -> str | None:
    """Which failure of the machine ``outcome`` tells of, when it is not the failure that was ``expected``; else None."""
    unexpected = outcome.verdict in (Verdict.CHANGED, Verdict.INVALID)
    if not unexpected and (expected is not None or outcome.verdict is not Verdict.REPRODUCES):
        return None
    for why, pattern in MACHINE_FAILURES.items():
        found = re.search(pattern, outcome.message)
        file = found.groupdict().get("file") if found is not None else None
        if found is not None and (file is None or is_in_kernel_cache(file)):
            return why
    return None


def is_in_kernel_cache(file: str) -> bool:
    folder = os.environ.get(VARIABLE)
    return folder is not None and Path(file).is_relative_to(folder)
