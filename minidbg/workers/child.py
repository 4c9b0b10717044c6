"""A supervised child process: its own group, deadline, memory limit, last words, and how it ended.
And a fresh Python interpreter as one; ``fork`` and ``server`` make others."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeAlias

from minidbg.core import environment
from minidbg.core.text import last_line, signal_name
from minidbg.workers import family

JsonValue: TypeAlias = Any
"""What ``json`` can write."""
POLL_S = 0.05
LAST_WORDS_S = 2.0
"""After the deadline: how long a child has to write its stack before it is killed."""
TAIL_BYTES = 64_000
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
ORPHANED = 70
"""Exit status of a child whose parent was gone before it could begin."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended, and what it answered if it did."""

    value: JsonValue = None
    """The answer; None also when there is none: see ``answered``."""
    answered: bool = False
    error: str = ""
    """The traceback, when the question itself raised."""
    signal: int | None = None
    exit_status: int | None = None
    """Neither is known when someone else has reaped the child."""
    timed_out: bool = False
    out_of_memory: bool = False
    """Whether the child was ended for passing ``memory_bytes``."""
    note: str = ""
    """The last thing that the child noted."""
    stderr_tail: str = ""
    """The end of what it wrote to stderr (and stdout, if forked), with faulthandler's stack."""
    stdout: str = ""
    """What a program wrote to stdout."""
    seconds: float = 0.0
    files: Sequence[str] | None = None
    """What a run under watch loaded beyond the server's files; None if it died before saying."""
    lost: bool = False
    """The server died under it, so it says nothing about what was run."""
    prepared: Sequence[float] = (0.0, 0.0)
    """Seconds of imports and of the warm-up that the server has had by then."""

    @property
    def why_no_answer(self) -> str:
        """How a process ended that was to reduce something, for people: ``the disk is full``."""
        last = last_line(self.error or self.stderr_tail)
        if any(os.strerror(number) in last for number in (errno.ENOSPC, errno.EDQUOT)):
            return "the disk is full"
        if self.timed_out:
            return f"the reducing process was ended after {self.seconds:.0f} s"
        if self.signal is not None:
            how = f"was ended by {signal_name(self.signal)}"
        else:
            status = self.exit_status
            how = f"ended with status {status}" if status is not None else "is gone"
        return f"the reducing process {how}: {last or 'it wrote nothing'}"


class Pipe:
    """A pipe that keeps what it has read: all of it, or its last ``keep`` bytes."""

    def __init__(self, keep: int | None = None) -> None:
        self.keep = keep
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self.data = bytearray()

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_write_end()
        os.close(self.read_end)

    def close_write_end(self) -> None:
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def drain(self) -> bool:
        while True:
            try:
                piece = os.read(self.read_end, 1 << 20)
            except BlockingIOError:
                return True
            self.data += piece
            if self.keep and len(self.data) > 2 * self.keep:
                del self.data[: -self.keep]
            if not piece:
                return False

    def text(self) -> str:
        return self.data[-TAIL_BYTES:].decode(errors="replace")


class Child:
    """The parent's side of a child that leads its own process group; it writes to ``pipes``."""

    def __init__(self, pid: int, pipes: Collection[Pipe] = (), asker: socket.socket | None = None) -> None:
        """Whatever arrives at ``asker``, its end included, is a KeyboardInterrupt."""
        self.pid, self.pipes, self.asker = pid, pipes, asker
        self.timed_out = self.out_of_memory = False
        self.code: int | None = None
        """As ``subprocess`` has it; None when someone else has reaped the child."""
        self.family: dict[int, int | None] = {}
        """Who belongs to it, by number, and when each began: a number may be given anew."""
        for pipe in pipes:
            pipe.close_write_end()

    def wait_until(self, deadline: float, limit_bytes: int | None = None) -> None:
        """Empty the child's pipes until it is dead or over a limit."""
        next_look, was_over, wakes = time.monotonic() + POLL_S, False, False
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
            for pipe in self.pipes:
                selector.register(pipe.read_end, selectors.EVENT_READ, pipe)
            if self.asker is not None:
                selector.register(self.asker, selectors.EVENT_READ)
            with contextlib.suppress(OSError, AttributeError):  # else polls see that it has ended
                descriptor = os.pidfd_open(self.pid)
                stack.callback(os.close, descriptor)
                wakes = bool(selector.register(descriptor, selectors.EVENT_READ))
            while not process_has_ended(self.pid):
                now = time.monotonic()
                if now >= deadline:
                    if self.timed_out:
                        return
                    self.timed_out, deadline = True, now + LAST_WORDS_S
                    limit_bytes = None
                    self.memory_in_use()  # for who belongs to it
                    with contextlib.suppress(ProcessLookupError):
                        # faulthandler writes the stack, also while C code holds the GIL
                        os.kill(self.pid, signal.SIGABRT)
                elif limit_bytes is not None and now >= next_look:
                    is_over = self.memory_in_use() > limit_bytes
                    # until its exec, what a large process starts looks as large as it
                    self.out_of_memory = is_over and was_over
                    if self.out_of_memory:
                        return
                    was_over = is_over
                    next_look = time.monotonic() + POLL_S
                until = deadline if wakes and limit_bytes is None else min(deadline, now + POLL_S)
                for key, _ in selector.select(max(0.0, until - now)):
                    if key.fileobj is self.asker and self.asker is not None:
                        self.asker.recv(1)
                        raise KeyboardInterrupt
                    if key.data is not None and not key.data.drain():
                        selector.unregister(key.fd)

    def memory_in_use(self) -> int:
        """Resident bytes of the child and all that it started; remembers who they are."""
        members = family.descendants(self.pid)
        self.family |= {pid: family.started_at(pid) for pid in members}
        return sum(map(family.own_bytes, members))

    def end(self) -> None:
        """Kill the group and whoever left it, empty the pipes, reap the child."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGKILL)
        kill_group(self.pid)
        for pid, started in self.family.items():
            if pid != self.pid:
                family.kill(pid, started)
        with contextlib.suppress(ChildProcessError):
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        for pipe in self.pipes:
            pipe.drain()

    def ending(self) -> dict[str, Any]:
        return {
            "signal": -self.code if self.code is not None and self.code < 0 else None,
            "exit_status": self.code if self.code is not None and self.code >= 0 else None,
            "timed_out": self.timed_out,
            "out_of_memory": self.out_of_memory,
        }


def process_has_ended(pid: int) -> bool:
    """Whether a child has ended; it is not reaped, so its process group's number stays taken."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True  # reaped by someone else: the program ignores SIGCHLD, or waits for any child


def kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def end_of(file: BinaryIO, most: int = TAIL_BYTES) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - most))
    return file.read().decode(errors="replace")


def run_python(
    argv: Sequence[str | os.PathLike[str]],
    *,
    seconds: float,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str | None] | None = None,
    memory_bytes: int | None = None,
) -> Ended:
    """Run ``python *argv`` for at most ``seconds``; it ends with all that it started. ``env``
    overrides variables; None unsets one. ``memory_bytes`` is what it and all that it starts may
    hold. ``argv`` may begin with this interpreter's own path. Raises OSError."""
    arguments = [os.fspath(part) for part in argv]
    arguments = arguments[1:] if arguments[:1] == [sys.executable] else arguments
    began = time.monotonic()
    with Pipe(TAIL_BYTES) as out, Pipe(TAIL_BYTES) as err:
        soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))  # it may be meant to die
        try:
            process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", *arguments],
                stdin=subprocess.DEVNULL, stdout=out.write_end, stderr=err.write_end, cwd=cwd,
                start_new_session=True, env=environment.for_judge(env or {}),
            )  # fmt: skip
        finally:
            resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
        child = Child(process.pid, (out, err))
        try:
            child.wait_until(began + seconds, memory_bytes)
        finally:
            child.memory_in_use()  # for who belongs to it
            child.end()
            process.returncode = child.code or 0  # it is reaped, and Popen need not wait for it
        return Ended(
            **child.ending(),
            stdout=out.text(),
            stderr_tail=err.text(),
            seconds=time.monotonic() - began,
        )


# ---- in the child --------------------------------------------------------------------------------


def die_with_parent(number: int, parent: int) -> None:
    """Have the kernel send signal ``number`` when process ``parent`` ends; only Linux can,
    elsewhere nothing happens later."""
    prctl(PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent:
        os._exit(ORPHANED)  # it had ended before


LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def prctl(option: int, value: int) -> None:
    if LIBC is not None:
        LIBC.prctl(option, value, 0, 0, 0)
