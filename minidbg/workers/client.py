"""The asker's side of a server: a ``Request`` in, a future of its ``Ended`` out.

A program that uses torch has threads (OpenMP, autograd, a backend's own pool, a driver), and what a
fork of it does is chance. So a clean interpreter is started once, imports torch and what its
questions need, and then does nothing but fork: it runs no thread and uses no accelerator, so that
each child may. A child costs milliseconds, and its crash or hang costs the server nothing.
"""

from __future__ import annotations

import atexit
import contextlib
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol, Self, TextIO

from minidbg.core import environment
from minidbg.core.machine import HERE, NEVER, Deadline
from minidbg.core.text import last_line
from minidbg.workers import leftovers
from minidbg.workers.child import Ended, JsonValue, end_of, kill_group, process_has_ended, run_python
from minidbg.workers.entry import fingerprints
from minidbg.workers.kernel_cache import CACHE_VARIABLE

Question = Mapping[str, Any]
"""``call`` (``module:function``), ``argument`` (None: nothing is run, and nothing answered),
``seconds``, ``memory_bytes``, ``interrupts`` (a first byte of the asker interrupts the function, as
Ctrl-C does), ``asks`` (the child may ask this server), ``program`` (see ``call_in_fork``; either
has a ``folder`` of its own), ``files``, the names of what is sent along (``stdin`` is the child's);
``warmup``, and the surroundings that the child has: ``cwd``, ``environ``, ``one_thread``, ``path``
(None: the server's own)."""
MEMORY = Path("/dev/shm")
"""A folder that is memory, where there is one."""
LEAST_ROOM_BYTES = 1 << 30
LATE_ANSWER_S = 4.0
"""Beyond a question's end: for its last words, and for the supervisor to say how it ended."""
LONGEST_WAIT_S = 86400.0
"""Of a standby, until its script is named."""
SERVER_START_LIMIT_S = 300.0
"""For the imports; the time limit of a question begins after them."""
LONGEST_END_S = 8.0
ROOT = str(Path(__file__).parents[2])
SERVER = "minidbg.workers.server"
PROGRAM = f"""
import sys
sys.path.append(sys.argv[1])
from {SERVER} import main
sys.path.pop()  # where minidbg is found is none of the scripts' business
main(*sys.argv[2:])
"""
SERVERS: dict[int, Server] = {}
"""The server of this process, by the process's number: a forked child has none."""
LENDERS: list[Callable[[], socket.socket]] = []
"""Connects to a server that somebody else has started for this process. Raises OSError."""


@dataclass(frozen=True, slots=True)
class Warmup:
    """What a server has and does before it forks, once for all requests that want the same."""

    imports: tuple[str, ...] = ()
    """Modules that are imported where that starts no thread, which is tried: those of a backend."""
    warm: str = ""
    """``aot``, ``inductor``, ``lowering``, ``codegen``: one small graph is compiled, by inductor as
    far as the last two say. ``imports``: what a compile imports, enough for a few questions."""
    modules: tuple[str, ...] = ()
    """Those that surely start none: torch's, and ours. What is not installed is left out."""


@dataclass(frozen=True, slots=True)
class Request:
    """A script, ``python *argv``, in an empty folder; or a question, ``call``
    (``module:function``) with an ``argument`` of plain values.

    The function gets the argument and one that hears texts: the last is the result's ``note``.
    """

    argv: tuple[str, ...] = ()
    call: str = ""
    argument: Mapping[str, JsonValue] = field(default_factory=dict)
    seconds: float = 120.0
    """They begin after the imports of a question."""
    deadline: Deadline = NEVER
    """It has the imports in it."""
    memory_bytes: int | None = None
    fork: Warmup | None = None
    """In a fork of a server so prepared, for a tenth of the time; None: in its own interpreter."""
    stream: int | None = None
    """A descriptor for the child of a server: the argument's ``stream`` is its number there."""
    asks: bool = False
    """The child of a server may ask that server, and has the interpreter that was started ahead."""
    interrupts: bool = False
    """The first Ctrl-C is for a server's child, which must let SIGINT in; the second ends it."""
    env: Mapping[str, str | None] = field(default_factory=dict)
    """Variables that a program in its own interpreter has otherwise; None for one it has not."""
    recompiled: tuple[str, ...] = ()
    """Files and folders whose bytecode is not used: it may be of code of equal size and second."""
    nice: int = 0
    anew: bool = False
    """In a fork, where it is one, of a server that has imported since the last ``refresh``, and has
    the usual threads."""
    one_thread: bool = False
    """Give an interpreter of its own one thread, as a warm fork has: that would hang with more."""


Ahead = tuple[Sequence[str], Mapping[str, str]]
"""What an interpreter imports, or calls (``module:function``), before its script; its variables."""
Submit = Callable[[Request], Future[Ended]]
"""Raises OSError when no process can be made. A future that is cancelled ends its child."""


class Asked(Future[Ended]):
    """A question under way, whose answer comes on a socket. Who waits for it reads, so that the
    process that asks gets no thread; unless one thread reads, and others hear of it."""

    has_reader = False

    def __init__(self, answer: socket.socket, until: float, server: Server | None = None) -> None:
        """``until``: when it is given up, by the monotonic clock."""
        super().__init__()
        self.answer, self.until, self.server, self.data = answer, until, server, bytearray()

    @property
    def is_under_way(self) -> bool:
        return self.answer.fileno() >= 0

    def read(self) -> None:
        """Read the answer, whose end is the end of the question."""
        began = time.monotonic()
        while self.is_under_way:
            seconds = self.until - time.monotonic()
            poll = select.poll()
            poll.register(self.answer, select.POLLIN)
            if seconds <= 0:
                self.end(Ended(timed_out=True, seconds=time.monotonic() - began))
            elif poll.poll(seconds * 1000):
                piece = b""
                with contextlib.suppress(ConnectionError):
                    piece = self.answer.recv(1 << 20)
                self.data += piece
                if not piece:
                    self.end(Ended(**json.loads(self.data)) if self.data else Ended(lost=True))

    def read_in_a_thread(self) -> Self:
        self.has_reader = True
        threading.Thread(target=self.read, name="minidbg-run", daemon=True).start()
        return self

    def end(self, ended: Ended) -> None:
        self.answer.close()
        if self.server is not None:
            self.server.prepared = max(self.server.prepared, tuple(ended.prepared))
            ended = replace(ended, error=self.server.last_words()) if ended.lost else ended
        if self.set_running_or_notify_cancel():
            self.set_result(ended)

    def result(self, timeout: float | None = None, on_interrupt: Callable[[], object] | None = None) -> Ended:
        """How it ended. Where that is waited for here, raises OSError for what is lost, and
        KeyboardInterrupt, which ends it: the first one is passed on, after a call of
        ``on_interrupt``, where that is there."""
        if self.has_reader:
            return super().result(timeout)
        try:
            self.read()
        except KeyboardInterrupt:
            if on_interrupt is None:
                raise
            on_interrupt()
            self.interrupt()
            self.read()
        finally:
            if self.is_under_way:  # an interrupt, or a time limit of the program's own
                self.cancel()
        ended = super().result(0)
        if ended.lost:
            words = ("the process that was to do it was ended from outside", ended.error)
            raise OSError(": ".join(filter(None, words)))
        return ended

    def interrupt(self) -> None:
        """Have it end, or, where it ``interrupts``, interrupt its function; from any thread."""
        with contextlib.suppress(OSError):
            self.answer.sendall(b"!")

    def cancel(self) -> bool:
        self.interrupt()
        is_cancelled = super().cancel()
        if self.is_under_way and not self.has_reader:
            self.end(Ended(lost=True))
        return is_cancelled


@contextlib.contextmanager
def stream_to_the_user() -> Iterator[TextIO]:
    """A copy of stderr that a child may write its progress to: its own stderr is taken from it."""
    try:
        descriptor = os.dup(2)
    except OSError:  # no stderr (a service): progress goes nowhere
        descriptor = os.open(os.devnull, os.O_WRONLY)
    with open(descriptor, "w", encoding="utf-8", errors="replace") as stream:
        yield stream


class Standby(Asked):
    """An interpreter that imports while something else goes on, for one script: ``python script``,
    without the wait for its imports. It ends with its block, and with the server that started it.

    It is an interpreter of its own, with a hash seed of its own: what follows from the order of a
    set, or from what else was imported, is otherwise there than in the forks asked before.
    """

    def __init__(self, answer: socket.socket, order: int) -> None:
        """``order`` is what it reads as its stdin."""
        super().__init__(answer, time.monotonic() + LONGEST_WAIT_S)
        self.order = order

    def start(self, argv: Sequence[str], *, seconds: float) -> Callable[[], Ended | None]:
        """Run ``python *argv`` in it, once, from an empty folder. The function waits for its end,
        at most ``seconds`` from now; None where the interpreter was ended under it."""
        # while it waited: that says nothing of the script
        was_ended = bool(select.select([self.answer], [], [], 0)[0])
        with contextlib.suppress(BrokenPipeError):
            os.write(self.order, json.dumps({"argv": list(argv)}).encode() + b"\n")
        began = time.monotonic()
        self.until = began + seconds

        def end() -> Ended | None:
            with contextlib.suppress(OSError):  # its server has ended
                ended = self.result()
                if not (was_ended or ended.error):
                    return replace(ended, seconds=time.monotonic() - began)
            return None

        return end

    def let_go(self) -> None:
        self.answer.close()
        os.close(self.order)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_under_way:
            self.cancel()
        self.let_go()


class Server:
    """A process that forks, from its asker's side. The next request restarts one that has ended."""

    def __init__(self, home: Path | None = None, door: socket.socket | None = None) -> None:
        """``home`` is where its folder and those of its runs are; None: among temporary files.
        ``door`` is a socket that listens: other processes may ask too."""
        self.home, self.door = home, door
        self.lock = threading.RLock()
        self.standby: Standby | None = None
        self.prepared: tuple[float, ...] = (0.0, 0.0)
        """Seconds of its imports and its warm-up, as it last said."""
        self.pid: int | None = None
        """None where it does not run, 0 for one that another process has started."""
        self.control: socket.socket
        self.stderr: BinaryIO
        self.folder = Path()
        """For files that its children map. The server removes it, so that it goes also when the
        asker is killed; where both are, the next one does."""

    def start(self) -> Self:
        """Start it where it does not run, and do not wait for it. Raises OSError."""
        with self.lock:
            if self.pid is not None and not self.has_ended():
                return self
            self.end()
            if self.home is not None:
                self.home.mkdir(parents=True, exist_ok=True)
            roomy = MEMORY.is_dir() and HERE.disk_free(MEMORY) >= LEAST_ROOM_BYTES
            parent = self.home or (MEMORY if roomy else None)
            self.folder = leftovers.make_temporary_folder("values", parent)
            self.pid = 0
            for lender in LENDERS if self.home is None else []:
                with contextlib.suppress(OSError):
                    self.control = lender()
                    return self
            self.control, theirs = socket.socketpair()
            self.stderr = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the server
            command = [sys.executable, "-P", "-X", "faulthandler", "-c", PROGRAM, ROOT]
            doors = [self.door.fileno()] if self.door is not None else []
            try:
                with theirs:
                    process = subprocess.Popen(
                        [*command, *map(str, (theirs.fileno(), self.folder, os.getpid(), *doors))],
                        stdin=subprocess.DEVNULL, stdout=self.stderr, stderr=self.stderr,
                        start_new_session=True, pass_fds=(theirs.fileno(), *doors),
                        env=environment.for_judge(environment.FORKABLE, environment.USUAL_THREADS),
                    )  # fmt: skip
            except OSError:
                self.end()
                raise
            self.pid = process.pid
            process.returncode = 0  # reaped by its number: Popen need not wait for it
        return self

    def has_ended(self) -> bool:
        if self.pid:
            return process_has_ended(self.pid)
        return bool(select.select([self.control], [], [], 0)[0])  # there it says its end alone

    def end(self) -> None:
        """End it with all that it runs, and wait for that; one that is lent goes on."""
        with self.lock:
            if self.pid is None:
                return
            if (standby := self.take_standby()) is not None:
                standby.let_go()
            self.control.close()
            if self.pid:
                until = time.monotonic() + LONGEST_END_S
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGTERM)
                while not process_has_ended(self.pid) and time.monotonic() < until:
                    time.sleep(0.005)
                kill_group(self.pid)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(self.pid, 0)
                self.stderr.close()
            shutil.rmtree(self.folder, ignore_errors=True)
            self.pid = None

    def surroundings(self) -> dict[str, Any]:
        """This process's folder, ``sys.path`` (where a program may have put a Path, which Python
        passes over) and environment, as far as a judge is to have it."""
        path = [folder for folder in sys.path if isinstance(folder, str)]
        environ = environment.for_judge(environment.FORKABLE)
        return {"cwd": os.getcwd(), "path": path, "environ": environ}

    def put(self, question: Question, files: Mapping[str, int]) -> socket.socket:
        """Put a question, with files for its child. Its answer, the parts of an ``Ended``, comes on
        this socket: the end alone, if who was to answer has ended."""
        text = json.dumps({**self.surroundings(), **question, "files": list(files)}).encode()
        ours, theirs = socket.socketpair()
        with theirs, contextlib.suppress(OSError):
            socket.send_fds(self.control, [b"?"], [theirs.fileno(), *files.values()])
        with contextlib.suppress(OSError):
            ours.sendall(len(text).to_bytes(8, "big") + text)
        return ours

    def prepare(self, call: str, warmup: Warmup, ahead: Ahead | None = None) -> None:
        """Have it prepare itself for such questions, without a wait. Before that it starts an
        interpreter for the script the first writes. Raises OSError when no process can be made."""
        self.start()
        if ahead is not None:
            with contextlib.suppress(OSError):  # who needs it starts one
                self.standby = self.start_standby(*ahead)
        # a server that has ended is found out by the next question
        self.put({"call": call, "warmup": asdict(warmup), "argument": None}, {}).close()

    def take_standby(self) -> Standby | None:
        standby, self.standby = self.standby, None
        return standby

    def start_standby(self, modules: Sequence[str], env: Mapping[str, str]) -> Standby:
        """An interpreter started by it: the one that was started ahead, once. Raises OSError."""
        self.start()
        if (standby := self.take_standby()) is not None:
            return standby
        stdin, order = os.pipe()
        env = {**env, "PYTHONHASHSEED": str(int.from_bytes(os.urandom(3)) + 1)}
        question = {
            "call": f"{SERVER}:become", "argument": {"modules": list(modules), "env": env},
            "warmup": None, "program": True, "seconds": LONGEST_WAIT_S, "memory_bytes": None,
        }  # fmt: skip
        try:
            return Standby(self.put(question, {"stdin": stdin}), order)
        finally:
            os.close(stdin)

    def ask(self, request: Request) -> Asked:
        """Have a child of it do it. Raises OSError when no process can be made."""
        self.start()
        call, argument, files = request.call, dict(request.argument), dict[str, int]()
        if request.argv:
            call, argument = f"{SERVER}:run", {
                "argv": request.argv, "fresh": request.fork is None, "nice": request.nice,
                "one_thread": request.one_thread, "recompiled": request.recompiled,
            }  # fmt: skip
        if request.stream is not None:
            files["stream"] = request.stream
        standby = self.take_standby() if request.asks else None
        if standby is not None:
            files |= {"standby": standby.answer.fileno(), "order": standby.order}
        question = {
            "call": call, "argument": argument, "warmup": request.fork and asdict(request.fork),
            "seconds": request.seconds, "memory_bytes": request.memory_bytes,
            "interrupts": request.interrupts, "program": bool(request.argv), "asks": request.asks,
            "one_thread": request.one_thread,
        }  # fmt: skip
        until = time.monotonic() + request.deadline.left(SERVER_START_LIMIT_S + request.seconds)
        asked = Asked(self.put(question, files), until + LATE_ANSWER_S, self)
        if standby is not None:
            standby.let_go()
        return asked

    def last_words(self) -> str:
        with contextlib.suppress(ValueError, AttributeError):  # ended by another thread; not ours
            return last_line(end_of(self.stderr, 2000))
        return ""


class Scripts(Server):
    """A server whose forks run scripts while the code under them changes: of watch, a worker of a
    cluster, pytest. What it imports is chosen before it starts, and nothing of the code that is
    judged is in it. Its scripts have the environment of an interpreter that was just started, not
    of whoever asks; a thread hears each answer, and a run it loses says so in its ``Ended``."""

    def __init__(self, preload: Warmup, state: Path | None = None, *, is_anew: bool = False) -> None:
        """``state`` is the folder for scratch files and compiled kernels; one of its own without
        it. ``is_anew``: that of another, for what is asked anew. Raises OSError."""
        self.own_state = None if state else leftovers.make_temporary_folder("scripts")
        self.preload, self.state = preload, state or self.own_state or Path()
        self.is_anew = is_anew
        self.anew: Scripts | None = None
        super().__init__(self.state / "scratch" / ("anew" if is_anew else ""))
        self.loaded: Future[Ended] = Future()
        self.start()

    def start(self) -> Self:
        with self.lock:
            before = self.pid
            super().start()
            if self.pid != before:
                request = Request(call=f"{SERVER}:loaded", fork=self.preload, seconds=60.0)
                self.loaded = self.submit(request)
        return self

    def surroundings(self) -> dict[str, Any]:
        kernels = os.environ.get(CACHE_VARIABLE, str(self.state / "kernels"))
        rules = (environment.NO_CACHED_GRAPHS, environment.FORKABLE)
        environ = environment.for_judge(*rules, {CACHE_VARIABLE: kernels})
        return {"cwd": os.curdir, "path": None, "environ": environ}

    def submit(self, request: Request) -> Asked:
        fork = None if request.fork is None else self.preload
        if request.anew and fork is not None:
            with self.lock:
                self.anew = self.anew or Scripts(self.preload, self.state, is_anew=True)
            return self.anew.submit(replace(request, anew=False))
        one_thread = request.one_thread or (fork is not None and not self.is_anew)
        return self.ask(replace(request, fork=fork, one_thread=one_thread)).read_in_a_thread()

    def run(self, request: Request) -> Ended:
        """Run a script, and wait for its end; one whose server died under it runs once more, in an
        interpreter of its own."""
        ended = self.submit(request).result()
        return self.submit(replace(request, fork=None)).result() if ended.lost else ended

    def refresh(self) -> Sequence[str]:
        """End a server that would run old code; the files by whose change it is old."""
        self.let_go()
        loaded = self.loaded.result().value or {} if self.loaded.done() else {}
        now = fingerprints(list(loaded))
        changed = tuple(path for path, before in loaded.items() if now.get(path) != before)
        if changed:
            self.end()
            self.start()
        return changed

    def let_go(self) -> None:
        """End the server that was started for what is asked anew."""
        with self.lock:
            anew, self.anew = self.anew, None
        if anew is not None:
            anew.close()

    def close(self) -> None:
        self.let_go()
        self.end()
        if self.own_state is not None:
            shutil.rmtree(self.own_state, ignore_errors=True)


class Pool(Protocol):
    """What the daemon needs of ``Scripts``; tests have a scripted one."""

    def submit(self, request: Request) -> Future[Ended]: ...
    def refresh(self) -> Sequence[str]: ...
    def let_go(self) -> None: ...
    def close(self) -> None: ...


def preload_for(backends: Iterable[str], *, forks: bool) -> Warmup:
    """What a server for repros of these backends has to import: inductor only where one needs it,
    nothing if it is not to fork. ``MINIDBG__WATCH_PRELOAD=none``: for scripts without torch."""
    if not forks or os.environ.get("MINIDBG__WATCH_PRELOAD") == "none":
        return Warmup()
    modules = ("torch", "safetensors.torch", "minidbg.judge.script", "minidbg.core.script_header")
    return Warmup(warm="inductor" if "inductor" in backends else "aot", modules=modules)


# ---- the server of this process


def start_server() -> Server:
    """The server of this process; a new one waits for what it is to prepare. Raises OSError."""
    return SERVERS.setdefault(os.getpid(), Server()).start()


def prepared() -> tuple[float, ...]:
    """Seconds of imports and of the warm-up of this process's server, as it last said."""
    server = SERVERS.get(os.getpid())
    return server.prepared if server is not None else (0.0, 0.0)


def submit(request: Request) -> Future[Ended]:
    """Have a child of this process do it. A program in its own interpreter is waited for here: the
    future is done. A question that is not for a fork of this process's server has a server that
    nobody has asked or warmed up before."""
    if request.fork is not None:
        return start_server().ask(request)
    if request.call:
        server = Server()
        asked: Future[Ended] = server.ask(replace(request, fork=Warmup()))
        asked.add_done_callback(lambda _: server.end())
        return asked
    asked = Future()
    with tempfile.TemporaryDirectory(prefix="minidbg-run-") as folder:
        asked.set_result(run_python(
            request.argv, seconds=request.seconds, memory_bytes=request.memory_bytes,
            cwd=folder, env=request.env,
        ))  # fmt: skip
    return asked


def inherit(files: Mapping[str, int], folder: Path, prepared: Iterable[float]) -> None:
    """In a child that may ask: its server, by the socket among ``files``, is this process's too."""
    server = SERVERS[os.getpid()] = Server()
    server.prepared = (*prepared,)
    server.pid, server.folder, server.control = 0, folder, socket.socket(fileno=files["control"])
    if "standby" in files:
        server.standby = Standby(socket.socket(fileno=files["standby"]), files["order"])


@atexit.register
def end_server() -> None:
    """End this process's server, if it has one, and whatever it is asked."""
    if (server := SERVERS.pop(os.getpid(), None)) is not None:
        server.end()
