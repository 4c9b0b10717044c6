"""Whoever runs a program, in a fork or in an interpreter of its own, for this process or for watch: it ends in the same way."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from minidbg import workers
from minidbg.workers import Ended, Request, Scripts, Warmup

slow = functools.partial(pytest.param, marks=pytest.mark.slow)
CALM = Warmup(("json",), warm="imports", modules=("torch",))
TAKES = "held = [b'x' * (8 << 20) for _ in range(64)]; import time; time.sleep(60)"
STARTS = (
    "import subprocess, time\n"
    "print(subprocess.Popen(['sleep', '300'], start_new_session={}).pid, flush=True)\n"
    "time.sleep({})"
)


def is_gone(pid: str) -> bool:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.01)
                continue
        return True
    return False


PROGRAMS: Mapping[str, tuple[str, dict[str, Any], Callable[[Ended], bool]]] = {
    "arguments, what lies beside it, an empty stdin, a status": (
        "import sys, beside; print(sys.argv[1:], __name__, beside.VALUE, repr(sys.stdin.read())); sys.exit(3)",
        {},
        lambda end: (end.exit_status, end.signal, end.stdout) == (3, None, "['--x'] __main__ 41 ''\n"),
    ),
    "an empty folder elsewhere, and no core file": (
        "import os, resource, beside\n"
        "print(os.getcwd() == os.path.dirname(beside.__file__), resource.getrlimit(resource.RLIMIT_CORE)[0])",
        {},
        lambda end: end.stdout == "False 0\n",
    ),
    "an exception": ("1 / 0", {}, lambda end: "ZeroDivisionError" in end.stderr_tail and end.exit_status in (1, 70)),
    "a death": (
        "import ctypes; ctypes.string_at(0)",
        {},
        lambda end: (end.exit_status, end.signal) == (None, signal.SIGSEGV) and "in string_at" in end.stderr_tail,
    ),
    "a hang": (
        "def stuck():\n    while True: pass\nstuck()",
        {"seconds": 1.0},
        lambda end: end.timed_out and "in stuck" in end.stderr_tail and end.seconds < 30,
    ),
    "a hang that ignores every signal it can": (
        "import signal, time\nfor s in (signal.SIGABRT, signal.SIGTERM): signal.signal(s, signal.SIG_IGN)\n"
        "while True: time.sleep(1)",
        {"seconds": 2.0},
        lambda end: (end.timed_out, end.signal) == (True, signal.SIGKILL),
    ),
    "what it started, and what holds its output": (STARTS.format(False, 0), {}, lambda end: is_gone(end.stdout)),
    "what it started in another session, when it hangs": (
        STARTS.format(True, 300),
        {"seconds": 5.0},
        lambda end: end.timed_out and is_gone(end.stdout),
    ),
    "too much memory": (
        TAKES,
        {"memory_bytes": 256 << 20},
        lambda end: (end.out_of_memory, end.timed_out) == (True, False),
    ),
    "too much memory of what it started": (
        f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {TAKES!r}])",
        {"memory_bytes": 256 << 20},
        lambda end: (end.out_of_memory, end.timed_out) == (True, False),
    ),
    "a long output": (
        "for i in range(20_000): print('line', i)", {}, lambda end: end.stdout.endswith("line 19999\n")
    ),
}  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="the servers that fork are for Linux")
@pytest.mark.parametrize(
    "way", ["fork of a pool", *map(slow, ("interpreter", "fork", "interpreter of a pool"))]
)
def test_a_program_ends_in_the_same_way_wherever_it_runs(way: str, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 41")
    with contextlib.ExitStack() as stack:
        submit: workers.Submit = workers.submit
        if "pool" in way:
            pool = stack.enter_context(contextlib.closing(Scripts(CALM, state=tmp_path)))
            submit = pool.submit
        asked = []
        for number, (text, fields, _) in enumerate(PROGRAMS.values()):
            script = tmp_path / f"script_{number}.py"
            script.write_text(text)
            given = {"argv": (str(script), "--x"), "fork": CALM if "fork" in way else None, **fields}
            asked.append(submit(Request(**given)))
        ends = [one.result() for one in asked]
    rows = zip(PROGRAMS.items(), ends, strict=True)
    assert not {name: end for (name, (_, _, is_right)), end in rows if not is_right(end)}


def test_what_is_asked_anew_is_forked_from_one_server_that_started_after_the_last_refresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    (tmp_path / "script.py").write_text("print(hash('a word'))")
    with contextlib.closing(Scripts(Warmup(), state=tmp_path)) as pool:

        def hashed(*, anew: bool) -> str:
            request = Request((str(tmp_path / "script.py"),), fork=Warmup(), anew=anew)
            return pool.submit(request).result().stdout

        first, again, warm = hashed(anew=True), hashed(anew=True), hashed(anew=False)
        pool.refresh()
        assert first == again
        assert len({first, warm, hashed(anew=True)}) == 3
