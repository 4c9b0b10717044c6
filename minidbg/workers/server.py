"""A process that runs scripts for the daemon: each in a forked child that already has torch, or in a fresh interpreter.

Started by ``minidbg.workers.pool``. One thread; Linux or another POSIX system. It speaks lines of JSON over a socket given by number:

    -> {"id", "argv", "mode", "seconds", "memory_bytes", "env", "unset", "pycache", "nice"}     run a script
    -> {"cancel": id}                                                                             end a run
    <- {"ready": true, "loaded": {path: [mtime_ns, size]}, "seconds"}                            once, after preloading
    <- {"id", "status", "signal", "timed_out", "cancelled", "stdout", "stderr", "seconds", "files"}

``mode``: ``fork`` (a child of this process), ``prelude`` (a fresh interpreter that runs the script in the same way),
``fresh`` (``python script.py``, as a person would run it). A run is its own process group, and is ended as one. When the
socket closes, everything ends: no process outlives the daemon.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import selectors
import shutil
import signal
import site
import socket
import stat
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from minidbg.words import environment
from minidbg.workers import child
from minidbg.workers.run_script import (
    NO_VERDICT,
    RUN_SCRIPT,
    Base,
    kept_from_the_collector,
    loaded_files,
    run_script,
)

LAST_WORDS_S = 0.3
"""After the time limit: how long a run has to print its stack before it is killed."""


@dataclass(slots=True)
class Run:
    id: int
    pid: int
    folder: Path
    began: float
    deadline: float
    timed_out: bool = False
    cancelled: bool = False


@dataclass(slots=True)
class Server:
    """What the server keeps between two events."""

    control: socket.socket
    scratch: Path
    base: Base
    runs: dict[int, Run] = field(default_factory=dict)
    ended_groups: set[int] = field(default_factory=set)
    unread: bytes = b""

    def serve(self) -> None:
        """Handle requests until the socket closes or SIGTERM arrives; then end all runs."""
        try:
            with selectors.DefaultSelector() as selector, child_signals() as wakeup:
                selector.register(self.control, selectors.EVENT_READ)
                selector.register(wakeup, selectors.EVENT_READ)
                while True:
                    for key, _ in selector.select(self.seconds_to_next_deadline()):
                        if key.fileobj is wakeup:
                            if signal.SIGTERM in wakeup.recv(4096):
                                return
                        elif not self.read_requests():
                            return
                    self.end_late_runs(time.monotonic())
                    self.reap()
        finally:
            for run in self.runs.values():
                child.kill_group(run.pid)
            shutil.rmtree(self.scratch, ignore_errors=True)

    def seconds_to_next_deadline(self) -> float | None:
        """How long the loop may sleep."""
        if not self.runs:
            return None
        return max(0.0, min(run.deadline for run in self.runs.values()) - time.monotonic())

    def read_requests(self) -> bool:
        """Start or cancel what was asked for; False when the daemon has gone."""
        try:
            received = self.control.recv(1 << 16)
        except ConnectionError:
            return False
        *lines, self.unread = (self.unread + received).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if "cancel" in request:
                self.cancel(request["cancel"])
            else:
                self.start(request)
        return bool(received)

    def start(self, request: dict[str, Any]) -> None:
        """Fork the child that runs the request's script."""
        folder = self.scratch / str(request["id"])
        folder.mkdir()
        began = time.monotonic()
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            become_run(request, folder, server, self.base)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # the child does it too: whoever comes first
        self.runs[pid] = Run(request["id"], pid, folder, began, began + request["seconds"])

    def cancel(self, number: int) -> None:
        """End a run that is no longer wanted; it is answered like any other."""
        for run in self.runs.values():
            if run.id == number:
                run.cancelled = True
                child.kill_group(run.pid)

    def end_late_runs(self, now: float) -> None:
        """Ask a late run for its stack, then kill it."""
        for run in self.runs.values():
            if now < run.deadline:
                continue
            if run.timed_out:
                child.kill_group(run.pid)
                run.deadline = now + 1.0  # in case it cannot die yet
            else:
                run.timed_out, run.deadline = True, now + LAST_WORDS_S
                with contextlib.suppress(OSError):
                    os.kill(run.pid, signal.SIGABRT)  # faulthandler prints the stack

    def reap(self) -> None:
        """Answer for the runs that have ended, and collect orphans that they left to us."""
        while ended := ended_child():
            run = self.runs.pop(ended, None)
            if run is not None:
                child.kill_group(ended)  # before it is reaped: its number is still its own
                self.ended_groups.add(ended)
            _, status = os.waitpid(ended, 0)
            if run is not None:
                self.answer(run, status)
        self.kill_orphans()

    def kill_orphans(self) -> None:
        """End processes that outlived their run: those of its group, and when nothing runs, any."""
        if not self.ended_groups:
            return
        for pid in children_of(os.getpid()):
            with contextlib.suppress(OSError):
                if pid not in self.runs and (not self.runs or os.getpgid(pid) in self.ended_groups):
                    os.kill(pid, signal.SIGKILL)
        if not self.runs:
            self.ended_groups.clear()

    def answer(self, run: Run, status: int) -> None:
        """Tell the daemon how a run ended, and clean up after it."""
        answer = {
            "id": run.id,
            "status": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            "timed_out": run.timed_out,
            "cancelled": run.cancelled,
            "stdout": tail(run.folder / "stdout"),
            "stderr": tail(run.folder / "stderr"),
            "files": read_files(run.folder / "files.json"),
            "seconds": time.monotonic() - run.began,
        }
        say(self.control, answer)
        shutil.rmtree(run.folder, ignore_errors=True)


@contextlib.contextmanager
def child_signals() -> Iterator[socket.socket]:
    """A socket that becomes readable, with the signal's number, when a child ends or SIGTERM arrives."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(-1)
        reader.close()
        writer.close()


def say(control: socket.socket, message: Mapping[str, Any]) -> None:
    """Send one line; whoever reads from the other side finds out when it has gone."""
    with contextlib.suppress(OSError):
        control.sendall(json.dumps(message).encode() + b"\n")


def ended_child() -> int | None:
    """A child that has ended and is not reaped yet."""
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return ended.si_pid if ended else None


def children_of(pid: int) -> list[int]:
    """The processes whose parent is ``pid``; empty where the kernel does not say."""
    with contextlib.suppress(OSError, ValueError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def tail(path: Path) -> str:
    """The end of a file, as text; nothing when there is none."""
    try:
        with path.open("rb") as file:
            return child.end_of(file)
    except OSError:
        return ""


def read_files(path: Path) -> list[str] | None:
    """The files that a run had loaded, or None when it died before it could say."""
    try:
        return list(json.loads(path.read_text()))
    except (OSError, ValueError):
        return None


# In the child


def become_run(request: dict[str, Any], folder: Path, server: int, base: Base) -> NoReturn:
    """Turn this freshly forked process into the run. Never returns, never raises."""
    status = NO_VERDICT
    try:
        settle_in(request, folder, server)
        if request["mode"] == "fork":
            status = run_script(request, folder, base)
        else:
            execute(request, folder)
    except BaseException:  # noqa: BLE001 - there is no one left to raise it to
        with contextlib.suppress(Exception):
            traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def settle_in(request: dict[str, Any], folder: Path, server: int) -> None:
    """Own group, own folder and output files, limits, and death together with the server."""
    os.setpgid(0, 0)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    out, err = (os.open(folder / name, flags, 0o600) for name in ("stdout", "stderr"))
    child.stand_alone(stdout=out, stderr=err, parent=server)
    os.closerange(3, 4096)
    os.chdir(folder)
    os.environ.update(request["env"])
    for name in request["unset"]:
        os.environ.pop(name, None)
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
    if request.get("nice"):
        os.nice(request["nice"])
    if request.get("memory_bytes"):
        limit_memory(request["memory_bytes"])


def limit_memory(extra_bytes: int) -> None:
    """Let this process have ``extra_bytes`` of data beyond what it was forked with."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text().split()[5])
        limit = pages * resource.getpagesize() + extra_bytes
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def execute(request: dict[str, Any], folder: Path) -> NoReturn:
    """Become a fresh interpreter that runs the script."""
    flags = ["-X", "faulthandler"]
    if request.get("pycache"):
        flags += ["-X", f"pycache_prefix={request['pycache']}"]
    if request["mode"] == "fresh":
        command = [sys.executable, *flags, *request["argv"]]
    else:
        (folder / "request.json").write_text(json.dumps(request))
        command = [sys.executable, "-P", *flags, RUN_SCRIPT, "--run", str(folder)]
    os.execv(sys.executable, command)


# Starting up


def preload(names: Sequence[str], *, warm: str) -> None:
    """Import what every run needs, and compile once with torch (``warm``: aot, inductor, or empty for nothing).

    ``warm`` may also be ``machine``: nothing is compiled, but inductor has looked at the machine. A name that cannot be imported
    is left to the runs.
    """
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if warm and "torch" in sys.modules:
        from minidbg import torch_internals

        if warm == "machine":
            with contextlib.suppress(Exception):  # a compiler that is not there: the runs will say so
                torch_internals.look_at_the_machine()
        else:
            torch_internals.warm_up_compiling(inductor=warm == "inductor")


def fingerprints(files: Sequence[str]) -> dict[str, list[int]]:
    """Modification time and size of each file that exists; of a folder what is installed in it."""
    found = {}
    for path in files:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            found[path] = [status.st_mtime_ns, status.st_size]
            if stat.S_ISDIR(status.st_mode):
                found[path] = [zlib.crc32(installed_in(Path(path)))]
    return found


def installed_in(folder: Path) -> bytes:
    """The names in a folder of packages, and what the interpreter read there when it started.

    The folder's own time says less: it changes too when an interpreter makes a ``__pycache__``, and when what is there is installed again.
    """
    names = sorted(set(os.listdir(folder)) - {"__pycache__"})
    paths = [(folder / name).read_bytes() for name in names if name.endswith(".pth")]
    return b"\0".join([*map(os.fsencode, names), *paths])


def main(root: str, text: str) -> None:
    """Serve as the JSON ``text`` says. ``root``, on the path so that minidbg is found, is none of the scripts' business."""
    config = json.loads(text)
    began = time.monotonic()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the daemon, which tells us
    child.die_with_parent(signal.SIGTERM, config["parent"])
    child.prctl(child.PR_SET_CHILD_SUBREAPER, 1)
    os.environ.update(environment.FORKABLE.put_in)
    with kept_from_the_collector():
        preload(config["preload"], warm=config["warm"])
    sys.path.reverse()  # the last one is ours; it may be on the path by itself
    sys.path.remove(root)
    sys.path.reverse()
    loaded = frozenset(loaded_files())
    base = Base(loaded, next(reversed(sys.modules)))
    control = socket.socket(fileno=config["socket"])
    files = fingerprints([*loaded, *site.getsitepackages()])
    say(control, {"ready": True, "loaded": files, "seconds": time.monotonic() - began})
    gc.freeze()  # children share these objects: a collection in one of them must not copy their pages
    try:
        Server(control, Path(config["scratch"]), base).serve()
    except BaseException:  # noqa: BLE001 - its last words
        traceback.print_exc()
        os._exit(NO_VERDICT)
    os._exit(0)  # Python's own end would look through all of torch for a quarter of a second
