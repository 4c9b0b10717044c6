"""The one loop that forks: a server forks a supervisor for each question, and the supervisor runs
it in a child and answers.

A question is a function by its name, with an argument of plain values and limits (``client.put``).
Who may ask has a control socket: the process that started the server, and each child whose question
wants that. So several questions may be under way at once, from several processes and threads. An
asker who writes a byte, closes the socket or dies ends its question.

The server runs no thread. It ends with the control socket of who started it; what it runs ends with
it, however it ends. A supervisor that is killed loses its own question alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import select
import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from minidbg.core.errors import Terminated
from minidbg.workers import family
from minidbg.workers.child import PR_SET_CHILD_SUBREAPER, Ended, die_with_parent, prctl
from minidbg.workers.client import Question
from minidbg.workers.fork import Notes, call_in_fork, fork

MOST_FILES = 8
LAST_CHILDREN_S = 5.0
GRACE_S = 2.0
"""For an orphan to end by itself: a server of the child's own removes its folder."""


def function_named(function: str) -> Callable[..., Any]:
    module, _, name = function.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


def serve(control: socket.socket, prepare: Callable[[Question], object] = lambda question: None) -> None:
    """Answer questions until the asker has gone. Before each fork the server ``prepare``s itself."""
    askers = [control]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the asker, who tells the supervisors
    signal.signal(signal.SIGTERM, on_sigterm)
    try:
        while True:
            # Not SIG_IGN, which the C++ compilers that children start would inherit: the supervisors are reaped here.
            readable, _, _ = select.select(askers, [], [], 1.0)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            for asker in readable:
                files: list[int] = []
                with contextlib.suppress(ConnectionError):
                    files = socket.recv_fds(asker, 1, MOST_FILES)[1]
                if files:
                    take(files, askers, prepare)
                elif asker is control:
                    return
                else:  # a child that asked has ended
                    askers.remove(asker)
                    asker.close()
    except Terminated:
        pass
    finally:
        end_supervisors()


def take(files: list[int], askers: list[socket.socket], prepare: Callable[[Question], object]) -> None:
    """Hear one question on the first of the ``files``, have ready what it wants, and fork its supervisor."""
    with socket.socket(fileno=files.pop(0)) as answer:
        try:
            question = heard(answer)
            if question is None:
                return
            prepare(question)
            if question["argument"] is None:
                return
            names = question["files"]
            if question.get("folder"):
                ours, theirs = socket.socketpair()
                askers.append(ours)
                files.append(theirs.detach())
                names = [*names, "control"]
            server = os.getpid()
            if fork() == 0:
                for asker in askers:
                    asker.close()
                supervise(question, answer, dict(zip(names, files, strict=True)), server)
        except Exception as error:  # noqa: BLE001 - no process can be made, say: the next question may fare better
            with contextlib.suppress(OSError):
                answer.sendall(ended_by(error))
        finally:
            for descriptor in files:
                os.close(descriptor)


def ended_by(error: BaseException) -> bytes:
    return json.dumps(dataclasses.asdict(Ended(error=f"{type(error).__name__}: {error}"))).encode()


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


def supervise(question: Question, answer: socket.socket, files: dict[str, int], server: int) -> NoReturn:
    """Run the question in a child, answer, and end. An asker who goes away ends it, and so does the end of the server."""
    text = b""
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, on_sigterm)
        die_with_parent(signal.SIGTERM, server)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        function, note = function_named(question["call"]), Notes()

        def call() -> Any:
            if question.get("folder"):
                from minidbg.workers import forkserver  # late: it starts servers, and this is one

                forkserver.inherit(files, Path(question["folder"]))
            return function({**question["argument"], "stream": files.get("stream")}, note)

        ended = call_in_fork(
            call,
            seconds=question["seconds"],
            memory_bytes=question["memory_bytes"],
            note=note,
            on_interrupt=(lambda: None) if question.get("interrupts") else None,
            asker=answer,
            program=question.get("program", False),
            stdin=files.get("stdin"),
        )
        text = json.dumps(dataclasses.asdict(ended)).encode()
    except (KeyboardInterrupt, Terminated):
        pass
    except BaseException as error:  # noqa: BLE001 - nothing may return into the server's loop
        text = ended_by(error)
    try:
        with contextlib.suppress(BaseException):
            end_orphans()
        if question.get("folder"):
            shutil.rmtree(question["folder"], ignore_errors=True)
        answer.sendall(text)
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
