"""The forkserver: a clean interpreter whose forks answer what is asked, so that the user's process is never forked.

A program that uses torch has threads (OpenMP, autograd, a backend's own pool, a driver), and what a fork of it does is
chance. The server is started once, imports torch and what its questions need, and then does nothing but fork: it runs no
thread and uses no accelerator, so that each child may. A child costs milliseconds, and its crash or hang costs the server
nothing. It is asked a function by its name and an argument of plain values.

For each question the asker sends one end of a socket pair. The server forks a supervisor, which runs the question by
``call_in_fork`` and answers on that socket: several questions may be asked at once, from several threads.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TextIO

from minidbg.words import environment
from minidbg.words.deadline import NEVER, Deadline
from minidbg.workers.child import JSON, ChildResult, end_of, has_ended, kill_group
from minidbg.workers.fork import Notes, call_in_fork, fork
from minidbg.workers.pool import Preload
from minidbg.workers.run_script import kept_from_the_collector
from minidbg.workers.waiting import ReadyInterpreter

MEMORY = Path("/dev/shm")
"""A folder that is memory, where there is one."""
LEAST_ROOM_BYTES = 1 << 30
START_LIMIT_S = 300.0
"""For the imports; the time limit of a question begins after them."""
SERVERS: dict[int, ForkServer] = {}
"""The server of this process, by the process's number: a forked child has none."""
STARTING = threading.Lock()


@dataclass(frozen=True, slots=True)
class Preparation:
    """What the server has and does before it forks, once for all questions that want the same."""

    function: str
    """``module:name`` of what will be asked: the module is imported."""
    imports: tuple[str, ...] = ()
    """Modules that are imported where that starts no thread: those of a backend."""
    warm: str = ""
    """``aot`` or ``inductor``: one small graph is compiled. ``imports``: what a compile imports, which is enough for a few questions."""
    ahead: tuple[Preload, Mapping[str, str]] | None = None
    """An interpreter, with its variables, for the scripts that the next question writes: it imports beside the server."""

    def as_question(self) -> dict[str, Any]:
        """With the folder, ``sys.path`` and, as far as a judge is to have it, the environment of this process of now."""
        return {
            "call": self.function, "imports": list(self.imports), "warm": self.warm, "ahead": None,
            "cwd": os.getcwd(), "path": sys.path, "environ": environment.for_judge(environment.FORKABLE),
        }  # fmt: skip


def prepare(preparation: Preparation) -> None:
    """Have the server of this process prepare itself, and do not wait for it. Raises OSError when no process can be made."""
    ahead = None
    if preparation.ahead is not None:
        preload, env = preparation.ahead
        ahead = {"modules": list(preload.modules), "warm": preload.warm, "env": dict(env)}
    start_server().tell(json.dumps({**preparation.as_question(), "ahead": ahead, "argument": None}).encode())


def call_in_server(
    preparation: Preparation,
    argument: Mapping[str, JSON],
    *,
    seconds: float,
    deadline: Deadline = NEVER,
    memory_bytes: int | None = None,
    stream: TextIO | None = None,
    on_interrupt: Callable[[], object] | None = None,
) -> ChildResult:
    """``function(argument, note)`` in a fork of the server, which has prepared itself; ``note`` hears texts for the result.

    ``stream`` is passed on: the argument's ``stream`` is its descriptor in the child. ``seconds`` begin after the imports;
    ``deadline`` has them in it. Interrupts are as in ``call_in_fork``. Raises OSError when no process can be made.
    """
    question = {
        **preparation.as_question(), "argument": dict(argument), "seconds": seconds, "memory_bytes": memory_bytes,
        "interrupts": on_interrupt is not None,
    }  # fmt: skip
    began = time.monotonic()
    until = began + deadline.left(START_LIMIT_S + seconds)
    last_words = ""
    for _ in range(2):  # a server that somebody has killed is started once more
        server = start_server()
        answer = server.ask(json.dumps(question).encode(), stream, until, on_interrupt)
        if answer is not None:
            return ChildResult(**answer)
        last_words = server.last_words()
        end_server()
        if deadline.is_over:
            return ChildResult(timed_out=True, seconds=time.monotonic() - began, stderr_tail=last_words)
    raise OSError(f"a fresh interpreter gave no answer{last_words}")


@contextlib.contextmanager
def stream_to_the_user() -> Iterator[TextIO]:
    """A copy of stderr that a child may write its progress to: its own stderr is taken from it."""
    try:
        descriptor = os.dup(2)
    except OSError:  # no stderr (a service): progress goes nowhere
        descriptor = os.open(os.devnull, os.O_WRONLY)
    with open(descriptor, "w", encoding="utf-8", errors="replace") as stream:
        yield stream


def start_server() -> ForkServer:
    """The server of this process; a new one waits for what it is to prepare. Raises OSError."""
    with STARTING:
        server = SERVERS.get(os.getpid())
        if server is None or has_ended(server.pid):
            end_server()
            server = SERVERS[os.getpid()] = ForkServer()
        return server


def branch_off() -> None:
    """In a child of a server, before it has used anything: a server of its own at once, a fork with all imports made."""
    with STARTING:
        end_server()
        SERVERS[os.getpid()] = ForkServer(branch=True)


AHEAD: list[ReadyInterpreter] = []
"""In the server, and so in a child of it: the interpreter that was started ahead for the next question."""


def taken_ahead() -> ReadyInterpreter | None:
    """In a child of the server: the interpreter that was started ahead for it, once."""
    return AHEAD.pop() if AHEAD else None


@atexit.register
def end_server() -> None:
    """End this process's server, if it has one, and whatever it is asked."""
    server = SERVERS.pop(os.getpid(), None)
    if server is not None:
        server.end()


class ForkServer:
    """The asker's side."""

    def __init__(self, *, branch: bool = False) -> None:
        """``branch``: of this process, not of a fresh interpreter."""
        self.control, theirs = socket.socketpair()
        self.stderr = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the server
        roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= LEAST_ROOM_BYTES
        self.folder = Path(tempfile.mkdtemp(prefix="minidbg-", dir=MEMORY if roomy else None))
        """For files that its children map. The server removes it, so that it goes also when the asker is killed."""
        start = fork_server if branch else start_interpreter
        try:
            with theirs:
                self.pid = start(theirs.fileno(), self.folder, self.stderr.fileno())
        except OSError:
            self.control.close()
            self.stderr.close()
            self.folder.rmdir()
            raise

    def ask(
        self,
        question: bytes,
        stream: TextIO | None,
        deadline: float,
        on_interrupt: Callable[[], object] | None,
    ) -> dict[str, Any] | None:
        """The parts of the result; None when the server has ended, or does not answer long after the question's time limit."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, contextlib.suppress(OSError):
                descriptors = [theirs.fileno(), *([stream.fileno()] if stream is not None else [])]
                socket.send_fds(self.control, [b"?"], descriptors)
            with contextlib.suppress(OSError):
                ours.sendall(len(question).to_bytes(8, "big") + question)
            try:
                return received(ours, deadline)
            except KeyboardInterrupt:
                if on_interrupt is None:
                    raise
                on_interrupt()
                with contextlib.suppress(OSError):
                    ours.sendall(b"!")
                return received(ours, deadline)

    def tell(self, question: bytes) -> None:
        """Send what has no answer; a server that has ended is found out by the next question."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs, contextlib.suppress(OSError):
                socket.send_fds(self.control, [b"?"], [theirs.fileno()])
            with contextlib.suppress(OSError):
                ours.sendall(len(question).to_bytes(8, "big") + question)

    def end(self) -> None:
        """End it; what runs in its children ends with it."""
        self.control.close()
        kill_group(self.pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self.stderr.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def last_words(self) -> str:
        """The last line it wrote, as the end of a sentence; nothing when it wrote none."""
        lines = end_of(self.stderr, 2000).strip().splitlines()[-1:]
        return f": {lines[0]}" if lines else ""


def start_interpreter(control: int, folder: Path, stderr: int) -> int:
    """Start a fresh interpreter that is a server; its process."""
    started = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-m", "minidbg.workers.forkserver", str(control), str(folder)],
        stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, pass_fds=(control,), start_new_session=True,
        env=environment.for_judge(environment.FORKABLE),
    )  # fmt: skip
    started.returncode = 0  # reaped by its number, as a fork is: Popen need not wait for it
    return started.pid


def fork_server(control: int, folder: Path, stderr: int) -> int:
    """Fork this process; its child is a server."""
    pid = fork()
    if pid:
        return pid
    try:
        os.setsid()
        for stream in (1, 2):
            os.dup2(stderr, stream)
        leave_to_others(keep=control)
        serve(socket.socket(fileno=control), branch=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


def leave_to_others(keep: int) -> None:
    """Close this process's pipes and sockets but ``keep``: somebody waits for their end. Drivers have files of their own."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if int(name) not in (0, 1, 2, keep) and os.readlink(f"/proc/self/fd/{name}").startswith(
                ("pipe:", "socket:")
            ):
                os.close(int(name))


def received(asked: socket.socket, deadline: float) -> dict[str, Any] | None:
    """The object that comes on the socket before it is closed; None when there is none by ``deadline``."""
    data = bytearray()
    while select.select([asked], [], [], max(0.0, deadline - time.monotonic()))[0]:
        piece = b""
        with contextlib.suppress(ConnectionError):
            piece = asked.recv(1 << 20)
        if not piece:
            return dict(json.loads(data)) if data else None
        data += piece
    return None


# ---- the server's own side -------------------------------------------------------------------------


def serve(control: socket.socket, *, branch: bool = False) -> None:
    """Fork a supervisor for each question, until the asker has gone. A branch has made its imports, and asks no driver anything."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the asker, who tells the supervisors
    warmed: set[str] = set()
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
            size = int.from_bytes(asker.recv(8, socket.MSG_WAITALL), "big")
            text = asker.recv(size, socket.MSG_WAITALL)
            if text:
                question = json.loads(text)
                get_ready(question, None if branch else warmed)
                if question["argument"] is not None:
                    if fork() == 0:
                        control.close()
                        supervise(question, asker, *descriptors[1:])
                    AHEAD.clear()  # it is the child's, who ends it; or nobody needs it
        for descriptor in descriptors[1:]:
            os.close(descriptor)


def get_ready(question: Mapping[str, Any], warmed: set[str] | None) -> None:
    """Have the asker's surroundings. Import and compile here, once, what the question's child would have to, unless ``warmed`` is None."""
    os.environ.clear()
    os.environ.update(question["environ"])
    sys.path[:] = question["path"]
    with contextlib.suppress(OSError):
        os.chdir(question["cwd"])
    if warmed is None:
        return
    if question["ahead"] is not None and not AHEAD:
        ahead = question["ahead"]
        with contextlib.suppress(OSError):  # who needs it starts one
            AHEAD.append(ReadyInterpreter(Preload(tuple(ahead["modules"]), ahead["warm"]), ahead["env"]))
    with kept_from_the_collector():
        import torch  # noqa: F401 - for the children
    from minidbg import torch_internals  # late: the asker's side of this file needs no torch

    signal.alarm(int(START_LIMIT_S))  # an import that hangs ends the server, and the asker is told
    importlib.import_module(question["call"].partition(":")[0])
    for name in question["imports"]:
        if name not in warmed and name not in sys.modules:
            warmed.add(name)
            if starts_nothing(name):
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
    if question["warm"] and not {question["warm"], "inductor"} & warmed:
        warmed.add(question["warm"])
        if question["warm"] == "imports":
            torch_internals.import_for_compiling(inductor=False)
        else:
            torch_internals.warm_up_compiling(inductor=question["warm"] == "inductor")
    signal.alarm(0)


def starts_nothing(module: str) -> bool:
    """Whether the import of ``module``, tried in a child, starts no thread and leaves accelerators to forks of the child."""

    from minidbg.torch_internals import devices

    def imported() -> bool:
        before = threads()
        importlib.import_module(module)
        if threads() != before or devices.in_use() is not None:
            return False
        kinds = devices.present()
        return not kinds or call_in_fork(lambda: used(kinds[0]), seconds=START_LIMIT_S / 8).answered

    return call_in_fork(imported, seconds=START_LIMIT_S / 4).value is True


def used(kind: str) -> float:
    """A number that has been on the accelerator. Raises where this process cannot use it."""
    import torch

    return float(torch.ones(1, device=kind).sum())


def threads() -> int:
    """Threads of this process, those of C libraries included, where the kernel lists them."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


def supervise(question: Mapping[str, Any], asker: socket.socket, stream: int | None = None) -> NoReturn:
    """Run the question in a child, answer, and end. An asker who goes away ends it."""
    try:
        os.setsid()
        module, _, name = question["call"].partition(":")
        function = getattr(importlib.import_module(module), name)
        note = Notes()
        result = call_in_fork(
            lambda: function({**question["argument"], "stream": stream}, note),
            seconds=question["seconds"],
            memory_bytes=question["memory_bytes"],
            note=note,
            on_interrupt=(lambda: None) if question["interrupts"] else None,
            asker=asker,
        )
        asker.sendall(json.dumps(dataclasses.asdict(result)).encode())
    except BaseException as error:  # noqa: BLE001 - nothing may return into the server's loop
        if not isinstance(error, KeyboardInterrupt | BrokenPipeError):
            with contextlib.suppress(BaseException):
                answer = dataclasses.asdict(ChildResult(error=f"{type(error).__name__}: {error}"))
                asker.sendall(json.dumps(answer).encode())
    finally:
        os._exit(0)


if __name__ == "__main__":
    from minidbg.workers import forkserver

    try:
        with socket.socket(fileno=int(sys.argv[1])) as given:
            forkserver.serve(given)
    finally:
        shutil.rmtree(sys.argv[2], ignore_errors=True)
