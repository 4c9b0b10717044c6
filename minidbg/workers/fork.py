"""A function called in a fork of this process, a server's, which it may kill, hang or fill without
harm to us. The child is the leader of its own session and process group and ends as such, however it
ends; it dies with its parent, runs no atexit hook and leaves no core file.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import mmap
import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from minidbg.workers.child import TAIL_BYTES, Child, Ended, JsonValue, Pipe, die_with_parent
from minidbg.workers.family import own_bytes

NOTE_BYTES = 256
MOST_DESCRIPTORS = 4096


class Notes:
    """A line of text in memory that parent and child share: it outlives any death of the child."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, NOTE_BYTES)

    def __call__(self, text: str) -> None:
        data = text.encode()[: NOTE_BYTES - 1]
        self.memory[: len(data) + 1] = data + b"\0"

    def last(self) -> str:
        return self.memory[:].partition(b"\0")[0].decode(errors="replace")


def call_in_fork(
    fn: Callable[[], JsonValue],
    *,
    seconds: float,
    memory_bytes: int | None = None,
    note: Notes | None = None,
    interrupts: bool = False,
    asker: socket.socket | None = None,
    program: bool = False,
    execs: bool = False,
    stdin: int | None = None,
) -> Ended:
    """Run ``fn`` in a forked child with a time limit and a memory limit.

    ``asker``: whatever arrives there, its end included, is a KeyboardInterrupt, which ends the
    child; where it ``interrupts``, the first one is passed on to it (it must let SIGINT in).
    ``program``: ``fn`` becomes a program, whose stdout is told apart, and which inherits no file of
    ours but ``stdin``; it says how many threads torch has. ``memory_bytes`` is what the child and
    all that it starts may hold, unless it ``execs`` beyond what this process holds now. ``note``
    may be written to by ``fn``; its last text is in the result. Raises OSError when no process can
    be made.
    """
    began = time.monotonic()
    shared = 0 if execs else own_bytes(os.getpid())
    limit_bytes = None if memory_bytes is None else memory_bytes + shared
    with contextlib.ExitStack() as pipes:
        answer, stderr = (pipes.enter_context(Pipe(keep)) for keep in (None, TAIL_BYTES))
        stdout = pipes.enter_context(Pipe(TAIL_BYTES)) if program else stderr
        parent = os.getpid()
        # no interrupt before the try
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                streams = (stdin, stdout.write_end, stderr.write_end)
                be_the_child(fn, answer.write_end, streams, parent)
            child = Child(pid, {answer, stdout, stderr}, asker)
            try:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                try:
                    child.wait_until(began + seconds, limit_bytes)
                except KeyboardInterrupt:
                    if not interrupts:
                        raise
                    os.kill(child.pid, signal.SIGINT)
                    child.wait_until(began + seconds, limit_bytes)
            finally:
                child.end()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return Ended(
        **child.ending(),
        **(json.loads(answer.data) if answer.data.endswith(b"\n") else {}),  # if it came whole
        note=note.last() if note else "",
        stderr_tail=stderr.text(),
        stdout=stdout.text() if program else "",
        seconds=time.monotonic() - began,
    )


# ---- in the child --------------------------------------------------------------------------------


def be_the_child(
    fn: Callable[[], JsonValue], answer: int, streams: tuple[int | None, int, int], parent: int
) -> NoReturn:
    """The child's whole life: it leaves by ``os._exit``, whatever happens. It is a program where
    its stdout is not its stderr. Nothing of it shows in the parent's terminal or files."""
    status = 70
    try:
        os.setsid()
        faulthandler.disable()  # it would keep the signals as they are, if it is on
        for number in (
            signal.SIGABRT, signal.SIGALRM, signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGTERM
        ):  # fmt: skip
            signal.signal(number, signal.SIG_DFL)
        die_with_parent(signal.SIGKILL, parent)
        for target, descriptor in enumerate(streams):
            os.dup2(os.open(os.devnull, os.O_RDONLY) if descriptor is None else descriptor, target)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        gc.freeze()  # the parent's objects are not ours to finalise
        faulthandler.enable(file=2, all_threads=True)
        if streams[1] == streams[2]:
            if "torch" in sys.modules:
                from minidbg import torch_internals

                torch_internals.one_thread_after_fork()
        else:
            os.closerange(3, answer)
            os.closerange(answer + 1, MOST_DESCRIPTORS)
        send(answer, {"value": fn(), "answered": True})
        status = 0
    except BaseException:  # noqa: BLE001 - nothing may return into the parent's code above us
        with contextlib.suppress(BaseException):
            send(answer, {"error": traceback.format_exc()})
    finally:
        os._exit(status)


def send(answer: int, parts: dict[str, JsonValue]) -> None:
    rest = memoryview(json.dumps(parts).encode() + b"\n")
    while rest:
        rest = rest[os.write(answer, rest) :]
