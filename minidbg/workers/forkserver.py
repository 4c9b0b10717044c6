"""The forkserver: a clean interpreter whose forks answer what is asked, so that the user's process is never forked.

A program that uses torch has threads (OpenMP, autograd, a backend's own pool, a driver), and what a
fork of it does is chance. The server is started once, imports torch and what its questions need,
and then does nothing but fork: it runs no thread and uses no accelerator, so that each child may. A
child costs milliseconds, and its crash or hang costs the server nothing. It is asked a function by
its name and an argument of plain values.

How a question is put and answered is told in ``serving``; here is who asks, and what a server has
and does before it forks.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from minidbg.core import environment
from minidbg.core.machine import HERE
from minidbg.workers.child import Ended, end_of, kill_group, process_has_ended
from minidbg.workers.fork import call_in_fork, fork
from minidbg.workers.request import Request, Warmup
from minidbg.workers.run_script import freezing_imports
from minidbg.workers.serving import Question, import_path, put, put_to_itself, received, serve
from minidbg.workers.standby import Standby, StandbyPlan

MEMORY = Path("/dev/shm")
"""A folder that is memory, where there is one."""
LEAST_ROOM_BYTES = 1 << 30
RUN_IN_FORK = "minidbg.workers.server:run_in_fork"
LATE_ANSWER_S = 4.0
"""Beyond a question's end: for its last words, and for the supervisor to say how it ended."""
SERVER_START_LIMIT_S = 300.0
"""For the imports; the time limit of a question begins after them."""
SERVERS: dict[int, ForkServer] = {}
"""The server of this process, by the process's number: a forked child has none."""
STARTING = threading.Lock()


def surroundings(call: str, warmup: Warmup) -> dict[str, Any]:
    """With the folder, ``sys.path`` and, as far as a judge is to have it, the environment of this process of now."""
    return {
        "call": call, "imports": list(warmup.imports), "warm": warmup.warm, "ahead": None,
        "cwd": os.getcwd(), "path": import_path(), "environ": environment.for_judge(environment.FORKABLE),
    }  # fmt: skip


def prepare(call: str, warmup: Warmup) -> None:
    """Have the server of this process prepare itself, and do not wait for it. Raises OSError when
    no process can be made."""
    server, ahead = start_server(), None
    if warmup.ahead is not None:
        ahead = {**asdict(warmup.ahead), "where": str(server.folder)}
    server.tell({**surroundings(call, warmup), "ahead": ahead, "argument": None})


def call_in_server(
    request: Request, *, stream: TextIO | None = None, on_interrupt: Callable[[], object] | None = None
) -> Ended:
    """How the request ends in a fork of this process's server, which is waited for in this thread.

    ``stream`` is passed on: the argument's ``stream`` is its descriptor in the child. Interrupts
    are as in ``call_in_fork``. Raises OSError when no process can be made.
    """
    with contextlib.ExitStack() as stack:
        call, argument, seconds, deadline = request.call, request.argument, request.seconds, request.deadline
        if request.argv:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="minidbg-run-"))
            call, argument = RUN_IN_FORK, {"argv": request.argv, "folder": folder}
        question = {
            **surroundings(call, request.fork or Warmup()), "argument": dict(argument), "seconds": seconds,
            "memory_bytes": request.memory_bytes, "interrupts": on_interrupt is not None, "program": bool(request.argv),
        }  # fmt: skip
        began = time.monotonic()
        until = began + deadline.left(SERVER_START_LIMIT_S + seconds)
        last_words = ""
        for _ in range(2):  # a server that somebody has killed is started once more
            server = start_server()
            answer = server.ask(question, stream, until + LATE_ANSWER_S, on_interrupt)
            if answer is not None:
                return Ended(**answer)
            last_words = server.last_words()
            if not deadline.is_over or process_has_ended(server.pid):
                end_server(server)
            if deadline.is_over:
                return Ended(timed_out=True, seconds=time.monotonic() - began, stderr_tail=last_words)
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
        if server is None or process_has_ended(server.pid):
            _end(server)
            server = SERVERS[os.getpid()] = ForkServer()
        return server


def branch_off() -> None:
    """In a child of a server, before it has used anything: a server of its own at once, a fork with all imports made."""
    with STARTING:
        _end(SERVERS.get(os.getpid()))
        SERVERS[os.getpid()] = ForkServer(branch=True)


STANDBYS: list[Standby] = []
"""In the server, and so in a child of it: the interpreter that was started ahead for the next question."""


def take_standby() -> Standby | None:
    """In a child of the server: the interpreter that was started ahead for it, once."""
    return STANDBYS.pop() if STANDBYS else None


def start_standby(ahead: StandbyPlan) -> Standby:
    """One more, started by this process's server. Raises OSError."""
    server, here = start_server(), surroundings("", Warmup())
    return Standby(ahead, server.folder, lambda question: put(server.control, {**here, **question}))


def let_go_of_what_was_ahead() -> None:
    """It is the child's, who ends it; or nobody needs it."""
    while STANDBYS:
        STANDBYS.pop().let_go()


@atexit.register
def end_server(server: ForkServer | None = None) -> None:
    """End this process's server, if it has one, and whatever it is asked; only ``server``, where
    another thread may have replaced it."""
    with STARTING:
        present = SERVERS.get(os.getpid())
        if server is None or server is present:
            _end(present)


def _end(server: ForkServer | None) -> None:
    SERVERS.pop(os.getpid(), None)
    if server is not None:
        server.end()


def interrupt_questions() -> None:
    """End what this process has asked, whose threads then get a KeyboardInterrupt."""
    server = SERVERS.get(os.getpid())
    if server is not None:
        server.interrupt()


class ForkServer:
    """The asker's side."""

    def __init__(self, *, branch: bool = False) -> None:
        """``branch``: of this process, not of a fresh interpreter."""
        self.under_way: dict[socket.socket, bool] = {}
        """By the socket of a question whether another thread has interrupted it."""
        self.control, theirs = socket.socketpair()
        self.stderr = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the server
        roomy = MEMORY.is_dir() and HERE.disk_free(MEMORY) >= LEAST_ROOM_BYTES
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
        question: Question,
        stream: TextIO | None,
        deadline: float,
        on_interrupt: Callable[[], object] | None,
    ) -> dict[str, Any] | None:
        """The parts of the result; None when the server has ended, or does not answer long after
        the question's time limit."""
        with put(self.control, question, stream) as asked:
            self.under_way[asked] = False
            try:
                answer = received(asked, deadline)
            except KeyboardInterrupt:
                if on_interrupt is None:
                    raise
                on_interrupt()
                with contextlib.suppress(OSError):
                    asked.sendall(b"!")
                return received(asked, deadline)
            finally:
                was_interrupted = self.under_way.pop(asked)
            if answer is None and was_interrupted:
                raise KeyboardInterrupt
            return answer

    def interrupt(self) -> None:
        for asked in list(self.under_way):
            self.under_way[asked] = True
            with contextlib.suppress(OSError):
                asked.sendall(b"!")

    def tell(self, question: Question) -> None:
        """Put what has no answer; a server that has ended is found out by the next question."""
        put(self.control, question).close()

    def end(self) -> None:
        self.control.close()
        kill_group(self.pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self.stderr.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def last_words(self) -> str:
        lines: list[str] = []
        with contextlib.suppress(ValueError):  # another thread has ended it
            lines = end_of(self.stderr, 2000).strip().splitlines()[-1:]
        return f": {lines[0]}" if lines else ""


def start_interpreter(control: int, folder: Path, stderr: int) -> int:
    started = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-m", "minidbg.workers.forkserver", str(control), str(folder)],
        stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, pass_fds=(control,), start_new_session=True,
        env=environment.for_judge(environment.FORKABLE, environment.USUAL_THREADS),
    )  # fmt: skip
    started.returncode = 0  # reaped by its number, as a fork is: Popen need not wait for it
    return started.pid


def fork_server(control: int, folder: Path, stderr: int) -> int:
    pid = fork()
    if pid:
        return pid
    try:
        os.setsid()
        for stream in (1, 2):
            os.dup2(stderr, stream)
        leave_to_others(keep=control)
        serve(socket.socket(fileno=control), have_the_askers_surroundings)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


def leave_to_others(keep: int) -> None:
    """Close this process's pipes and sockets but ``keep``: somebody waits for their end. Drivers
    have files of their own."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if int(name) not in (0, 1, 2, keep) and os.readlink(f"/proc/self/fd/{name}").startswith(
                ("pipe:", "socket:")
            ):
                os.close(int(name))


# ---- the server's own side -------------------------------------------------------------------------


WARMED: set[str] = set()
"""In the server: what it has imported or compiled."""


def have_the_askers_surroundings(question: Question) -> None:
    """All that a branch does: it has made its imports, and asks no driver anything."""
    os.environ.clear()
    os.environ.update(question["environ"])
    sys.path[:] = question["path"]
    with contextlib.suppress(OSError):
        os.chdir(question["cwd"])


def get_ready(question: Question) -> None:
    """Have the asker's surroundings. Import and compile here, once, what the question's child would have to."""
    have_the_askers_surroundings(question)
    if question["ahead"] is not None and not STANDBYS:
        with contextlib.suppress(OSError):  # who needs it starts one
            ahead = question["ahead"]
            wanted = StandbyPlan(tuple(ahead["modules"]), ahead["env"])
            STANDBYS.append(Standby(wanted, Path(ahead["where"]), put_to_itself))
    with freezing_imports():
        import torch  # noqa: F401 - for the children
    from minidbg import torch_internals  # late: the asker's side of this file needs no torch

    torch_internals.remember_usual_threads()
    signal.alarm(int(SERVER_START_LIMIT_S))  # an import that hangs ends the server, and the asker is told
    importlib.import_module(question["call"].partition(":")[0])
    for name in question["imports"]:
        if name not in WARMED and name not in sys.modules:
            WARMED.add(name)
            if starts_nothing(name):
                with contextlib.suppress(Exception):  # whatever a foreign module raises, the child will meet
                    importlib.import_module(name)
    if question["warm"] and not {question["warm"], "inductor"} & WARMED:
        WARMED.add(question["warm"])
        if question["warm"] == "imports":
            torch_internals.import_for_compiling(inductor=False)
        else:
            torch_internals.warm_up_compiling(inductor=question["warm"] == "inductor")
    signal.alarm(0)


def starts_nothing(module: str) -> bool:
    """Whether the import of ``module``, tried in a child, starts no thread and leaves accelerators
    to forks of the child."""

    from minidbg.torch_internals import devices

    def imported() -> bool:
        before = threads()
        importlib.import_module(module)
        if threads() != before or devices.in_use() is not None:
            return False
        kinds = devices.present()
        return (
            not kinds
            or call_in_fork(lambda: seconds_used(kinds[0]), seconds=SERVER_START_LIMIT_S / 8).answered
        )

    return call_in_fork(imported, seconds=SERVER_START_LIMIT_S / 4).value is True


def seconds_used(kind: str) -> float:
    """A number that has been on the accelerator. Raises where this process cannot use it."""
    import torch

    return float(torch.ones(1, device=kind).sum())


def threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


if __name__ == "__main__":
    from minidbg.workers import forkserver

    try:
        with socket.socket(fileno=int(sys.argv[1])) as given:
            serve(given, forkserver.get_ready, forked=forkserver.let_go_of_what_was_ahead)
    finally:
        shutil.rmtree(sys.argv[2], ignore_errors=True)
