"""The server: one loop that forks. What it imports is prepared before each fork; a supervisor is
forked for each question (``client.Question``), runs it in a child and answers.

Who may ask has a control socket: the process that started the server, and each child whose question
wants that. So several questions may be under way at once, from several processes and threads. An
asker who writes a byte, closes the socket or dies ends its question.

The server runs no thread. It ends with the control socket of who started it; what it runs ends with
it, however it ends. A supervisor that is killed loses its question alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import json
import os
import pkgutil
import select
import shutil
import signal
import site
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

from minidbg.core import environment
from minidbg.core.errors import Terminated
from minidbg.workers import client, family
from minidbg.workers.child import PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG, Ended, die_with_parent, prctl
from minidbg.workers.client import SERVER_START_LIMIT_S, Question
from minidbg.workers.entry import ENTRY, LOADED, fingerprints, freezing_imports, loaded_files, run_script
from minidbg.workers.fork import Notes, call_in_fork

MOST_FILES = 8
LAST_CHILDREN_S = 5.0
GRACE_S = 2.0
"""For an orphan to end by itself: a server of the child's own removes its folder."""


def take(files: list[int], askers: list[socket.socket], home: str, owner: int) -> None:
    """Hear one question on the first of ``files``, get ready what it wants, fork its supervisor."""
    with socket.socket(fileno=files.pop(0)) as answer:
        try:
            question = heard(answer)
            if question is None:
                return
            get_ready(question, owner)
            if question["argument"] is None:
                return
            names = question["files"]
            if question.get("asks"):
                ours, theirs = socket.socketpair()
                askers.append(ours)
                files.append(theirs.detach())
                names = [*names, "control"]
            server = os.getpid()
            if os.fork() == 0:
                for asker in askers:
                    asker.close()
                supervise(question, answer, dict(zip(names, files, strict=True)), home, server)
        except Exception as error:  # noqa: BLE001 - no process, say: the next may fare better
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


def end_all(members: Callable[[int], list[int]], grace: float = LAST_CHILDREN_S) -> None:
    """End the ``members`` of this process, by force once ``grace`` seconds are over, and wait for
    its children's ends."""
    began = time.monotonic()
    with contextlib.suppress(ChildProcessError):  # none left
        while (now := time.monotonic()) < began + LAST_CHILDREN_S:
            for pid in set(members(os.getpid())) - {os.getpid()}:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM if now < began + grace else signal.SIGKILL)
            if not os.waitpid(-1, os.WNOHANG)[0]:
                time.sleep(0.002)


def supervise(
    question: Question, answer: socket.socket, files: dict[str, int], home: str, server: int
) -> NoReturn:
    """Run the question in a child, answer, and end. It ends with its asker or the server."""
    text, folder = b"", None
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, on_sigterm)
        die_with_parent(signal.SIGTERM, server)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        function, note = pkgutil.resolve_name(question["call"]), Notes()
        program = question["program"]
        argument = {**question["argument"], "stream": files.get("stream")}
        if program or question["asks"]:
            folder = f"{home}/child-{os.getpid()}"
            os.mkdir(folder, 0o700)

        def call() -> Any:
            if "control" in files and folder is not None:
                client.inherit(files, Path(folder), READY_S)
            return function({**argument, "folder": folder} if program else argument, note)

        ended = call_in_fork(
            call,
            seconds=question["seconds"],
            memory_bytes=question["memory_bytes"],
            note=note,
            interrupts=question.get("interrupts", False),
            asker=answer,
            program=program,
            execs=argument.get("fresh", False),
            stdin=files.get("stdin"),
        )
        if program and folder is not None:
            with contextlib.suppress(OSError, ValueError):  # it died before it could say
                loaded = json.loads(Path(folder, LOADED).read_text())
                ended = dataclasses.replace(ended, files=loaded)
            ended = dataclasses.replace(ended, stderr_tail=ended.stderr_tail + ended.error)
        text = json.dumps({**dataclasses.asdict(ended), "prepared": READY_S}).encode()
    except (KeyboardInterrupt, Terminated):
        pass
    except BaseException as error:  # noqa: BLE001 - nothing may return into the server's loop
        text = ended_by(error)
    try:
        with contextlib.suppress(BaseException):
            end_all(family.descendants, GRACE_S)  # orphans: given to who supervised their parent
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        answer.sendall(text)
    finally:
        os._exit(0)


# ---- what it has and does before it forks


WARMED: set[str] = set()
"""What this server has imported or compiled."""
THREADS_OF_A_SCRIPT: list[int] = []
"""As many as torch starts where nobody has set a number: so may a script, here where it has one."""
READY_S = [0.0, 0.0]
"""Seconds that it has taken for imports and for the warm-up."""


def get_ready(question: Question, owner: int) -> None:
    """Have the asker's surroundings. Import and compile here, once, what a child would have to."""
    os.environ.clear()
    os.environ.update(question["environ"])
    os.environ.update(environment.ONE_THREAD if question.get("one_thread") else {})
    sys.path[:] = question["path"] or sys.path
    with contextlib.suppress(OSError):
        os.chdir(question["cwd"])
    if (warmup := question["warmup"]) is None:  # an interpreter of its own
        return
    signal.alarm(int(SERVER_START_LIMIT_S))  # an import that hangs ends the server; the asker hears
    # only now: it would come too when the thread that has started the server ends
    die_with_parent(signal.SIGTERM, owner)
    began = time.monotonic()
    with freezing_imports():
        for name in warmup["modules"]:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        importlib.import_module(question["call"].partition(":")[0])
    READY_S[0] += (imported := time.monotonic()) - began
    if "torch" in sys.modules:
        warm_up(warmup["imports"], warmup["warm"])
    READY_S[1] += time.monotonic() - imported
    signal.alarm(0)
    prctl(PR_SET_PDEATHSIG, 0)


def warm_up(imports: Sequence[str], warm: str) -> None:
    from minidbg import torch_internals  # late: a server for scripts may be where no torch is

    if not THREADS_OF_A_SCRIPT:
        THREADS_OF_A_SCRIPT.append(sys.modules["torch"].get_num_threads())
    for name in imports:
        if name not in WARMED and name not in sys.modules:
            WARMED.add(name)
            if starts_nothing(name):
                with contextlib.suppress(Exception):  # the child will meet what it raises
                    importlib.import_module(name)
    if warm and not {warm, "inductor"} & WARMED:
        WARMED.add(warm)
        if warm == "imports":
            torch_internals.import_for_compiling(inductor=False)
        else:
            torch_internals.warm_up_compiling(warm)


def starts_nothing(module: str) -> bool:
    """Whether the import of ``module``, tried in a child, starts no thread and leaves accelerators
    to forks of the child; not where nobody says which threads there are."""
    from minidbg.torch_internals import devices

    def imported() -> bool:
        threads = os.listdir("/proc/self/task")
        importlib.import_module(module)
        if os.listdir("/proc/self/task") != threads or devices.in_use() is not None:
            return False
        kinds, torch = devices.present(), sys.modules["torch"]
        limit = SERVER_START_LIMIT_S / 8

        def use() -> float:
            return float(torch.ones(1, device=kinds[0]).sum())

        return not kinds or call_in_fork(use, seconds=limit).answered

    return call_in_fork(imported, seconds=SERVER_START_LIMIT_S / 4).value is True


# ---- in the child: what its question calls


def run(argument: Mapping[str, Any], note: object) -> NoReturn:
    """Become the run of a script, whose exit status is this process's: see ``Server.ask``."""
    os.environ["TMPDIR"] = argument["folder"]
    tempfile.tempdir = None
    os.nice(argument["nice"])
    os.chdir(argument["folder"])
    if argument["fresh"]:
        order = Path("order.json")
        order.write_text(json.dumps(argument) + "\n")
        os.dup2(os.open(order, os.O_RDONLY), 0)
        os.execv(sys.executable, [sys.executable, "-P", "-X", "faulthandler", ENTRY])
    if "torch" in sys.modules:
        from minidbg import torch_internals

        torch_internals.one_thread_after_fork()
        if not argument["one_thread"]:
            sys.modules["torch"].set_num_threads(THREADS_OF_A_SCRIPT[0])
    status = run_script(argument, after=next(reversed(sys.modules)))
    with contextlib.suppress(BaseException):  # anything may be there, and we end in any case
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def loaded(argument: Mapping[str, Any], note: object) -> dict[str, list[int]]:
    return fingerprints([*loaded_files(), *site.getsitepackages()])


def become(argument: Mapping[str, Any], note: object) -> NoReturn:
    os.chdir(argument["folder"])
    command = [sys.executable, "-P", "-X", "faulthandler", ENTRY, *argument["modules"]]
    os.execve(sys.executable, command, dict(argument["env"]))


def main(control: str, folder: str, owner: str, *doors: str) -> NoReturn:
    """Answer questions, of who has the ``control`` socket or comes to a door, until process
    ``owner`` has gone. ``folder`` is for folders of children."""
    for stream in (sys.stdout, sys.stderr):  # a child has none of what the server has written
        cast(io.TextIOWrapper, stream).reconfigure(line_buffering=True, errors="backslashreplace")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the asker's, who tells the supervisors
    try:
        signal.signal(signal.SIGTERM, on_sigterm)
        askers = [socket.socket(fileno=int(number)) for number in (control, *doors)]
        own, *open_doors = askers
        while own in askers:
            # Not SIG_IGN, which the children's C++ compilers would inherit: supervisors are reaped.
            readable, _, _ = select.select(askers, [], [], 1.0)
            with contextlib.suppress(ChildProcessError):
                while pid := os.waitpid(-1, os.WNOHANG)[0]:
                    shutil.rmtree(f"{folder}/child-{pid}", ignore_errors=True)  # it may be killed
            for asker in readable:
                if asker in open_doors:
                    askers.append(asker.accept()[0])
                    continue
                files: list[int] = []
                with contextlib.suppress(ConnectionError):
                    files = socket.recv_fds(asker, 1, MOST_FILES)[1]
                if files:
                    take(files, askers, folder, int(owner))
                else:  # a child that asked has ended, or who started us
                    askers.remove(asker)
                    asker.close()
    except Terminated:
        pass
    except BaseException:  # noqa: BLE001 - its last words
        traceback.print_exc()
    finally:
        end_all(family.children_of)  # supervisors, which end what is still asked
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)  # Python's own end would look through all of torch for a quarter of a second
