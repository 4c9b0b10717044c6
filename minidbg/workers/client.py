"""The seam between whoever wants something done and the child that does it: a ``Request`` in, a
future of its ``Ended`` out, and how both travel to a server."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from minidbg.core.deadline import NEVER, Deadline
from minidbg.workers.child import Ended, JsonValue

Question = Mapping[str, Any]
"""``call`` (``module:function``), ``argument`` (None: nothing is run, and nothing answered),
``seconds``, ``memory_bytes``, ``interrupts`` (a first byte of the asker interrupts the function, as
Ctrl-C does), ``folder`` (the child may ask this server, and has a folder in that one), ``program``
(see ``call_in_fork``), ``files``, the names of what is sent along (``stdin`` is the child's); and
what the server's own ``prepare`` wants to know."""
LONGEST_POLL_S = 3600.0
NO_FILES: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class StandbyPlan:
    """What an interpreter imports ahead of its script, and all of its variables."""

    modules: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Warmup:
    """What a server has and does before it forks, once for all requests that want the same."""

    imports: tuple[str, ...] = ()
    """Modules that are imported where that starts no thread: those of a backend."""
    warm: str = ""
    """``aot`` or ``inductor``: one small graph is compiled. ``imports``: what a compile imports,
    which is enough for a few questions."""
    ahead: StandbyPlan | None = None
    """An interpreter for the script that the next question writes: it imports beside the server."""


@dataclass(frozen=True, slots=True)
class Request:
    """A program, ``python *argv``, in an empty folder; or a question, ``call``
    (``module:function``) with an ``argument`` of plain values.

    The function gets the argument and another function, which hears texts: the last one is the result's ``note``.
    """

    argv: tuple[str, ...] = ()
    call: str = ""
    argument: Mapping[str, JsonValue] = field(default_factory=dict)
    seconds: float = 120.0
    """They begin after the imports of a question."""
    deadline: Deadline = NEVER
    """It has the imports in it."""
    memory_bytes: int | None = None
    fork: Warmup | None = None
    """In a fork of a server that is prepared so, for a tenth of the time; None: in an interpreter of its own."""
    stream: int | None = None
    """A descriptor for the child of a server: the argument's ``stream`` is its number there."""
    asks: bool = False
    """The child of a server may ask that server, and has the interpreter that was started ahead."""
    interrupts: bool = False
    """The first Ctrl-C is for the child of a server, which must let SIGINT in; only the second one ends it."""
    env: Mapping[str, str | None] = field(default_factory=dict)
    """Variables that a program in an interpreter of its own has otherwise; None for one that it has not."""
    recompiled: tuple[str, ...] = ()
    """Files and folders whose bytecode is not used: it may be of code that had the same size in the same second."""
    nice: int = 0
    one_thread: bool = False
    """Give an interpreter of its own one thread, as a fork of the warm one has: that would hang with more."""


class Submit(Protocol):
    """Raises OSError when no process can be made. A future that is cancelled ends its child."""

    def __call__(self, request: Request) -> Future[Ended]: ...


class Asked(Future[Ended]):
    """A question under way, whose answer comes on a socket. ``ends`` completes how it ended."""

    def __init__(self, answer: socket.socket, ends: Callable[[Ended], Ended] = lambda ended: ended) -> None:
        super().__init__()
        self.answer, self.ends, self.data = answer, ends, bytearray()

    @property
    def is_under_way(self) -> bool:
        return self.answer.fileno() >= 0

    def read(self) -> None:
        """Read what has come; the end of the answer is the end of the question."""
        piece = b""
        with contextlib.suppress(ConnectionError):
            piece = self.answer.recv(1 << 20)
        self.data += piece
        if not piece:
            self.end(Ended(**json.loads(self.data)) if self.data else Ended(lost=True))

    def end(self, ended: Ended) -> None:
        self.answer.close()
        ended = self.ends(ended)
        if self.set_running_or_notify_cancel():
            self.set_result(ended)

    def interrupt(self) -> None:
        """Have it end, or, where it ``interrupts``, interrupt its function; from any thread."""
        with contextlib.suppress(OSError):
            self.answer.sendall(b"!")

    def cancel(self) -> bool:
        self.interrupt()
        return super().cancel()


class AskedHere(Asked):
    """One that who waits for it reads, so that the process that asks gets no thread."""

    until = float("inf")
    """When it is given up, by the monotonic clock."""
    last_words: Callable[[], str] | None = None
    """Of the server: with them it is an OSError that the question is lost."""
    was_interrupted = False

    def result(self, timeout: float | None = None, on_interrupt: Callable[[], object] | None = None) -> Ended:
        """How it ended, which is waited for here. Raises OSError, and KeyboardInterrupt, which ends
        it: the first one is passed on, after a call of ``on_interrupt``, where that is there."""
        try:
            self.wait()
        except KeyboardInterrupt:
            if on_interrupt is None:
                raise
            on_interrupt()
            self.interrupt()
            self.wait()
        finally:
            if self.is_under_way:  # an interrupt, or a time limit of the program's own
                self.cancel()
        ended = super().result(0)
        if ended.lost and self.was_interrupted:
            raise KeyboardInterrupt
        if ended.lost and self.last_words is not None:
            raise OSError(f"a fresh interpreter gave no answer{self.last_words()}")
        return ended

    def cancel(self) -> bool:
        was_under_way = super().cancel()
        if was_under_way:
            self.end(Ended(lost=True))
        return was_under_way

    def wait(self) -> None:
        began = time.monotonic()
        while self.is_under_way:
            seconds = self.until - time.monotonic()
            poll = select.poll()
            poll.register(self.answer, select.POLLIN)
            if seconds <= 0:
                self.end(Ended(timed_out=True, seconds=time.monotonic() - began))
            elif poll.poll(min(seconds, LONGEST_POLL_S) * 1000):
                self.read()


def import_path() -> list[str]:
    """``sys.path`` for another process, without what Python passes over: a program may have put a Path there."""
    return [one for one in sys.path if isinstance(one, str)]


def put(control: socket.socket, question: Question, files: Mapping[str, int] = NO_FILES) -> socket.socket:
    """Put a question to the server, with files for its child. Its answer, the parts of an
    ``Ended``, comes on this socket: the end alone, if who was to answer has ended."""
    text = json.dumps({**question, "files": list(files)}).encode()
    ours, theirs = socket.socketpair()
    with theirs, contextlib.suppress(OSError):
        socket.send_fds(control, [b"?"], [theirs.fileno(), *files.values()])
    with contextlib.suppress(OSError):
        ours.sendall(len(text).to_bytes(8, "big") + text)
    return ours
