"""A fresh interpreter with a time limit."""

from __future__ import annotations

import resource
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from minidbg.workers import run_python


def test_program_runs_with_its_arguments_folder_and_environment(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os, sys\nprint(sys.argv[1], os.getcwd(), os.environ['WORD'])\nsys.exit(3)\n")
    done = run_python([program, "one"], seconds=60, cwd="/", env={"WORD": "two"})
    assert (done.exit_status, done.signal, done.timed_out) == (3, None, False)
    assert done.stdout == "one / two\n"


def test_death_is_told_with_the_stack() -> None:
    done = run_python(["-c", "import ctypes; ctypes.string_at(0)"], seconds=60)
    assert (done.exit_status, done.signal) == (None, signal.SIGSEGV)
    assert "in string_at" in done.stderr_tail


@pytest.mark.parametrize("own_session", [False, True])
def test_limit_ends_the_program_and_all_it_started(own_session: bool) -> None:
    program = (
        "import subprocess, time\n"
        f"print(subprocess.Popen(['sleep', '300'], start_new_session={own_session}).pid, flush=True)\n"
        "time.sleep(300)\n"
    )
    done = run_python(["-c", program], seconds=2)
    assert done.timed_out
    assert done.seconds < 6
    assert "Fatal Python error: Aborted" in done.stderr_tail
    time.sleep(0.1)
    assert not psutil.pid_exists(int(done.stdout)) or psutil.Process(int(done.stdout)).status() == "zombie"


def test_background_process_that_holds_the_output_does_not_hold_us() -> None:
    program = "import subprocess; subprocess.Popen(['sleep', '300']); print('done')"
    done = run_python(["-c", program], seconds=60)
    assert done.stdout == "done\n"
    assert done.seconds < 30


def test_stdin_is_empty_and_the_interpreter_may_be_given() -> None:
    program = "print(repr(__import__('sys').stdin.read()))"
    assert run_python([sys.executable, "-c", program], seconds=60).stdout == "''\n"


def test_the_time_begins_when_the_program_says_so() -> None:
    program = (
        "import time\ntime.sleep(2.5)\nprint('phase compile forward', flush=True)\nprint('there', flush=True)\n"
        "time.sleep(300)"
    )
    done = run_python(["-c", program], seconds=2, begins_at="phase compile")
    assert (done.timed_out, done.stdout) == (True, "phase compile forward\nthere\n")


TAKES = "held = [b'x' * (8 << 20) for _ in range(64)]; import time; time.sleep(60)"
STARTS = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {TAKES!r}])"


@pytest.mark.parametrize("program", [TAKES, STARTS], ids=["itself", "what it started"])
@pytest.mark.parametrize("begins_at", ["", "phase compile"])
def test_a_program_that_takes_too_much_memory_is_ended(program: str, begins_at: str) -> None:
    done = run_python(["-c", program], seconds=50, memory_bytes=256 << 20, begins_at=begins_at)
    assert (done.out_of_memory, done.timed_out) == (True, False)
    assert done.seconds < 40


def test_a_program_that_dies_leaves_no_core_file_and_the_limit_of_this_process_stays() -> None:
    before = resource.getrlimit(resource.RLIMIT_CORE)
    program = "import resource; print(resource.getrlimit(resource.RLIMIT_CORE)[0])"
    assert run_python(["-c", program], seconds=60).stdout == "0\n"
    assert resource.getrlimit(resource.RLIMIT_CORE) == before
