"""The forkserver: a clean interpreter whose forks answer what is asked, so that the user's process is never forked.

A program that uses torch has threads (OpenMP, autograd, a backend's own pool, a driver), and what a
fork of it does is chance. The server is started once, imports torch and what its questions need,
and then does nothing but fork: it runs no thread and uses no accelerator, so that each child may. A
child costs milliseconds, and its crash or hang costs the server nothing. It is asked a function by
its name and an argument of plain values.

How a question is put is told in ``client``, how it is answered in ``serving``; here is who asks, and what a server has
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
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from minidbg.core import environment
from minidbg.core.machine import HERE
from minidbg.workers import leftovers
from minidbg.workers.child import PR_SET_PDEATHSIG, Ended, die_with_parent, end_of, kill_group, prctl
from minidbg.workers.child import process_has_ended as has_ended
from minidbg.workers.client import AskedHere, Question, Request, StandbyPlan, Warmup, import_path, put
from minidbg.workers.entry import freezing_imports
from minidbg.workers.fork import call_in_fork
from minidbg.workers.serving import serve
from minidbg.workers.standby import Standby

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


def surroundings(call: str, warmup: Warmup | None) -> dict[str, Any]:
    """With the folder, ``sys.path`` and, as far as a judge is to have it, the environment of this process of now."""
    return {
        "call": call, "imports": warmup and list(warmup.imports), "warm": warmup and warmup.warm,
        "cwd": os.getcwd(), "path": import_path(), "environ": environment.for_judge(environment.FORKABLE),
    }  # fmt: skip


def prepare(call: str, warmup: Warmup) -> None:
    """Have the server of this process prepare itself, and do not wait for it. Raises OSError when
    no process can be made."""
    server = start_server()
    if warmup.ahead is not None and server.standby is None:
        with contextlib.suppress(OSError):  # who needs it starts one
            server.standby = start_standby(warmup.ahead)
    # a server that has ended is found out by the next question
    put(server.control, {**surroundings(call, warmup), "argument": None}).close()


def submit_to_server(request: Request) -> AskedHere:
    """Have a fork of this process's server do it. Raises OSError when no process can be made."""
    server = start_server()
    call, argument, files = request.call, dict(request.argument), dict[str, int]()
    folder = tempfile.TemporaryDirectory(prefix="minidbg-run-") if request.argv else None
    if folder is not None:
        call, argument = RUN_IN_FORK, {"argv": request.argv, "folder": folder.name}
    if request.stream is not None:
        files["stream"] = request.stream
    standby = server.take_standby() if request.asks else None
    if standby is not None:
        files |= standby.files
    question = {
        **surroundings(call, request.fork or Warmup()), "argument": argument, "seconds": request.seconds,
        "memory_bytes": request.memory_bytes, "interrupts": request.interrupts, "program": bool(request.argv),
        "folder": tempfile.mkdtemp(prefix="asker-", dir=server.folder) if request.asks else "",
    }  # fmt: skip

    def ends(ended: Ended) -> Ended:
        if folder is not None:
            folder.cleanup()
        return ended

    asked = AskedHere(put(server.control, question, files), ends)
    if standby is not None:
        standby.let_go()
    seconds = request.deadline.left(SERVER_START_LIMIT_S + request.seconds)
    asked.until, asked.last_words = time.monotonic() + seconds + LATE_ANSWER_S, server.last_words
    server.under_way.add(asked)
    return asked


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
        if server is None or server.has_ended:
            _end(server)
            server = SERVERS[os.getpid()] = ForkServer()
        return server


def inherit(files: Mapping[str, int], folder: Path) -> None:
    """In a child of a server that may ask: that server, by the socket among its ``files``, is this process's too."""
    server = SERVERS[os.getpid()] = ForkServer(socket.socket(fileno=files["control"]), folder)
    if "standby" in files:
        server.standby = Standby(socket.socket(fileno=files["standby"]), files["order"])


def start_standby(plan: StandbyPlan) -> Standby:
    """An interpreter started by this process's server: the one that was started ahead for it, once. Raises OSError."""
    server = start_server()
    here = surroundings("", None)
    return server.take_standby() or Standby.started(
        plan, lambda question, files: put(server.control, {**here, **question}, files)
    )


@atexit.register
def end_server() -> None:
    """End this process's server, if it has one, and whatever it is asked."""
    with STARTING:
        _end(SERVERS.get(os.getpid()))


def _end(server: ForkServer | None) -> None:
    SERVERS.pop(os.getpid(), None)
    if server is not None:
        server.end()


def interrupt_questions() -> None:
    """End what this process has asked, whose threads then get a KeyboardInterrupt."""
    server = SERVERS.get(os.getpid())
    for asked in list(server.under_way) if server is not None else ():
        asked.was_interrupted = True
        asked.interrupt()


class ForkServer:
    """The asker's side."""

    def __init__(self, control: socket.socket | None = None, folder: Path | None = None) -> None:
        """A new server; with ``control`` the one that has forked this process, which ends with it."""
        self.under_way = weakref.WeakSet[AskedHere]()
        self.standby: Standby | None = None
        self.pid = 0
        roomy = MEMORY.is_dir() and HERE.disk_free(MEMORY) >= LEAST_ROOM_BYTES
        self.folder = folder or leftovers.make_temporary_folder("values", MEMORY if roomy else None)
        """For files that its children map. The server removes it, so that it goes also when the
        asker is killed; where both are, the next one does."""
        self.stderr = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the server
        if control is not None:
            self.control = control
            return
        self.control, theirs = socket.socketpair()
        command = [sys.executable, "-X", "faulthandler", "-m", "minidbg.workers.forkserver"]
        try:
            with theirs:
                process = subprocess.Popen(
                    [*command, str(theirs.fileno()), str(self.folder), str(os.getpid())], start_new_session=True,
                    stdin=subprocess.DEVNULL, stdout=self.stderr, stderr=self.stderr, pass_fds=(theirs.fileno(),),
                    env=environment.for_judge(environment.FORKABLE, environment.USUAL_THREADS),
                )  # fmt: skip
        except OSError:
            self.end()
            raise
        self.pid = process.pid
        process.returncode = 0  # reaped by its number: Popen need not wait for it

    @property
    def has_ended(self) -> bool:
        return self.pid != 0 and has_ended(self.pid)

    def take_standby(self) -> Standby | None:
        standby, self.standby = self.standby, None
        return standby

    def end(self) -> None:
        self.control.close()
        if (standby := self.take_standby()) is not None:
            standby.let_go()
        if self.pid:
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


# ---- the server's own side -------------------------------------------------------------------------


WARMED: set[str] = set()
"""In the server: what it has imported or compiled."""


def get_ready(question: Question) -> None:
    """Have the asker's surroundings. Import and compile here, once, what the question's child would have to."""
    os.environ.clear()
    os.environ.update(question["environ"])
    sys.path[:] = question["path"]
    with contextlib.suppress(OSError):
        os.chdir(question["cwd"])
    if question["imports"] is None:  # an interpreter of its own
        return
    signal.alarm(int(SERVER_START_LIMIT_S))  # an import that hangs ends the server, and the asker is told
    # only now: it would come too when the thread that has started the server ends
    die_with_parent(signal.SIGTERM, int(sys.argv[3]))
    with freezing_imports():
        import torch  # noqa: F401 - for the children
    from minidbg import torch_internals  # late: the asker's side of this file needs no torch

    torch_internals.remember_usual_threads()
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
    prctl(PR_SET_PDEATHSIG, 0)


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
        with socket.socket(fileno=int(sys.argv[1])) as control:
            serve(control, forkserver.get_ready)
    finally:
        shutil.rmtree(sys.argv[2], ignore_errors=True)
