"""A fresh Python interpreter with a time limit, ended as a process group."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from minidbg.workers.result import ChildResult

LAST_WORDS_S = 2.0
TAIL_BYTES = 64 * 1024
LONGEST_OUTPUT_BYTES = 64 << 20


def run_python(
    argv: Sequence[str | os.PathLike[str]],
    *,
    seconds: float,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str | None] | None = None,
) -> ChildResult:
    """Run ``python *argv`` to its end or to the limit; ``env`` is added to this process's environment; None takes a variable out.

    ``argv`` may begin with this interpreter's own path. Raises OSError when no process can be made.
    """
    began = time.monotonic()
    arguments = [os.fspath(part) for part in argv]
    arguments = arguments[1:] if arguments[:1] == [sys.executable] else arguments
    command = [sys.executable, "-X", "faulthandler", *arguments]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=cwd,
            env={name: value for name, value in {**os.environ, **(env or {})}.items() if value is not None},
            start_new_session=True,
        )
        timed_out = False
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            end_group(child, ask_first=timed_out)
        code = child.returncode
        return ChildResult(
            exit_status=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            timed_out=timed_out,
            stdout=end_of(out, LONGEST_OUTPUT_BYTES),
            stderr_tail=end_of(err, TAIL_BYTES),
            seconds=time.monotonic() - began,
        )


def end_group(child: subprocess.Popen[bytes], *, ask_first: bool) -> None:
    """Kill the child's group and its descendants elsewhere; asked first, faulthandler writes the child's stack."""
    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        family = psutil.Process(child.pid).children(recursive=True)
    if ask_first:
        child.send_signal(signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(LAST_WORDS_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    for process in family:
        with contextlib.suppress(psutil.Error):
            process.kill()  # psutil knows the process by its start time, not by its number alone
    child.wait()


def end_of(file: Any, most: int) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - most))
    return str(file.read().decode(errors="replace"))
