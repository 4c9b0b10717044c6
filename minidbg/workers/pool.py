"""Interpreters that run scripts in forks: start a ``server``, give it scripts, hear how they ended, replace it.

The protocol is lines of JSON, so that whoever holds a pool needs no torch.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import psutil

from minidbg.words import environment
from minidbg.workers import leftovers
from minidbg.workers.child import ChildResult
from minidbg.workers.kernel_cache import VARIABLE
from minidbg.workers.server import fingerprints, say, tail

ROOT = str(Path(__file__).parents[2])
SERVER = (
    "import sys; sys.path.append(sys.argv[1]); from minidbg.workers.server import main; main(*sys.argv[1:])"
)

LEAST_ROOM_BYTES = 64 << 20
NUMBERS = itertools.count(1)
"""For the orders of this process: two never have the same."""


@dataclass(frozen=True, slots=True)
class Order:
    """One script to run.

    ``mode``: ``fork`` of the warm interpreter, which has compiled something; fork of the ``untouched`` one, in which nothing has
    happened but imports; ``prelude``, an interpreter of its own; ``fresh``, the same, and the script is any ``python`` arguments.
    """

    id: int
    argv: tuple[str, ...]
    mode: str
    seconds: float
    memory_bytes: int | None = None
    pycache: str = ""
    nice: int = 0
    one_thread: bool = False
    """Give an interpreter of its own one thread, as a fork of the warm one has: that would hang with more."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that its interpreter has had from its start."""
    paths: tuple[str, ...] = ()
    """Folders in front of everything on ``sys.path``."""
    place: str = ""
    """Where, for a pool of several machines: ``cuda:0@gpubox``; empty: here."""
    script: str = ""
    """The repro among the arguments, which another machine has elsewhere."""
    warm: str = "aot"
    """What another machine's interpreter should have compiled with: see ``Preload``."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended. ``lost``: the server died under it, so it says nothing about the script."""

    id: int
    status: int | None = None
    signal: int | None = None
    timed_out: bool = False
    cancelled: bool = False
    lost: bool = False
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    files: tuple[str, ...] | None = None
    """What it had loaded beyond the server's own files; None when it died before it could say."""
    unable: str = ""
    """Why the machine could not run it at all; says nothing about the script."""

    @property
    def result(self) -> ChildResult:
        """The same, as of a child of this process."""
        return ChildResult(
            exit_status=self.status, signal=self.signal, timed_out=self.timed_out,
            stdout=self.stdout, stderr_tail=self.stderr, seconds=self.seconds,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ready:
    """A server has finished preloading, in ``seconds``; ``files`` are what it has loaded."""

    seconds: float
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Died:
    """A server ended by itself; ``status`` as ``subprocess`` gives it, ``stderr`` its last words."""

    status: int
    stderr: str


Variables: TypeAlias = tuple[tuple[str, str], ...]

Listener = Callable[[Ended | Ready | Died], None]
"""Called from the pool's reading thread."""


@dataclass(frozen=True, slots=True)
class Preload:
    """What a server imports before it forks. ``warm``: compile once too (aot, inductor, or empty for no torch).

    ``machine`` is inductor's look at the machine alone.
    """

    modules: tuple[str, ...] = (
        "torch", "safetensors.torch",
        "minidbg.judge.script", "minidbg.judge.child", "minidbg.judge.agreement",
    )  # fmt: skip
    """Torch, what repro scripts import besides it, and their judge; what is not installed is left out."""
    warm: str = "aot"
    untouched: tuple[str, ...] = ("torch._dynamo.backends.common", "functorch.compile")
    """What the interpreter imports besides that compiles nothing."""


class Pool(Protocol):
    """What the daemon needs of a pool; tests have a scripted one."""

    def run(self, order: Order) -> None: ...
    def cancel(self, number: int) -> None: ...
    def refresh(self) -> None: ...
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


def share_of_memory(runs: int) -> int:
    """Bytes that one of so many ``runs`` at the same time may have: its share of the machine, and something over."""
    return int(psutil.virtual_memory().total * 0.75 / max(1, min(runs, 2)))


class ServerPool:
    """A server with a warm interpreter, and one with an untouched one. Orders given while they start wait in their sockets.

    Runs with other variables get servers of their own, which had those variables when they imported torch.
    ``refresh`` replaces a server when a file that it has loaded has changed; runs under way end with the old one.
    """

    def __init__(self, listener: Listener, preload: Preload, *, state: Path) -> None:
        """``state`` is the folder for scratch files and compiled kernels."""
        self.listener = listener
        self.preload = preload
        self.state = state
        shutil.rmtree(state / "scratch", ignore_errors=True)  # of a daemon that was killed
        self.spare_folder: Path | None = None
        self.servers: dict[tuple[str, Variables], ServerProcess] = {}
        self.server_for("warm", ())

    def server_for(self, which: str, variables: Variables) -> ServerProcess:
        """The ``warm`` or ``untouched`` server with these variables, a new one if there is none or it has died."""
        server = self.servers.get((which, variables))
        if server is None or not server.alive:
            if server is not None:
                server.close()
            server = self.servers[which, variables] = self.start(which, dict(variables))
            server.start_listening()
        return server

    def start(self, which: str, variables: Mapping[str, str]) -> ServerProcess:
        state = self.roomy_folder()
        kernels = os.environ.get(VARIABLE, str(state / "kernels"))
        env = environment.for_judge(environment.NO_CACHED_GRAPHS, given={VARIABLE: kernels, **variables})
        preload = self.preload
        if which == "untouched":
            return ServerProcess(
                lambda message: None if isinstance(message, Ready) else self.listener(message),
                Preload((*preload.modules, *(preload.untouched if preload.warm else ())), ""), state / "scratch", env, {},
            )  # fmt: skip
        # The limit of threads is for the process that forks. A fresh interpreter gets back what a person would have.
        one_thread = environment.ONE_THREAD.put_in
        own = {name: env.get(name) for name in one_thread}
        return ServerProcess(self.listener, preload, state / "scratch", {**env, **one_thread}, own)

    def roomy_folder(self) -> Path:
        """Where runs may write: a folder for temporary files when the disk of the history is full."""
        if shutil.disk_usage(self.state).free > LEAST_ROOM_BYTES:
            return self.state
        self.spare_folder = self.spare_folder or leftovers.make_folder("watch")
        return self.spare_folder

    def run(self, order: Order) -> None:
        """Start a script; its end is told to the listener."""
        which = "untouched" if order.mode == "untouched" else "warm"
        self.server_for(which, tuple(sorted(order.env.items()))).run(order)

    def cancel(self, number: int) -> None:
        """End a run; its end is told like any other."""
        for server in self.servers.values():
            server.cancel(number)

    def refresh(self) -> None:
        """Replace the servers that would run old code. The untouched one starts with the first call."""
        before = dict(self.servers)
        for key, server in before.items():
            if server.is_stale():
                server.close()
                del self.servers[key]
        for which, variables in before:
            self.server_for(which, variables)
            if self.preload.modules:
                self.server_for("untouched", variables)

    def close(self) -> None:
        """End the servers and everything they run."""
        for server in self.servers.values():
            server.close()
        if self.spare_folder is not None:
            shutil.rmtree(self.spare_folder, ignore_errors=True)


class ServerProcess:
    def __init__(
        self,
        listener: Listener,
        preload: Preload,
        scratch: Path,
        env: Mapping[str, str],
        fresh_env: Mapping[str, str | None],
    ) -> None:
        self.listener = listener
        self.fresh_env = {name: value for name, value in fresh_env.items() if value is not None}
        self.unset = tuple(name for name, value in fresh_env.items() if value is None)
        self.loaded: dict[str, list[int]] = {}
        self.under_way: set[int] = set()
        self.lock = threading.Lock()
        self.alive = True
        self.closing = False
        scratch.mkdir(parents=True, exist_ok=True)
        self.folder = leftovers.make_folder("server", scratch)
        ours, theirs = socket.socketpair()
        config = {
            "socket": theirs.fileno(), "parent": os.getpid(), "scratch": str(self.folder),
            "preload": list(preload.modules), "warm": preload.warm,
        }  # fmt: skip
        self.control = ours
        with theirs, (self.folder / "server.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", SERVER, ROOT, json.dumps(config)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(env),
                pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        self.thread: threading.Thread | None = None

    def start_listening(self) -> None:
        """Have a thread of this process hear the server, once: the process that started it, or a fork of that."""
        with self.lock:
            if self.thread is None:
                self.thread = threading.Thread(target=self.listen, name="minidbg-pool", daemon=True)
                self.thread.start()

    def run(self, order: Order) -> None:
        """Send the order; a server that has died answers for it with ``lost``."""
        self.start_listening()
        unset: list[str] = []
        one_thread = order.one_thread or order.mode == "fork"
        request = {**asdict(order), "env": {}, "unset": unset, "one_thread": one_thread}
        if order.mode == "untouched":
            request["mode"] = "fork"
        if not one_thread:
            request["env"] = dict(self.fresh_env)
            unset += self.unset
        if order.pycache:
            # The folder is ours, and torch's bytecode must lie there: without it an import of torch takes ten seconds.
            unset.append("PYTHONDONTWRITEBYTECODE")
        with self.lock:
            alive = self.alive  # else nobody would answer
            if alive:
                self.under_way.add(order.id)
        if alive:
            say(self.control, request)
        else:
            self.listener(Ended(order.id, lost=True))

    def cancel(self, number: int) -> None:
        say(self.control, {"cancel": number})

    def is_stale(self) -> bool:
        """Whether a file that the server has loaded is no longer what it was."""
        return fingerprints(list(self.loaded)) != self.loaded

    def listen(self) -> None:
        """Pass on what the server says until it ends; then answer for what it left undone."""
        with contextlib.suppress(OSError), self.control.makefile("rb") as lines:
            for line in lines:
                self.hear(json.loads(line))
        self.alive = False
        self.process.wait()
        with self.lock:
            lost, self.under_way = sorted(self.under_way), set()
        for number in lost:
            self.listener(Ended(number, lost=True))
        if not self.closing:
            self.listener(Died(self.process.returncode, tail(self.folder / "server.log")))
        shutil.rmtree(self.folder, ignore_errors=True)

    def hear(self, message: dict[str, Any]) -> None:
        if message.pop("ready", False):
            self.loaded = message["loaded"]
            self.listener(Ready(message["seconds"], tuple(self.loaded)))
            return
        with self.lock:
            self.under_way.discard(message["id"])
        files = message.pop("files")
        self.listener(Ended(**message, files=None if files is None else tuple(files)))

    def close(self) -> None:
        """End the server; what it runs ends with it."""
        self.closing = True
        with contextlib.suppress(OSError):
            self.control.shutdown(socket.SHUT_RDWR)
        self.process.terminate()  # while it still preloads, it reads nothing
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.thread is not None:
            self.thread.join(timeout=5)
        self.control.close()
        shutil.rmtree(self.folder, ignore_errors=True)  # one that was ended while it still imported


def preload_for(backends: Iterable[str], *, forks: bool) -> Preload:
    """What a server for repros of these backends has to import: inductor only where one of them needs it.

    Nothing when it is not to fork. ``MINIDBG__WATCH_PRELOAD=none`` leaves torch out, for scripts that need none.
    """
    if not forks or os.environ.get("MINIDBG__WATCH_PRELOAD") == "none":
        return Preload(modules=(), warm="")
    if "inductor" in backends:
        return Preload(warm="inductor", untouched=(*Preload().untouched, "torch._inductor.compile_fx"))
    return Preload()
