"""Interpreters that run scripts in forks: start a ``server``, give it scripts, hear how they ended, replace it.

What travels is plain values, so that whoever holds a pool needs no torch.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from minidbg.words import environment
from minidbg.workers import leftovers
from minidbg.workers import server as scripts
from minidbg.workers.child import ChildResult, end_of
from minidbg.workers.kernel_cache import VARIABLE
from minidbg.workers.serving import put, received

ROOT = str(Path(__file__).parents[2])
SERVER = (
    "import sys; sys.path.append(sys.argv[1]); from minidbg.workers.server import main; main(*sys.argv[1:])"
)

LONGEST_END_S = 8.0
LIMITS: Mapping[str, Any] = {"seconds": 60.0, "memory_bytes": None}
"""Of the question what the server has loaded."""
NUMBERS = itertools.count(1)
"""For the orders of this process: two never have the same."""


class RunMode(StrEnum):
    FORK = "fork"
    """A fork of the warm interpreter, which has compiled something: a tenth of a fresh one's time, and less."""
    FRESH = "fresh"
    """An interpreter of its own."""


@dataclass(frozen=True, slots=True)
class Order:
    """One script to run: ``argv`` is what ``python`` would get, a script or ``-m`` and a module, and arguments."""

    id: int
    argv: tuple[str, ...]
    mode: RunMode
    seconds: float
    memory_bytes: int | None = None
    recompiled: tuple[str, ...] = ()
    """Files and folders whose bytecode is not used: it may be of code that had the same size in the same second."""
    nice: int = 0
    one_thread: bool = False
    """Give an interpreter of its own one thread, as a fork of the warm one has: that would hang with more."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended. ``lost``: the server died under it, so it says nothing about the script."""

    id: int
    status: int | None = None
    signal: int | None = None
    timed_out: bool = False
    out_of_memory: bool = False
    cancelled: bool = False
    lost: bool = False
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    files: tuple[str, ...] | None = None
    """What it had loaded beyond the server's own files; None when it died before it could say."""

    @property
    def result(self) -> ChildResult:
        """The same, as of a child of this process."""
        return ChildResult(
            exit_status=self.status, signal=self.signal, timed_out=self.timed_out, out_of_memory=self.out_of_memory,
            stdout=self.stdout, stderr_tail=self.stderr, seconds=self.seconds,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ready:
    """A server has finished preloading, in ``seconds``."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Died:
    """A server ended by itself; ``status`` as ``subprocess`` gives it, ``stderr`` its last words."""

    status: int
    stderr: str


Listener = Callable[[Ended | Ready | Died], None]
"""Called from threads of the pool."""


@dataclass(frozen=True, slots=True)
class Preload:
    """What a server imports before it forks. ``warm``: compile once too (aot, inductor, or empty for no torch)."""

    modules: tuple[str, ...] = ("torch", "safetensors.torch", "minidbg.judge.script")
    """Torch, what repro scripts import besides it, and their judge; what is not installed is left out."""
    warm: str = "aot"


class Pool(Protocol):
    """What the daemon needs of a pool; tests have a scripted one."""

    def run(self, order: Order) -> None: ...
    def cancel(self, number: int) -> None: ...
    def refresh(self) -> Sequence[str]: ...
    def close(self) -> None: ...


MOST_BUSY = 10.0


def busyness() -> float:
    """How many times as long as usual anything takes here now, from 1 to ``MOST_BUSY``; 1 where the system does not say.

    A limit that is too short for a busy machine would turn a slow start of an interpreter into a verdict.
    """
    try:
        waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
    except OSError:
        return 1.0
    return min(MOST_BUSY, max(1.0, waiting))


class ServerPool:
    """A server with a warm interpreter. Orders given while it starts wait in their sockets.

    ``refresh`` replaces it when a file that it has loaded has changed; runs under way end with the old one.
    """

    def __init__(self, listener: Listener, preload: Preload, *, state: Path) -> None:
        """``state`` is the folder for scratch files and compiled kernels."""
        self.listener = listener
        self.preload = preload
        self.state = state
        shutil.rmtree(state / "scratch", ignore_errors=True)  # of a daemon that was killed
        self.server = self.started()

    def started(self) -> ServerProcess:
        kernels = os.environ.get(VARIABLE, str(self.state / "kernels"))
        env = environment.for_judge(environment.NO_CACHED_GRAPHS, given={VARIABLE: kernels})
        # The limit of threads is for the process that forks. A fresh interpreter gets back what a person would have.
        one_thread = environment.ONE_THREAD.put_in
        own = {name: env.get(name) for name in one_thread}
        server = ServerProcess(self.preload, self.state / "scratch", {**env, **one_thread}, own)
        server.tell_of_itself(self.listener)
        return server

    def replace(self) -> None:
        self.server.close()
        self.server = self.started()

    def run(self, order: Order) -> None:
        self.submit(order).add_done_callback(lambda end: self.listener(end.result()))

    def submit(self, order: Order) -> Future[Ended]:
        if not self.server.alive:
            self.replace()
        return self.server.submit(order)

    def cancel(self, number: int) -> None:
        self.server.cancel(number)

    def refresh(self) -> Sequence[str]:
        """Replace a server that would run old code; the files by whose change it is old."""
        changed = self.server.changed_files()
        if changed:
            self.replace()
        return tuple(changed)

    def close(self) -> None:
        self.server.close()


class ServerProcess:
    """The side of the one who gives orders to a ``server``. May be made in one process, and used in a fork of that."""

    def __init__(
        self, preload: Preload, scratch: Path, env: Mapping[str, str], fresh_env: Mapping[str, str | None]
    ) -> None:
        """``env`` are all of its variables; ``fresh_env`` those that a run has as here, and it has not. Raises OSError."""
        self.fresh_env = {name: value for name, value in fresh_env.items() if value is not None}
        self.unset = tuple(name for name, value in fresh_env.items() if value is None)
        self.loaded: dict[str, list[int]] = {}
        self.under_way: dict[int, tuple[socket.socket, threading.Thread]] = {}
        """By the number of the order: where its answer comes, and who waits for it."""
        self.cancelled: set[int] = set()
        self.closing = False
        scratch.mkdir(parents=True, exist_ok=True)
        self.folder = leftovers.make_folder("server", scratch)
        self.control, theirs = socket.socketpair()
        config = {
            "socket": theirs.fileno(), "parent": os.getpid(), "preload": list(preload.modules), "warm": preload.warm,
        }  # fmt: skip
        with theirs, (self.folder / "server.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", SERVER, ROOT, json.dumps(config)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(env),
                pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def tell_of_itself(self, listener: Listener) -> None:
        """Have a thread tell when the server is ready, and when it dies."""
        asked = put(self.control, {**LIMITS, "call": f"{scripts.__name__}:loaded", "argument": {}})

        def listen() -> None:
            with asked:
                answer = received(asked)
            if answer is not None and answer["answered"]:
                self.loaded = answer["value"]["loaded"]
                listener(Ready(answer["value"]["seconds"]))
            self.process.wait()
            for _, waiting in list(self.under_way.values()):
                waiting.join()
            if not self.closing:
                listener(Died(self.process.returncode, tail(self.folder / "server.log")))
                shutil.rmtree(self.folder, ignore_errors=True)

        threading.Thread(target=listen, name="minidbg-pool", daemon=True).start()

    def submit(self, order: Order) -> Future[Ended]:
        """Ask the server's loop, ``serving.serve``, to run the script, and wait in a thread; a future of its ``Ended``.

        A server that has died ends it with ``lost``.
        """
        unset: list[str] = []
        one_thread = order.one_thread or order.mode is RunMode.FORK
        folder = self.folder / str(order.id)
        request = {**asdict(order), "env": {}, "unset": unset, "one_thread": one_thread}
        if not one_thread:
            request["env"] = dict(self.fresh_env)
            unset += self.unset
        with contextlib.suppress(OSError):  # of a server that has ended: so does the run
            folder.mkdir()
        question = {
            "call": f"{scripts.__name__}:run", "argument": {**request, "folder": str(folder)}, "program": True,
            "seconds": order.seconds, "memory_bytes": order.memory_bytes,
        }  # fmt: skip
        end: Future[Ended] = Future()
        asked = put(self.control, question)

        def wait() -> None:
            with asked:
                answer = received(asked)
            files = read_files(folder / "files.json")
            shutil.rmtree(folder, ignore_errors=True)
            end.set_result(self.as_ended(order.id, answer, files))
            del self.under_way[order.id]

        thread = threading.Thread(target=wait, name="minidbg-run", daemon=True)
        self.under_way[order.id] = asked, thread
        thread.start()
        return end

    def as_ended(self, number: int, answer: Mapping[str, Any] | None, files: tuple[str, ...] | None) -> Ended:
        """The server's ``answer`` to an order; without one the server has died, or the run was cancelled."""
        cancelled = number in self.cancelled
        self.cancelled.discard(number)
        if answer is None:
            return Ended(
                number, signal=signal.SIGKILL if cancelled else None, cancelled=cancelled, lost=not cancelled
            )
        done = ChildResult(**answer)
        return Ended(
            number, done.exit_status, done.signal, done.timed_out, done.out_of_memory, cancelled, stdout=done.stdout,
            stderr=done.stderr_tail + done.error, seconds=done.seconds, files=files,
        )  # fmt: skip

    def cancel(self, number: int) -> None:
        if number in self.under_way:
            self.cancelled.add(number)
            with contextlib.suppress(OSError):
                self.under_way[number][0].sendall(b"!")

    def changed_files(self) -> list[str]:
        """The files that the server has loaded and that are no longer what they were."""
        now = scripts.fingerprints(list(self.loaded))
        return [path for path, known in self.loaded.items() if now.get(path) != known]

    def close(self) -> None:
        """End the server; what it runs ends with it."""
        self.closing = True
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)
        self.process.terminate()  # while it still preloads, it reads nothing
        try:
            self.process.wait(timeout=LONGEST_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.control.close()
        for _, waiting in list(self.under_way.values()):
            waiting.join(LONGEST_END_S)
        shutil.rmtree(self.folder, ignore_errors=True)


class OneByOne:
    """A pool for callers that wait for each run, such as pytest."""

    def __init__(self, preload: Preload) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="minidbg-pool-")
        self.pool = ServerPool(lambda message: None, preload, state=Path(self.folder.name))

    def run(self, argv: tuple[str, ...], mode: RunMode, seconds: float) -> Ended:
        """Run a script, and wait for its end; one whose server died under it runs once more, in an interpreter of its own."""
        ended = self.pool.submit(Order(next(NUMBERS), argv, mode, seconds)).result()
        if ended.lost:
            ended = self.pool.submit(Order(next(NUMBERS), argv, RunMode.FRESH, seconds)).result()
        return ended

    def close(self) -> None:
        self.pool.close()
        self.folder.cleanup()


def tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return end_of(file)
    except OSError:
        return ""


def read_files(path: Path) -> tuple[str, ...] | None:
    try:
        return tuple(json.loads(path.read_text()))
    except (OSError, ValueError):
        return None


def preload_for(backends: Iterable[str], *, forks: bool) -> Preload:
    """What a server for repros of these backends has to import: inductor only where one of them needs it.

    Nothing when it is not to fork. ``MINIDBG__WATCH_PRELOAD=none`` leaves torch out, for scripts that need none.
    """
    if not forks or os.environ.get("MINIDBG__WATCH_PRELOAD") == "none":
        return Preload(modules=(), warm="")
    return Preload(warm="inductor") if "inductor" in backends else Preload()
