"""A forked child answers, dies or hangs; the parent gets its answer or learns how it ended, and nothing is left."""

from __future__ import annotations

import logging
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch._inductor.config  # a child's first act sets an option of it, and takes seconds where it has to import it
from support.command_line import python

from minidbg.workers import Ended, call_in_fork
from minidbg.workers.fork import Notes


def hang() -> None:
    while True:
        time.sleep(0.01)


def gone_within(seconds: float, pid: int) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("value", [None, 3, "text", [1, {"a": None}], {"list": [0.5]}])
def test_answer_comes_back(value: Any) -> None:
    done = call_in_fork(lambda: value, seconds=30)
    assert done.answered
    assert done.value == value
    assert (done.exit_status, done.signal, done.error) == (0, None, "")


def test_large_answer_comes_whole() -> None:
    done = call_in_fork(lambda: "x" * 30_000_000, seconds=60)
    assert len(done.value) == 30_000_000


def test_child_sees_live_objects_and_the_parent_keeps_its_own() -> None:
    tensor, changed = torch.ones(3), []

    def change() -> float:
        tensor.add_(1)
        changed.append(True)
        return float(tensor.sum())

    assert call_in_fork(change, seconds=30).value == 6.0
    assert float(tensor.sum()) == 3.0
    assert changed == []


def test_exception_is_told_with_its_traceback() -> None:
    def fails() -> None:
        raise ValueError("no such thing")

    done = call_in_fork(fails, seconds=30)
    assert not done.answered
    assert "in fails" in done.error
    assert done.error.endswith("ValueError: no such thing\n")


def test_answer_that_json_cannot_hold_is_an_error() -> None:
    assert "TypeError" in call_in_fork(lambda: object(), seconds=30).error


@pytest.mark.parametrize("how", [sys.exit, lambda: (_ for _ in ()).throw(KeyboardInterrupt)])
def test_child_never_returns_into_the_parents_code(how: Any) -> None:
    parent = os.getpid()
    done = call_in_fork(how, seconds=30)
    assert os.getpid() == parent
    assert not done.answered


@pytest.mark.parametrize("status", [0, 7])
def test_silent_exit_is_no_answer(status: int) -> None:
    done = call_in_fork(lambda: os._exit(status), seconds=30)
    assert (done.answered, done.exit_status, done.signal) == (False, status, None)


@pytest.mark.parametrize("name", ["SIGABRT", "SIGKILL", "SIGTERM", "SIGFPE", "SIGILL", "SIGBUS"])
def test_signal_is_told(name: str) -> None:
    number = signal.Signals[name]
    assert call_in_fork(lambda: os.kill(os.getpid(), number), seconds=30).signal == number


def test_death_in_the_midst_of_an_answer_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def write_some(descriptor: int, data: Any) -> int:
        real(descriptor, bytes(data)[:20])
        os._exit(0)

    monkeypatch.setattr(os, "write", write_some)
    assert not call_in_fork(lambda: "x" * 100, seconds=30).answered


def hang_in_c_code_that_holds_the_gil() -> None:
    re.match(r"(a+)+b", "a" * 64)


@pytest.mark.parametrize(
    ("hangs", "place", "limit"), [(hang, "in hang", 3), (hang_in_c_code_that_holds_the_gil, "in match", 4)]
)
def test_hang_is_ended_at_the_limit_and_shows_its_stack(hangs: Any, place: str, limit: float) -> None:
    done = call_in_fork(hangs, seconds=0.5)
    assert done.timed_out
    assert place in done.stderr_tail
    assert 0.5 <= done.seconds < limit


def test_memory_of_the_parent_does_not_count() -> None:
    held = bytearray(os.urandom(1) * (300 << 20))
    reads = lambda: [sum(held[:: 1 << 20]) is None, time.sleep(0.3)]  # noqa: E731
    assert call_in_fork(reads, seconds=60, memory_bytes=64 << 20).answered


def test_interrupt_of_the_parent_ends_the_child_and_passes(tmp_path: Path) -> None:
    def says_who_it_is() -> None:
        (tmp_path / "pid").write_text(str(os.getpid()))
        hang()

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            call_in_fork(says_who_it_is, seconds=60)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert gone_within(5, int((tmp_path / "pid").read_text()))


@pytest.mark.slow
def test_child_dies_with_its_parent(tmp_path: Path) -> None:
    program = textwrap.dedent(
        f"""
        import os, time
        from minidbg.workers import call_in_fork
        def child():
            open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
            time.sleep(300)
        call_in_fork(child, seconds=300)
        """
    )
    parent = subprocess.Popen([sys.executable, "-c", program])
    try:
        until = time.monotonic() + 100
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        parent.kill()
        parent.wait()
    assert gone_within(5, int((tmp_path / "pid").read_text()))


@pytest.mark.slow
def test_nothing_of_the_parent_is_flushed_or_run_twice(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import atexit, gc, sys
        from minidbg.workers import call_in_fork
        atexit.register(lambda: print("at exit"))
        print("before")
        gc.disable()
        class Holder:
            def __del__(self):
                open(sys.argv[1], "a").write("finalised ")
        holder = Holder()
        holder.itself = holder
        del holder
        def child():
            print("in the child")
            sys.stdout.flush()
            gc.collect()
            return 1
        assert call_in_fork(child, seconds=60).value == 1
        gc.collect()
        """
    )
    log = tmp_path / "log"
    done = python("-c", program, log, check=True)
    assert done.stdout == "before\nat exit\n"
    assert log.read_text() == "finalised "


def test_what_the_child_writes_is_kept_apart_and_only_its_end() -> None:
    def talks() -> None:
        for number in range(40_000):
            print(f"line {number}")
        os.write(2, b"the end\n")

    done = call_in_fork(talks, seconds=60)
    assert done.stderr_tail.endswith("line 39999\nthe end\n")
    assert len(done.stderr_tail) <= 64 * 1024


def test_log_of_the_program_is_not_written_by_the_child(tmp_path: Path) -> None:
    handler = logging.FileHandler(tmp_path / "log")
    logger = logging.getLogger("a.program")
    logger.addHandler(handler)
    try:
        done = call_in_fork(lambda: logger.warning("from the child"), seconds=30)
        logger.warning("from the parent")
    finally:
        logger.removeHandler(handler)
        handler.close()
    assert (tmp_path / "log").read_text() == "from the parent\n"
    assert "from the child" in done.stderr_tail


def test_handlers_of_the_program_do_not_run_in_the_child() -> None:
    called: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: called.append(number))
    try:
        done = call_in_fork(lambda: (os.kill(os.getpid(), signal.SIGTERM), time.sleep(5)), seconds=30)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert done.signal == signal.SIGTERM
    assert done.seconds < 3


def test_stdin_is_empty_and_no_core_file_is_written() -> None:
    assert call_in_fork(lambda: sys.stdin.read(), seconds=30).value == ""
    assert call_in_fork(lambda: list(resource.getrlimit(resource.RLIMIT_CORE)), seconds=30).value[0] == 0


def test_child_has_one_torch_thread_and_the_parent_keeps_its_own() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert call_in_fork(torch.get_num_threads, seconds=30).value == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_program_that_ignores_the_end_of_its_children_gets_its_answer() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert call_in_fork(lambda: 1, seconds=30).value == 1
        done = call_in_fork(os.abort, seconds=30)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert not done.answered
    assert "Fatal Python error: Aborted" in done.stderr_tail


def test_signals_that_the_program_blocks_are_not_blocked_in_the_child() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGABRT})
    try:
        assert call_in_fork(hang, seconds=1).stderr_tail.count("in hang") == 1
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) >= {signal.SIGTERM, signal.SIGABRT}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_last_note_outlives_the_child() -> None:
    note = Notes()

    def dies() -> None:
        note("compile forward")
        note("runtime backward, a longer text")
        note("short")
        os.kill(os.getpid(), signal.SIGKILL)

    assert call_in_fork(dies, seconds=30, note=note).note == "short"
    note("x" * 10_000)
    assert note.last() == "x" * 255


def test_warning_on_fork_does_not_become_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fork

    def fork_that_warns() -> int:
        warnings.warn("this process is multi-threaded", DeprecationWarning, stacklevel=2)
        return real()

    monkeypatch.setattr(os, "fork", fork_that_warns)
    assert call_in_fork(lambda: 1, seconds=30).value == 1


def test_works_from_another_thread() -> None:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(call_in_fork(lambda: 1, seconds=30).value))
    thread.start()
    thread.join()
    assert answers == [1]


@pytest.mark.slow
def test_fifty_calls_leave_no_process_and_no_descriptor() -> None:
    for number in range(50):
        call_in_fork([lambda: 1, lambda: os._exit(3), lambda: os.abort()][number % 3], seconds=30)


def test_no_descriptor_left_is_an_os_error_and_leaks_nothing() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 1, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            call_in_fork(lambda: 1, seconds=30)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_child_forked_by_one_thread_compiles_while_another_thread_does() -> None:
    """As two questions at once do inside a compile: the program's own thread holds dynamo's lock, and no child has that thread."""
    import torch._dynamo.convert_frame as convert_frame

    def compiled() -> float:
        return float(torch.compile(torch.neg, backend="eager")(torch.ones(1)))

    answers: list[Ended] = []
    with convert_frame.compile_lock:
        asker = threading.Thread(target=lambda: answers.append(call_in_fork(compiled, seconds=20.0)))
        asker.start()
        asker.join()
    assert answers[0].value == -1.0, answers[0]
