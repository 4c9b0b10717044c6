"""The one loop that forks: a server forks a supervisor for each question, and the supervisor runs
it in a child and answers.

A question is a function by its name, with an argument of plain values and limits. The asker sends
one end of a socket pair over the server's control socket and the question over the other; the
answer, the parts of an ``Ended``, comes back on it. So several questions may be under way at once,
from several threads. An asker who writes a byte, closes the socket or dies ends its question.

The server runs no thread. It ends with its control socket; what it runs ends with it, however it ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TextIO

from minidbg.core.errors import Terminated
from minidbg.core.foreign import is_of_a_signal_handler
from minidbg.workers import family
from minidbg.workers.child import PR_SET_CHILD_SUBREAPER, Ended, die_with_parent, prctl
from minidbg.workers.fork import Notes, call_in_fork, fork

Question = Mapping[str, Any]
"""``call`` (``module:function``), ``argument`` (None: nothing is run, and nothing answered),
``seconds``, ``memory_bytes``, ``interrupts`` (a first byte of the asker interrupts the function, as
Ctrl-C does), ``program`` (see ``call_in_fork``); and what the server's own ``prepare`` wants to
know."""
LAST_CHILDREN_S = 5.0
GRACE_S = 2.0
"""For an orphan to end by itself: a server of the child's own removes its folder."""


def function_named(function: str) -> Callable[..., Any]:
    module, _, name = function.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def import_path() -> list[str]:
    """``sys.path`` for another process, without what Python passes over: a program may have put a Path there."""
    return [one for one in sys.path if isinstance(one, str)]


# ---- the asker's side ------------------------------------------------------------------------------


def put(control: socket.socket, question: Question, stream: TextIO | None = None) -> socket.socket:
    """Put a question to the server, with a stream for its child. Its answer comes on this socket:
    the end, if the server has ended."""
    text = json.dumps(question).encode()
    ours, theirs = socket.socketpair()
    with theirs, contextlib.suppress(OSError):
        descriptors = [theirs.fileno(), *([stream.fileno()] if stream is not None else [])]
        socket.send_fds(control, [b"?"], descriptors)
    with contextlib.suppress(OSError):
        ours.sendall(len(text).to_bytes(8, "big") + text)
    return ours


def received(asked: socket.socket, deadline: float | None = None) -> dict[str, Any] | None:
    """The answer that comes on the socket before it is closed; None when there is none by ``deadline``."""
    data = bytearray()
    while True:
        if deadline is not None:
            asked.settimeout(max(1e-6, deadline - time.monotonic()))
        piece = b""
        try:
            with contextlib.suppress(ConnectionError):
                piece = asked.recv(1 << 20)
        except TimeoutError as error:
            if is_of_a_signal_handler(error):  # a limit of the program's own, not ours
                raise
            return None
        if not piece:
            return dict(json.loads(data)) if data else None
        data += piece


def put_to_itself(question: Question) -> socket.socket:
    """The same in a server: it supervises the question as any other, and the answer is for whoever has the socket."""
    ours, theirs = socket.socketpair()
    server = os.getpid()
    with theirs:
        if fork() == 0:
            ours.close()
            supervise(question, theirs, server)
    return ours


# ---- the server's side -----------------------------------------------------------------------------


def serve(
    control: socket.socket,
    prepare: Callable[[Question], object] = lambda question: None,
    forked: Callable[[], object] = lambda: None,
) -> None:
    """Answer questions until the asker has gone. Before each fork the server ``prepare``s itself;
    after it, it lets go of what is the child's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the asker, who tells the supervisors
    signal.signal(signal.SIGTERM, on_sigterm)
    try:
        while True:
            # Not SIG_IGN, which the C++ compilers that children start would inherit: the supervisors are reaped here.
            readable, _, _ = select.select([control], [], [], 1.0)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if not readable:
                continue
            _, descriptors, _, _ = socket.recv_fds(control, 1, 2)
            if not descriptors:
                return
            with socket.socket(fileno=descriptors[0]) as asker:
                question = heard(asker)
                if question is not None:
                    prepare(question)
                    if question["argument"] is not None:
                        server = os.getpid()
                        if fork() == 0:
                            control.close()
                            supervise(question, asker, server, *descriptors[1:])
                        forked()
            for descriptor in descriptors[1:]:
                os.close(descriptor)
    except Terminated:
        pass
    finally:
        end_supervisors()


def on_sigterm(number: int, frame: object) -> NoReturn:
    """Once: the end is not to be interrupted."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated(number)


def heard(asker: socket.socket) -> Question | None:
    """The question on the socket; None where the asker has gone."""
    with contextlib.suppress(ConnectionError):
        size = int.from_bytes(asker.recv(8, socket.MSG_WAITALL), "big")
        text = asker.recv(size, socket.MSG_WAITALL)
        return dict(json.loads(text)) if text else None
    return None


def end_supervisors() -> None:
    """End what is still asked, and wait for it, so that nothing of it is left when the server has ended."""
    for pid in family.children_of(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + LAST_CHILDREN_S
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < until:
            if not os.waitpid(-1, os.WNOHANG)[0]:
                time.sleep(0.01)


def supervise(question: Question, asker: socket.socket, server: int, stream: int | None = None) -> NoReturn:
    """Run the question in a child, answer, and end. An asker who goes away ends it, and so does the end of the server."""
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, on_sigterm)
        die_with_parent(signal.SIGTERM, server)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        function = function_named(question["call"])
        note = Notes()
        result = call_in_fork(
            lambda: function({**question["argument"], "stream": stream}, note),
            seconds=question["seconds"],
            memory_bytes=question["memory_bytes"],
            note=note,
            on_interrupt=(lambda: None) if question.get("interrupts") else None,
            asker=asker,
            program=question.get("program", False),
        )
        end_orphans()
        asker.sendall(json.dumps(dataclasses.asdict(result)).encode())
    except BaseException as error:  # noqa: BLE001 - nothing may return into the server's loop
        with contextlib.suppress(BaseException):
            end_orphans()
        if not isinstance(error, KeyboardInterrupt | Terminated | BrokenPipeError):
            with contextlib.suppress(BaseException):
                answer = dataclasses.asdict(Ended(error=f"{type(error).__name__}: {error}"))
                asker.sendall(json.dumps(answer).encode())
    finally:
        os._exit(0)


def end_orphans() -> None:
    """End what the question's child has left: where the kernel knows subreapers, orphans are given
    to this process, its supervisor."""
    began = time.monotonic()
    with contextlib.suppress(ChildProcessError):  # none left
        while (now := time.monotonic()) < began + LAST_CHILDREN_S:
            for pid in family.descendants(os.getpid())[1:]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM if now < began + GRACE_S else signal.SIGKILL)
            if not os.waitpid(-1, os.WNOHANG)[0]:
                time.sleep(0.002)
