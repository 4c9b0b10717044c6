"""Interpreters that run scripts in forks: start a ``server``, give it scripts, hear how they ended, replace it.

What travels is plain values, so that whoever holds a pool needs no torch.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from minidbg.core import environment
from minidbg.workers import leftovers
from minidbg.workers import server as scripts
from minidbg.workers.child import Ended, end_of
from minidbg.workers.client import Asked, Request, Warmup, put
from minidbg.workers.kernel_cache import CACHE_VARIABLE

ROOT = str(Path(__file__).parents[2])
SERVER = (
    "import sys; sys.path.append(sys.argv[1]); from minidbg.workers.server import main; main(*sys.argv[1:])"
)

LONGEST_END_S = 8.0
LIMITS: Mapping[str, Any] = {"seconds": 60.0, "memory_bytes": None}
"""Of the question what the server has loaded."""
JUDGE = ("torch", "safetensors.torch", "minidbg.judge.script")
"""Torch, what repro scripts import besides it, and their judge; what is not installed is left out."""
WARM = Warmup(JUDGE, warm="aot")


@dataclass(frozen=True, slots=True)
class Died:
    """A server ended by itself; ``status`` as ``subprocess`` gives it, ``stderr`` its last words."""

    status: int
    stderr: str


DiedListener = Callable[[Died], None]
"""Called from a thread of the pool."""


class Pool(Protocol):
    """What the daemon needs of a pool; tests have a scripted one."""

    def submit(self, request: Request) -> Future[Ended]: ...
    def refresh(self) -> Sequence[str]: ...
    def close(self) -> None: ...


class ServerPool:
    """A server with a warm interpreter. Requests made while it starts wait in their sockets.

    ``refresh`` replaces it when a file that it has loaded has changed; runs under way end with the old one.
    """

    def __init__(self, listener: DiedListener, preload: Warmup, *, state: Path) -> None:
        """``state`` is the folder for scratch files and compiled kernels."""
        self.listener = listener
        self.preload = preload
        self.state = state
        shutil.rmtree(state / "scratch", ignore_errors=True)  # of a daemon that was killed
        self.server = self.started()

    def started(self) -> ServerProcess:
        kernels = os.environ.get(CACHE_VARIABLE, str(self.state / "kernels"))
        env = environment.for_judge(environment.NO_CACHED_GRAPHS, given={CACHE_VARIABLE: kernels})
        # The limit of threads is for the process that forks. A fresh interpreter gets back what a person would have.
        one_thread = environment.ONE_THREAD.put_in
        own = {name: env.get(name) for name in one_thread}
        server = ServerProcess(self.preload, self.state / "scratch", {**env, **one_thread}, own)
        server.tell_of_itself(self.listener)
        return server

    def replace(self) -> None:
        self.server.close()
        self.server = self.started()

    def submit(self, request: Request) -> Future[Ended]:
        if not self.server.alive:
            self.replace()
        return self.server.submit(request)

    def refresh(self) -> Sequence[str]:
        """Replace a server that would run old code; the files by whose change it is old."""
        changed = self.server.changed_files()
        if changed:
            self.replace()
        return tuple(changed)

    def close(self) -> None:
        self.server.close()


class ServerProcess:
    """The asker's side of a ``server``. May be made in one process, and used in a fork of that."""

    def __init__(
        self, preload: Warmup, scratch: Path, env: Mapping[str, str], fresh_env: Mapping[str, str | None]
    ) -> None:
        """``env`` are all of its variables; ``fresh_env`` those that a run has as here, and it has
        not. Raises OSError."""
        self.fresh_env = {name: value for name, value in fresh_env.items() if value is not None}
        self.unset = tuple(name for name, value in fresh_env.items() if value is None)
        self.loaded: dict[str, list[int]] = {}
        self.numbers = itertools.count(1)
        self.closing = self.is_over = False
        self.lock = threading.Lock()
        self.selector = selectors.DefaultSelector()
        """What is under way, and the control socket, which ends with the server."""
        self.thread = threading.Thread(target=self.read_answers, name="minidbg-pool", daemon=True)
        scratch.mkdir(parents=True, exist_ok=True)
        self.folder = leftovers.make_temporary_folder("server", scratch)
        self.control, theirs = socket.socketpair()
        config = {
            "socket": theirs.fileno(), "parent": os.getpid(), "preload": list(preload.imports), "warm": preload.warm,
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

    def tell_of_itself(self, listener: DiedListener) -> None:
        """Have a thread hear what the server has loaded, and tell when it dies."""

        def learn(asked: Future[Ended]) -> None:
            self.loaded = asked.result().value or {}

        self.listener = listener
        self.selector.register(self.control, selectors.EVENT_READ)
        self.thread.start()
        question = {**LIMITS, "call": f"{scripts.__name__}:loaded", "argument": {}}
        self.read_in_thread(Asked(put(self.control, question))).add_done_callback(learn)

    def read_answers(self) -> None:
        while True:
            with self.lock:
                self.is_over = not self.selector.get_map()
            if self.is_over:
                break
            for key, _ in self.selector.select():
                self.selector.unregister(key.fileobj)
                if key.data is not None:
                    key.data.read()
                    self.read_in_thread(key.data)
        if not self.closing:
            self.listener(Died(self.process.wait(), tail(self.folder / "server.log")))
            shutil.rmtree(self.folder, ignore_errors=True)

    def read_in_thread(self, asked: Asked) -> Asked:
        with self.lock:
            while self.is_over and asked.is_under_way:  # it is lost
                asked.read()
            if asked.is_under_way:
                self.selector.register(asked.answer, selectors.EVENT_READ, asked)
        return asked

    def submit(self, request: Request) -> Future[Ended]:
        """Ask the server's loop, ``serving.serve``, to run the script."""
        fresh = request.fork is None
        folder = self.folder / str(next(self.numbers))
        has_one_thread = request.one_thread or not fresh
        argument = {
            "argv": request.argv, "recompiled": request.recompiled, "nice": request.nice, "cwd": str(folder), "fresh": fresh,
            "one_thread": has_one_thread, "env": {} if has_one_thread else self.fresh_env, "unset": () if has_one_thread else self.unset,
            "files": str(folder / "files.json"),
        }  # fmt: skip
        with contextlib.suppress(OSError):  # of a server that has ended: so does the run
            folder.mkdir()
        question = {
            "call": f"{scripts.__name__}:run", "argument": argument, "program": True,
            "seconds": request.seconds, "memory_bytes": request.memory_bytes,
        }  # fmt: skip

        def ends(ended: Ended) -> Ended:
            files = read_files(folder / "files.json")
            shutil.rmtree(folder, ignore_errors=True)
            return replace(ended, stderr_tail=ended.stderr_tail + ended.error, files=files)

        return self.read_in_thread(Asked(put(self.control, question), ends))

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
        self.thread.join(LONGEST_END_S)
        self.control.close()
        self.selector.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class OneByOne:
    """A pool for callers that wait for each run, such as pytest."""

    def __init__(self, preload: Warmup) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="minidbg-pool-")
        self.pool = ServerPool(lambda message: None, preload, state=Path(self.folder.name))

    def run(self, request: Request) -> Ended:
        """Run a script, and wait for its end; one whose server died under it runs once more, in an
        interpreter of its own."""
        ended = self.pool.submit(request).result()
        return self.pool.submit(replace(request, fork=None)).result() if ended.lost else ended

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


def preload_for(backends: Iterable[str], *, forks: bool) -> Warmup:
    """What a server for repros of these backends has to import: inductor only where one of them needs it.

    Nothing when it is not to fork. ``MINIDBG__WATCH_PRELOAD=none`` leaves torch out, for scripts that need none.
    """
    if not forks or os.environ.get("MINIDBG__WATCH_PRELOAD") == "none":
        return Warmup()
    return replace(WARM, warm="inductor") if "inductor" in backends else WARM
