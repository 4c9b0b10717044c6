"""Each way in which a question, who asks, who supervises and who answers can end, through ``submit``.

A row runs in a fork of this process's server, and says what it wants to see; nothing may be left behind.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from minidbg import workers
from minidbg.core.machine import Deadline
from minidbg.workers import Request, Warmup

FORK = Warmup(warm="imports")
LONG_S = 300


@pytest.fixture(autouse=True)
def _importable_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def request(name: str, **argument: Any) -> Request:
    return Request(call=f"{Path(__file__).stem}:{name}", argument=argument, seconds=60, fork=FORK)


def eventually(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    until = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < until:
        time.sleep(0.01)
    return value


def pid_in(file: Path) -> int:
    assert eventually(lambda: file.exists() and file.read_text()), "it did not begin"
    return int(file.read_text())


def has_gone(*pids: int) -> bool:
    return bool(eventually(lambda: not any(map(psutil.pid_exists, pids))))


# ---- what is asked: in the child


def echoes(argument: Mapping[str, Any], note: Any) -> Any:
    note("heard")
    return argument["value"]


def ends(argument: Mapping[str, Any], note: Any) -> Any:
    match argument["how"]:
        case "a long answer":
            return "x" * 30_000_000
        case "no JSON":
            return object()
        case "an exit":
            sys.exit(3)
        case "an interrupt of its own":
            raise KeyboardInterrupt
        case "in the midst of its answer":
            real = os.write
            os.write = lambda stream, data: (real(stream, bytes(data)[:20]), os._exit(0))  # type: ignore[assignment]
            return "x" * 100
    os._exit(0)


def crashes(argument: Mapping[str, Any], note: Any) -> None:
    note("about to")
    ctypes.string_at(0)


def hangs(argument: Mapping[str, Any], note: Any) -> str:
    """The first Ctrl-C is an answer where it lets SIGINT in."""
    if argument.get("interruptible"):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    note("asleep")
    draft = Path(argument["pid"] + ".draft")
    draft.write_text(str(os.getpid()))
    draft.rename(argument["pid"])
    try:
        time.sleep(LONG_S)
    except KeyboardInterrupt:
        return "interrupted"
    return "slept"


def asks(argument: Mapping[str, Any], note: Any) -> Any:
    """A reduction: it asks the server that forked it, two at once."""
    pair = [workers.submit(Request(**{**one, "fork": FORK})) for one in argument["questions"]]
    done = [one.result() for one in pair]
    folder = workers.start_server().folder
    return [[one.value, one.signal, one.timed_out] for one in done] + [os.getppid(), str(folder)]


def writes(argument: Mapping[str, Any], note: Any) -> None:
    os.write(argument["stream"], b"progress")


def asked_of_a_child(*questions: Request, **limits: Any) -> Request:
    plain = [{"call": one.call, "argument": dict(one.argument), "seconds": one.seconds} for one in questions]
    return replace(request("asks", questions=plain), asks=True, **limits)


# ---- rows: how it ends, and what is seen of it


def is_answered(folder: Path) -> None:
    ended = workers.submit(request("echoes", value={"a": 1})).result()
    assert (ended.value, ended.answered, ended.note) == ({"a": 1}, True, "heard")


def answers_at_length(folder: Path) -> None:
    assert len(workers.submit(request("ends", how="a long answer")).result().value) == 30_000_000


def has_no_answer(folder: Path) -> None:
    """It never returns into the server's code."""
    for how, error in {
        "no JSON": "TypeError", "an exit": "SystemExit: 3", "an interrupt of its own": "KeyboardInterrupt",
        "in the midst of its answer": "", "without a word": "",
    }.items():  # fmt: skip
        ended = workers.submit(request("ends", how=how)).result()
        assert (ended.answered, error in ended.error) == (False, True), how
    is_answered(folder)


def is_not_there(folder: Path) -> None:
    assert "no_such_function" in workers.submit(request("no_such_function")).result().error


def is_in_no_module(folder: Path) -> None:
    """An exception in a preparation is answered, and the server is there for the next."""
    server = workers.start_server().pid
    ended = workers.submit(replace(request("echoes"), call="no_such_module:here")).result()
    assert "No module named 'no_such_module'" in ended.error
    is_answered(folder)
    assert workers.start_server().pid == server


def passes_its_time(folder: Path) -> None:
    ended = workers.submit(replace(request("hangs", pid=str(folder / "pid")), seconds=4)).result()
    assert (ended.timed_out, ended.note) == (True, "asleep")
    assert "in hangs" in ended.stderr_tail
    assert has_gone(pid_in(folder / "pid"))
    is_answered(folder)


def is_cut_off_by_its_deadline(folder: Path) -> None:
    server = workers.start_server().pid
    late = replace(request("hangs", pid=str(folder / "pid")), seconds=3, deadline=Deadline.after(3.0))
    assert workers.submit(late).result().timed_out
    assert workers.start_server().pid == server


def is_cancelled(folder: Path) -> None:
    asked = workers.submit(request("hangs", pid=str(folder / "pid")))
    pid = pid_in(folder / "pid")
    assert asked.cancel()
    assert has_gone(pid)


def is_interrupted(folder: Path) -> None:
    asked = workers.start_server().ask(request("hangs", pid=str(folder / "pid")))
    pid = pid_in(folder / "pid")
    with_a_signal(signal.SIGINT, KeyboardInterrupt, asked.result)
    assert has_gone(pid)


def is_cut_off_by_a_handler_of_the_askers_own(folder: Path) -> None:
    """One of SIGALRM mostly raises TimeoutError, which a socket raises too when its own time is up."""

    def out_of_time(*_: object) -> None:
        raise TimeoutError("the program's own limit")

    asked = workers.start_server().ask(request("hangs", pid=str(folder / "pid")))
    pid, before = pid_in(folder / "pid"), signal.signal(signal.SIGUSR1, out_of_time)
    try:
        with_a_signal(signal.SIGUSR1, TimeoutError, asked.result)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert has_gone(pid)


def hears_the_first_interrupt(folder: Path) -> None:
    question = replace(request("hangs", pid=str(folder / "pid"), interruptible=True), interrupts=True)
    asked = workers.start_server().ask(question)
    pid_in(folder / "pid")
    heard: list[str] = []
    ended = with_a_signal(
        signal.SIGINT, None, lambda: asked.result(on_interrupt=lambda: heard.append("heard"))
    )
    assert (ended.value, heard) == ("interrupted", ["heard"])


def with_a_signal(number: int, error: type[BaseException] | None, wait: Callable[[], Any]) -> Any:
    timer = threading.Timer(0.2, signal.pthread_kill, (threading.get_ident(), number))
    timer.start()
    try:
        if error is None:
            return wait()
        with pytest.raises(error):
            wait()
    finally:
        timer.join()


def asks_two_at_once_of_which_one_crashes(folder: Path) -> None:
    ended = workers.submit(asked_of_a_child(request("crashes"), request("echoes", value=2))).result()
    crashed, echoed, _, own_folder = ended.value
    assert (crashed[1], echoed[0]) == (signal.SIGSEGV, 2)
    assert eventually(lambda: not Path(own_folder).exists()), "the folder of who asked stays"


def is_killed_while_its_question_hangs(folder: Path) -> None:
    asked = workers.submit(asked_of_a_child(request("hangs", pid=str(folder / "pid"))))
    question = pid_in(folder / "pid")
    reduction = who_asks(question)
    os.kill(reduction, signal.SIGKILL)
    assert asked.result().signal == signal.SIGKILL
    assert has_gone(question)


def who_asks(question: int) -> int:
    """The other child of a supervisor."""
    supervisors = psutil.Process(workers.start_server().pid).children()
    children = [child.pid for one in supervisors for child in one.children()]
    (asker,) = set(children) - {question}
    return asker


def passes_its_time_while_its_question_hangs(folder: Path) -> None:
    late = replace(asked_of_a_child(request("hangs", pid=str(folder / "pid"))), seconds=5)
    assert workers.submit(late).result().timed_out
    assert has_gone(pid_in(folder / "pid"))


def loses_its_supervisor(folder: Path) -> None:
    """That question alone is lost."""
    with ThreadPoolExecutor(1) as pool:
        lost = pool.submit(lambda: workers.submit(request("hangs", pid=str(folder / "one"))).result())
        other = workers.submit(replace(request("hangs", pid=str(folder / "other")), seconds=8))
        one = pid_in(folder / "one")
        pid_in(folder / "other")
        psutil.Process(one).parent().kill()
        with pytest.raises(OSError, match="was ended from outside"):
            lost.result(timeout=60)
        assert other.result().timed_out
    assert has_gone(one)
    is_answered(folder)


def loses_the_supervisor_of_who_asks(folder: Path) -> None:
    """What it has written for its questions is removed, though the server goes on."""
    asked = workers.submit(asked_of_a_child(request("hangs", pid=str(folder / "pid"))))
    question = pid_in(folder / "pid")
    psutil.Process(who_asks(question)).parent().kill()
    with pytest.raises(OSError, match="was ended from outside"):
        asked.result()
    values = workers.start_server().folder
    assert eventually(lambda: not [*values.glob("child-*")])
    assert has_gone(question)


def loses_its_server(folder: Path) -> None:
    asked = workers.submit(request("hangs", pid=str(folder / "pid")))
    pid = pid_in(folder / "pid")
    os.kill(workers.start_server().pid, signal.SIGKILL)
    with pytest.raises(OSError, match="was ended from outside"):
        asked.result()
    assert has_gone(pid)
    is_answered(folder)


PROGRAM = """
import sys
from minidbg import workers
sys.path.insert(0, sys.argv[1])
import test_endings as here
server = workers.start_server()
print(server.pid, server.folder, flush=True)
workers.submit(here.request("hangs", pid=sys.argv[2])).result()
"""


def loses_the_program(folder: Path) -> None:
    program, server, values = started_program(folder)
    question = pid_in(folder / "pid")
    program.kill()
    program.wait()
    assert has_gone(question, server)
    assert eventually(lambda: not values.exists())


def loses_all_at_once(folder: Path) -> None:
    """Nobody is left to remove the folder: the next server does."""
    program, server, values = started_program(folder)
    family = [psutil.Process(server), *psutil.Process(server).children(recursive=True)]
    pid_in(folder / "pid")
    for one in [psutil.Process(program.pid), *family]:
        one.suspend()
    for one in [psutil.Process(program.pid), *family]:
        one.kill()
    program.wait()
    assert values.exists()
    workers.end_server()
    workers.start_server()
    assert not values.exists()


def started_program(folder: Path) -> tuple[subprocess.Popen[str], int, Path]:
    arguments = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), str(folder / "pid")]
    program = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    with program.stdout:
        server, _, values = program.stdout.readline().strip().partition(" ")
    return program, int(server), Path(values)


def sends_a_descriptor(folder: Path) -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb") as progress:
        workers.submit(replace(request("writes"), stream=write)).result()
        os.close(write)
        assert progress.read() == b"progress"


def is_a_preparation_alone(folder: Path) -> None:
    workers.start_server().prepare(request("echoes").call, FORK)
    is_answered(folder)


def has_a_server_of_its_own(folder: Path) -> None:
    """Nothing was asked of it before; it ends with the question, also where that hangs."""
    kept = workers.start_server().pid
    pair = [
        workers.submit(replace(one, fork=None))
        for one in (request("echoes", value=2), replace(request("hangs", pid=str(folder / "pid")), seconds=2))
    ]
    answered, hung = (one.result() for one in pair)
    assert (answered.value, answered.note, hung.timed_out, hung.note) == (2, "heard", True, "asleep")
    assert [child.pid for child in psutil.Process().children()] == [kept]


ENDINGS = (
    is_answered, answers_at_length, has_no_answer, is_not_there, is_in_no_module, passes_its_time,
    is_cut_off_by_its_deadline, is_cancelled, is_interrupted, is_cut_off_by_a_handler_of_the_askers_own, hears_the_first_interrupt,
    asks_two_at_once_of_which_one_crashes, is_killed_while_its_question_hangs,
    passes_its_time_while_its_question_hangs, loses_its_supervisor, loses_the_supervisor_of_who_asks, loses_its_server, loses_the_program,
    loses_all_at_once, sends_a_descriptor, is_a_preparation_alone, has_a_server_of_its_own,
)  # fmt: skip


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.__name__)
def test_an_ending(ending: Callable[[Path], None], tmp_path: Path) -> None:
    ending(tmp_path)
