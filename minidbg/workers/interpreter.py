"""``submit``; and a fresh Python interpreter with a time limit, ended as a process group."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace

from minidbg.core import environment
from minidbg.core.text import last_json, last_phase
from minidbg.workers.child import Child, Ended, end_of
from minidbg.workers.client import Request, import_path, submit_to_server
from minidbg.workers.entry import ENTRY

LONGEST_OUTPUT_BYTES = 64 << 20
FIRST_BYTES = 4096
START_LIMIT_S = 300.0
"""For imports, and whatever else comes before the work that a time limit is for."""


def submit(request: Request) -> Future[Ended]:
    """Have a child of this process do it. What is not for a fork of its server is waited for here:
    the future is done."""
    if request.fork is not None:
        return submit_to_server(request)
    asked: Future[Ended] = Future()
    if request.call:
        asked.set_result(call_in_interpreter(request))
        return asked
    with tempfile.TemporaryDirectory(prefix="minidbg-run-") as folder:
        asked.set_result(run_python(
            request.argv, seconds=request.seconds, memory_bytes=request.memory_bytes,
            cwd=folder, env=request.env,
        ))  # fmt: skip
    return asked


def call_in_interpreter(request: Request) -> Ended:
    """The seconds begin with the function's first note."""
    order = {
        "path": import_path(),
        "parent": os.getpid(),
        "call": request.call,
        "argument": dict(request.argument),
    }
    ended = run_python(
        ["-P", ENTRY], seconds=request.seconds, memory_bytes=request.memory_bytes,
        begins_at="phase ", stdin=json.dumps(order) + "\n",
    )  # fmt: skip
    value = last_json(ended.stdout) if ended.exit_status == 0 else None
    return replace(ended, value=value, answered=value is not None, note=last_phase(ended.stdout))


def run_python(
    argv: Sequence[str | os.PathLike[str]],
    *,
    seconds: float,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str | None] | None = None,
    memory_bytes: int | None = None,
    begins_at: str = "",
    stdin: str = "",
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
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as text:
        text.write(stdin.encode())
        text.seek(0)
        with no_core_files():
            process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", *arguments],
                stdin=text, stdout=out, stderr=err, cwd=cwd, start_new_session=True,
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
