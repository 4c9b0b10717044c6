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

from minidbg.core import environment
from minidbg.workers.child import Child, Ended, end_of

LONGEST_OUTPUT_BYTES = 64 << 20
FIRST_BYTES = 4096
START_LIMIT_S = 300.0
"""For imports, and whatever else comes before the work that a time limit is for."""


def run_python(
    argv: Sequence[str | os.PathLike[str]],
    *,
    seconds: float,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str | None] | None = None,
    memory_bytes: int | None = None,
    begins_at: str = "",
) -> Ended:
    """Run ``python *argv`` for at most ``seconds``; it ends with all that it started. ``env``
    overrides variables; None unsets one.

    ``memory_bytes`` is what it and all that it starts may hold. ``begins_at``: the seconds begin
    when the program has this text at the start of its stdout; so far it has ``START_LIMIT_S``.

    ``argv`` may begin with this interpreter's own path. Raises OSError when no process can be made.
    """
    arguments = [os.fspath(part) for part in argv]
    arguments = arguments[1:] if arguments[:1] == [sys.executable] else arguments
    began = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with no_core_files():
            process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", *arguments],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=cwd, start_new_session=True,
                env=environment.for_judge(given=env),
            )  # fmt: skip
        child = Child(process.pid)

        def has_begun() -> bool:
            return begins_at.encode() in os.pread(out.fileno(), FIRST_BYTES, 0)

        try:
            if begins_at:
                child.wait_until(time.monotonic() + START_LIMIT_S, memory_bytes, enough=has_begun)
            if not child.is_over:
                child.wait_until(time.monotonic() + seconds, memory_bytes)
        finally:
            child.memory_in_use()  # for who belongs to it
            child.end()
            process.returncode = child.code or 0  # it is reaped, and Popen need not wait for it
        return Ended(
            **child.ending(),
            stdout=end_of(out, LONGEST_OUTPUT_BYTES),
            stderr_tail=end_of(err),
            seconds=time.monotonic() - began,
        )


@contextlib.contextmanager
def no_core_files() -> Iterator[None]:
    """A block in which a process that is started leaves no core file: it may be meant to die."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
