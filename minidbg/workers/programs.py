"""A fresh Python interpreter with a time limit, ended as a process group."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

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
    python: str = sys.executable,
) -> ChildResult:
    """Run ``python *argv`` to its end or to the limit; ``env`` is added to this process's environment; None takes a variable out.

    ``argv`` may begin with this interpreter's own path. Raises OSError when no process can be made.
    """
    arguments = [os.fspath(part) for part in argv]
    arguments = arguments[1:] if arguments[:1] == [sys.executable] else arguments
    with Program(arguments, cwd=cwd, env=env, stdin=subprocess.DEVNULL, python=python) as program:
        return program.result_within(seconds)


class Program:
    """A started ``python *arguments`` in a session of its own; ended, with all that it started, when the block ends."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        stdin: int,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str | None] | None = None,
        python: str = sys.executable,
    ) -> None:
        self.began = time.monotonic()
        with contextlib.ExitStack() as stack:
            self.out, self.err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            given = {
                name: value for name, value in {**os.environ, **(env or {})}.items() if value is not None
            }
            self.child = subprocess.Popen(
                [python, "-X", "faulthandler", *arguments],
                stdin=stdin,
                stdout=self.out,
                stderr=self.err,
                cwd=cwd,
                env=given,
                start_new_session=True,
            )
            self.stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self.stack:
            if self.child.stdin is not None:
                with contextlib.suppress(OSError):
                    self.child.stdin.close()
            if self.child.returncode is None:
                end_group(self.child, ask_first=False)

    def result_within(self, seconds: float) -> ChildResult:
        """Wait for the end, at most ``seconds`` from now; what is left of the program then is killed."""
        timed_out = False
        try:
            self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            end_group(self.child, ask_first=timed_out)
        code = self.child.returncode
        return ChildResult(
            exit_status=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            timed_out=timed_out,
            stdout=end_of(self.out, LONGEST_OUTPUT_BYTES),
            stderr_tail=end_of(self.err, TAIL_BYTES),
            seconds=time.monotonic() - self.began,
        )


class Standby(Program):
    """A fresh interpreter that imports ``modules`` in the background, for one script that is named later.

    The imports take longer than most scripts; a caller who will have a script in a few seconds saves them.
    Nothing but them has happened in it when the script starts.
    """

    def __init__(self, modules: Sequence[str], *, env: Mapping[str, str | None] | None = None) -> None:
        script = os.path.join(os.path.dirname(__file__), "standby.py")
        super().__init__([script, *modules], stdin=subprocess.PIPE, env=env)

    def run(self, argv: Sequence[str], *, seconds: float, cwd: str | os.PathLike[str]) -> ChildResult:
        """Run ``python *argv`` in it, once; as ``run_python`` otherwise."""
        self.began = time.monotonic()
        assert self.child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died while importing: its status says so
            self.child.stdin.write(json.dumps({"argv": list(argv), "cwd": os.fspath(cwd)}).encode() + b"\n")
            self.child.stdin.close()
        return self.result_within(seconds)


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
