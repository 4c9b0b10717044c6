"""The daemon's side of ``minidbg/workers/server.py``: start it, give it scripts, hear how they ended, replace it.

The server is started as a plain file, and its protocol is lines of JSON, so that the daemon itself needs no torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from minidbg.watch.repros import read_repros

SERVER = Path(__file__).parents[1] / "workers" / "server.py"
ROOT = Path(__file__).parents[2]

COMPILER_ENVIRONMENT = {
    # A cached graph would hide a change of the compiler; the cache of compiled kernels, keyed by their source, cannot.
    "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
    "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
    "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_LOCAL_PGO": "0",
}
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}


@dataclass(frozen=True, slots=True)
class Order:
    """One script to run. ``mode``: fork, prelude or fresh, as the server explains them."""

    id: int
    argv: tuple[str, ...]
    mode: str
    seconds: float
    memory_bytes: int | None = None
    pycache: str = ""
    nice: int = 0
    env: Mapping[str, str] = field(default_factory=dict)


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
    cpu_seconds: float = 0.0
    files: tuple[str, ...] | None = None
    """What it had loaded beyond the server's own files; None when it died before it could say."""
    max_rss_bytes: int = 0


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


Listener = Callable[[Ended | Ready | Died], None]
"""Called from the pool's reading thread."""


@dataclass(frozen=True, slots=True)
class Preload:
    """What a server imports before it forks. ``warm``: compile once too (aot, inductor, or empty for no torch)."""

    modules: tuple[str, ...] = ("torch", "safetensors.torch", "minidbg.oracle.script", "minidbg.oracle.child")
    """Torch, what repro scripts import besides it, and their judge; what is not installed is left out."""
    warm: str = "aot"


class Pool(Protocol):
    """What the daemon needs of a pool; tests have a scripted one."""

    def run(self, order: Order) -> None: ...
    def cancel(self, number: int) -> None: ...
    def refresh(self) -> bool: ...
    def close(self) -> None: ...


class ServerPool:
    """One server at a time. Orders given while it starts wait in its socket.

    ``refresh`` replaces it when a file that it has loaded has changed; runs under way end with the old one.
    """

    def __init__(self, listener: Listener, preload: Preload, *, state: Path) -> None:
        """``state`` is the folder for scratch files and compiled kernels."""
        self.listener = listener
        self.preload = preload
        self.scratch = state / "scratch"
        shutil.rmtree(self.scratch, ignore_errors=True)  # of a daemon that was killed
        kernels = {"TORCHINDUCTOR_CACHE_DIR": str(state / "kernels")}
        self.env = {**kernels, **os.environ, **COMPILER_ENVIRONMENT}
        self.server = self.start()

    def start(self) -> Server:
        """Start a server process."""
        # The limit of threads is for the process that forks. A fresh interpreter gets back what a person would have.
        own = {name: self.env.get(name) for name in ONE_THREAD}
        return Server(self.listener, self.preload, self.scratch, {**self.env, **ONE_THREAD}, own)

    def run(self, order: Order) -> None:
        """Start a script; its end is told to the listener."""
        if not self.server.alive:
            self.server.close()
            self.server = self.start()
        self.server.run(order)

    def cancel(self, number: int) -> None:
        """End a run; its end is told like any other."""
        self.server.cancel(number)

    def refresh(self) -> bool:
        """Replace the server if it would run old code; whether it did."""
        if self.server.alive and not self.server.is_stale():
            return False
        self.server.close()
        self.server = self.start()
        return True

    def close(self) -> None:
        """End the server and everything it runs."""
        self.server.close()


class Server:
    """A running server process."""

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
        self.folder = Path(tempfile.mkdtemp(prefix="server-", dir=scratch))
        ours, theirs = socket.socketpair()
        config = {
            "socket": theirs.fileno(),
            "parent": os.getpid(),
            "scratch": str(self.folder),
            "root": str(ROOT),
            "preload": list(preload.modules),
            "warm": preload.warm,
        }
        self.control = ours
        with theirs, (self.folder / "server.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(SERVER), json.dumps(config)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(env),
                pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
        self.thread = threading.Thread(target=self.listen, name="minidbg-pool", daemon=True)
        self.thread.start()

    def run(self, order: Order) -> None:
        """Send the order; a server that has died answers for it with ``lost``."""
        unset: list[str] = []
        request = {
            "id": order.id, "argv": list(order.argv), "mode": order.mode, "seconds": order.seconds,
            "memory_bytes": order.memory_bytes, "pycache": order.pycache, "nice": order.nice,
            "env": dict(order.env), "unset": unset,
        }  # fmt: skip
        if order.mode == "fresh":
            request["env"] = {**self.fresh_env, **order.env}
            unset += self.unset
        if order.pycache:
            # The folder is ours, and torch's bytecode must lie there: without it an import of torch takes ten seconds.
            unset.append("PYTHONDONTWRITEBYTECODE")
        with self.lock:
            self.under_way.add(order.id)
        self.say(request)

    def cancel(self, number: int) -> None:
        """Have the run ended."""
        self.say({"cancel": number})

    def say(self, message: Mapping[str, Any]) -> None:
        """Send one line; the listening thread finds out when there is no one to read it."""
        with contextlib.suppress(OSError):
            self.control.sendall(json.dumps(message).encode() + b"\n")

    def is_stale(self) -> bool:
        """Whether a file that the server has loaded is no longer what it was."""
        for path, (mtime_ns, size) in self.loaded.items():
            try:
                status = os.stat(path)
            except OSError:
                return True
            if (status.st_mtime_ns, status.st_size) != (mtime_ns, size):
                return True
        return False

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
            self.listener(Died(self.process.returncode, log_tail(self.folder / "server.log")))
        shutil.rmtree(self.folder, ignore_errors=True)

    def hear(self, message: dict[str, Any]) -> None:
        """Pass on one message."""
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
        self.thread.join(timeout=5)
        self.control.close()


def log_tail(path: Path) -> str:
    """The last lines of a server's own output."""
    with contextlib.suppress(OSError):
        return "\n".join(path.read_text(errors="replace").splitlines()[-20:])
    return ""


def preload_for(paths: Sequence[Path], *, forks: bool) -> Preload:
    """What a server for the repros in ``paths`` has to import: inductor only where one of them needs it.

    Nothing when it is not to fork. ``MINIDBG__WATCH_PRELOAD=none`` leaves torch out, for scripts that need none.
    """
    if not forks or os.environ.get("MINIDBG__WATCH_PRELOAD") == "none":
        return Preload(modules=(), warm="")
    backends = {repro.backend for repro in read_repros(paths, Path()).values()}
    return Preload(warm="inductor" if "inductor" in backends else "aot")
