"""A fresh Python interpreter with a time limit, ended as a process group."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Self

from minidbg.words import environment
from minidbg.workers.child import Child, ChildResult, end_of
from minidbg.workers.run_script import RUN_SCRIPT

LONGEST_OUTPUT_BYTES = 64 << 20


def run_python(
    argv: Sequence[str | os.PathLike[str]],
    *,
    seconds: float,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str | None] | None = None,
    python: str = sys.executable,
) -> ChildResult:
    """Run ``python *argv`` for at most ``seconds``. ``env`` overrides variables; None unsets one.

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
            self.process = subprocess.Popen(
                [python, "-X", "faulthandler", *arguments],
                stdin=stdin, stdout=self.out, stderr=self.err, cwd=cwd, start_new_session=True,
                env=environment.for_judge(given=env),
            )  # fmt: skip
            self.stack = stack.pop_all()
        self.child = Child(self.process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self.stack:
            if self.process.stdin is not None:
                with contextlib.suppress(OSError):
                    self.process.stdin.close()
            if self.process.returncode is None:
                self.end()

    def end(self) -> None:
        """Kill what is left of the program, and all that it started."""
        self.child.memory_in_use()  # for who belongs to it
        self.child.end()
        self.process.returncode = self.child.code or 0  # it is reaped, and Popen need not wait for it

    def result_within(self, seconds: float) -> ChildResult:
        """Wait for the end, at most ``seconds`` from now; what is left of the program then is killed."""
        try:
            self.child.wait_until(time.monotonic() + seconds)
        finally:
            self.end()
        return ChildResult(
            **self.child.ending(),
            stdout=end_of(self.out, LONGEST_OUTPUT_BYTES),
            stderr_tail=end_of(self.err),
            seconds=time.monotonic() - self.began,
        )


class Standby(Program):
    """A fresh interpreter that imports ``modules`` in the background, for one script that is named later.

    The imports take longer than most scripts; a caller who will have a script in a few seconds saves them.
    Nothing but them has happened in it when the script starts.
    """

    def __init__(self, modules: Sequence[str], *, env: Mapping[str, str | None] | None = None) -> None:
        super().__init__([RUN_SCRIPT, "--standby", *modules], stdin=subprocess.PIPE, env=env)

    def run(self, argv: Sequence[str], *, seconds: float, cwd: str | os.PathLike[str]) -> ChildResult:
        """Run ``python *argv`` in it, once; as ``run_python`` otherwise."""
        self.began = time.monotonic()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died while importing: its status says so
            self.process.stdin.write(json.dumps({"argv": list(argv), "cwd": os.fspath(cwd)}).encode() + b"\n")
            self.process.stdin.close()
        return self.result_within(seconds)
