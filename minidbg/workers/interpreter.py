"""A fresh Python interpreter with a time limit, ended as a process group."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, Self

from minidbg.words import environment
from minidbg.workers.child import Child, ChildResult, end_of

LONGEST_OUTPUT_BYTES = 64 << 20
FIRST_BYTES = 4096
START_LIMIT_S = 300.0
"""For imports, and whatever else comes before the work that a time limit is for."""


class RunPython(Protocol):
    """What runs ``python *argv`` to its end: ``run_python``."""

    def __call__(
        self, argv: Sequence[str], *, seconds: float, cwd: str, env: Mapping[str, str | None]
    ) -> ChildResult: ...


def run_python(
    argv: Sequence[str | os.PathLike[str]],
    *,
    seconds: float,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str | None] | None = None,
    memory_bytes: int | None = None,
    begins_at: str = "",
) -> ChildResult:
    """Run ``python *argv`` for at most ``seconds``. ``env`` overrides variables; None unsets one.

    ``memory_bytes`` is what it and all that it starts may hold. ``begins_at``: the seconds begin when the program has this text at the
    start of its stdout; so far it has ``START_LIMIT_S``.

    ``argv`` may begin with this interpreter's own path. Raises OSError when no process can be made.
    """
    arguments = [os.fspath(part) for part in argv]
    arguments = arguments[1:] if arguments[:1] == [sys.executable] else arguments
    with Program(arguments, cwd=cwd, env=env, stdin=subprocess.DEVNULL) as program:
        if begins_at:
            program.wait_for(begins_at, memory_bytes)
        return program.result_within(seconds, memory_bytes)


class Program:
    """A started ``python *arguments`` in a session of its own; ended, with all that it started, when the block ends."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        stdin: int,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str | None] | None = None,
    ) -> None:
        self.began = time.monotonic()
        with contextlib.ExitStack() as stack:
            self.out, self.err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            with no_core_files():
                self.process = subprocess.Popen(
                    [sys.executable, "-X", "faulthandler", *arguments],
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
        self.child.memory_in_use()  # for who belongs to it
        self.child.end()
        self.process.returncode = self.child.code or 0  # it is reaped, and Popen need not wait for it

    def wait_for(self, text: str, memory_bytes: int | None) -> None:
        """Wait until ``text`` is on the program's stdout, or it has ended or is over a limit."""
        self.child.wait_until(
            time.monotonic() + START_LIMIT_S,
            memory_bytes,
            enough=lambda: text.encode() in os.pread(self.out.fileno(), FIRST_BYTES, 0),
        )

    def result_within(self, seconds: float, memory_bytes: int | None = None) -> ChildResult:
        try:
            if not self.child.is_over:
                self.child.wait_until(time.monotonic() + seconds, memory_bytes)
        finally:
            self.end()
        return ChildResult(
            **self.child.ending(),
            stdout=end_of(self.out, LONGEST_OUTPUT_BYTES),
            stderr_tail=end_of(self.err),
            seconds=time.monotonic() - self.began,
        )


@contextlib.contextmanager
def no_core_files() -> Iterator[None]:
    """A block in which a process that is started will leave no core file: it may be meant to die."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
