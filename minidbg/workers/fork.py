"""A question asked in a fork of this process, which the question may kill, hang or fill without harm to us.

The child has all that this process has, closures and live tensors included, without copying or writing anything.
It is the leader of its own session and process group and ends as such, however it ends; it dies with its parent, flushes
nothing of the parent's, runs no atexit hook and leaves no core file.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import json
import logging
import mmap
import os
import resource
import selectors
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TextIO, cast

import psutil

from minidbg import _torch
from minidbg.workers.result import JSON, ChildResult

POLL_S = 0.05
LAST_WORDS_S = 2.0
TAIL_BYTES = 64 * 1024
NOTE_BYTES = 256
PR_SET_PDEATHSIG = 1
PARENTS_STREAMS: list[TextIO | None] = []
LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


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
    fn: Callable[[], JSON],
    *,
    seconds: float,
    memory_bytes: int | None = None,
    note: Notes | None = None,
    on_interrupt: Callable[[], object] | None = None,
    asker: socket.socket | None = None,
) -> ChildResult:
    """Run ``fn`` in a forked child with a time limit and a memory limit.

    ``asker``: whatever arrives there, its end included, is a KeyboardInterrupt.

    A KeyboardInterrupt here ends the child; with ``on_interrupt`` the first one is passed on to the child (which must let
    SIGINT in) after a call of it, and only the second one ends it.

    ``memory_bytes`` is what the child and all that it starts may hold beyond what this process holds now.
    ``note`` may be written to by ``fn``; its last text is in the result. Raises OSError when no process can be made.
    """
    began = time.monotonic()
    limit_bytes = None if memory_bytes is None else memory_bytes + own_bytes(psutil.Process())
    with contextlib.ExitStack() as stack:
        answer, stderr = (stack.enter_context(Pipe()) for _ in range(2))
        parent = os.getpid()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # no interrupt before the try
        try:
            pid = fork()
            if pid == 0:
                be_the_child(fn, answer.write_end, stderr.write_end, parent)
            child = Child(pid, answer, stderr, asker)
            try:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                try:
                    child.wait_until(began + seconds, limit_bytes)
                except KeyboardInterrupt:
                    if on_interrupt is None:
                        raise
                    on_interrupt()
                    os.kill(child.pid, signal.SIGINT)
                    child.wait_until(began + seconds, limit_bytes)
            finally:
                child.end()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return ChildResult(
        **child.ending(),
        **child.answer_parts(),
        note=note.last() if note else "",
        stderr_tail=child.stderr.text(),
        seconds=time.monotonic() - began,
    )


def own_bytes(process: psutil.Process) -> int:
    """Resident bytes of ``process`` without the files it has mapped: a child of ours maps hundreds of megabytes of torch anew."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{process.pid}/status") as status:
        lines = (line.split() for line in status)
        return sum(int(line[1]) * 1024 for line in lines if line[0] in ("RssAnon:", "RssShmem:"))
    return int(process.memory_info().rss)


def fork() -> int:
    with warnings.catch_warnings():
        # Python 3.12 warns of threads; under -W error that would replace the user's exception.
        warnings.simplefilter("ignore")
        return os.fork()


class Pipe:
    """A pipe that keeps what it has read, all of it or its end."""

    def __init__(self) -> None:
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

    def drain(self, keep: int | None = None) -> bool:
        """Read what is there; False at the end of the stream."""
        while True:
            try:
                piece = os.read(self.read_end, 1 << 20)
            except BlockingIOError:
                return True
            self.data += piece
            if keep and len(self.data) > 2 * keep:
                del self.data[:-keep]
            if not piece:
                return False

    def text(self) -> str:
        return self.data[-TAIL_BYTES:].decode(errors="replace")


class Child:
    """The parent's side of a forked child."""

    def __init__(self, pid: int, answer: Pipe, stderr: Pipe, asker: socket.socket | None) -> None:
        self.pid, self.answer, self.stderr, self.asker = pid, answer, stderr, asker
        self.timed_out = self.out_of_memory = False
        self.status: int | None = None
        self.family: dict[int, float] = {}
        answer.close_write_end()
        stderr.close_write_end()

    def wait_until(self, deadline: float, limit_bytes: int | None) -> None:
        """Return when the child is dead or over a limit; its pipes are emptied meanwhile."""
        next_look = time.monotonic() + POLL_S
        with selectors.DefaultSelector() as selector, self.exit_event(selector):
            selector.register(self.answer.read_end, selectors.EVENT_READ)
            selector.register(self.stderr.read_end, selectors.EVENT_READ)
            if self.asker is not None:
                selector.register(self.asker, selectors.EVENT_READ)
            while not self.is_dead():
                now = time.monotonic()
                if now >= deadline:
                    self.timed_out = True
                    return self.ask_for_last_words()
                if now >= next_look:
                    if limit_bytes is not None and self.memory_in_use() > limit_bytes:
                        self.out_of_memory = True
                        return None
                    next_look = time.monotonic() + POLL_S
                for key, _ in selector.select(max(0.0, min(deadline, next_look) - now)):
                    self.read(selector, key.fd)
        return None

    def read(self, selector: selectors.BaseSelector, descriptor: int) -> None:
        if self.asker is not None and descriptor == self.asker.fileno():
            self.asker.recv(1)
            raise KeyboardInterrupt
        for pipe, keep in ((self.answer, None), (self.stderr, TAIL_BYTES)):
            if descriptor == pipe.read_end and not pipe.drain(keep):
                selector.unregister(descriptor)

    @contextlib.contextmanager
    def exit_event(self, selector: selectors.BaseSelector) -> Iterator[None]:
        """Wake the selector when the child ends, where the kernel can tell; else the poll finds out."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except (OSError, AttributeError):
            yield
            return
        try:
            selector.register(descriptor, selectors.EVENT_READ)
            yield
        finally:
            os.close(descriptor)

    def is_dead(self) -> bool:
        """Whether the child has ended; it is not reaped, so that its process group's number stays taken."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except (
            ChildProcessError
        ):  # reaped by someone else: the program ignores SIGCHLD, or waits for any child
            return True

    def ask_for_last_words(self) -> None:
        """Let faulthandler write the stack; it does so also while C code holds the GIL."""
        self.memory_in_use()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGABRT)
        until = time.monotonic() + LAST_WORDS_S
        while not self.is_dead() and time.monotonic() < until:
            self.stderr.drain(TAIL_BYTES)
            time.sleep(0.005)

    def memory_in_use(self) -> int:
        """Resident bytes of the child and all that it started; remembers who they are."""
        total = 0
        with contextlib.suppress(psutil.NoSuchProcess):
            child = psutil.Process(self.pid)
            for process in [child, *child.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    self.family[process.pid] = process.create_time()
                    total += own_bytes(process)
        return total

    def end(self) -> None:
        """Kill the group and whoever left it, empty the pipes, reap the child."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        for pid, created in self.family.items():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                process = psutil.Process(pid)
                if pid != self.pid and process.create_time() == created:
                    process.kill()
        with contextlib.suppress(ChildProcessError):
            _, self.status = os.waitpid(self.pid, 0)
        self.answer.drain()
        self.stderr.drain(TAIL_BYTES)

    def ending(self) -> dict[str, Any]:
        code = None if self.status is None else os.waitstatus_to_exitcode(self.status)
        return {
            "signal": -code if code is not None and code < 0 else None,
            "exit_status": code if code is not None and code >= 0 else None,
            "timed_out": self.timed_out,
            "out_of_memory": self.out_of_memory,
        }

    def answer_parts(self) -> dict[str, Any]:
        """The answer, if it came whole: a letter for its form, its length, and its bytes."""
        form, size, data = self.answer.data[:1], self.answer.data[1:9], bytes(self.answer.data[9:])
        if len(size) < 8 or len(data) != int.from_bytes(size, "big"):
            return {}
        if form == b"E":
            return {"error": data.decode(errors="replace")}
        return {"value": data if form == b"B" else json.loads(data), "answered": True}


def be_the_child(fn: Callable[[], JSON], answer: int, stderr: int, parent: int) -> NoReturn:
    """The child's whole life: it leaves by ``os._exit``, whatever happens."""
    status = 70
    try:
        leave_the_parents_world(stderr, parent)
        _torch.one_thread_after_fork()
        send(answer, fn())
        status = 0
    except BaseException:  # noqa: BLE001 - nothing may return into the parent's code above us
        with contextlib.suppress(BaseException):
            send_bytes(answer, b"E", traceback.format_exc().encode())
    finally:
        os._exit(status)


def leave_the_parents_world(stderr: int, parent: int) -> None:
    """Own session, own streams, default signals: nothing the child does shows in the parent's terminal or files."""
    os.setsid()
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(70)  # it died before prctl
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(stderr, 1)
    os.dup2(stderr, 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.disable()  # it would keep the signals as they are, if it is on
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGABRT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    gc.freeze()  # the parent's objects are not ours to finalise
    PARENTS_STREAMS.extend((sys.stdin, sys.stdout, sys.stderr))  # finalised, they would write what they hold
    sys.stdin, sys.stdout, sys.stderr = own_stream(0, "r"), own_stream(1, "w"), own_stream(2, "w")
    faulthandler.enable(file=2, all_threads=True)
    for name in (None, *logging.root.manager.loggerDict):
        logging.getLogger(name).handlers.clear()
    logging.root.addHandler(logging.StreamHandler(sys.stderr))


def own_stream(descriptor: int, mode: str) -> TextIO:
    return cast(TextIO, open(descriptor, mode, buffering=1, errors="backslashreplace", closefd=False))


def send(answer: int, value: JSON) -> None:
    if isinstance(value, bytes):
        send_bytes(answer, b"B", value)
    else:
        send_bytes(answer, b"J", json.dumps(value).encode())


def send_bytes(answer: int, form: bytes, data: bytes) -> None:
    rest = memoryview(form + len(data).to_bytes(8, "big") + data)
    while rest:
        rest = rest[os.write(answer, rest) :]
