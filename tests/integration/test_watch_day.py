"""A day with ``minidbg watch``: a backend in a git repository, a dozen repros, and everything people do to files.

No torch: what is tried here is the daemon. Each test plays one stretch of the day with a daemon of its own.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.command_line import cli
from support.toy_repros import BROKEN, WORKS, WRONG, Checkout, git, script
from support.watch_driver import WatchProcess, steady, watching

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CRASHES = "def {op}(value):\n    import os, signal\n    os.kill(os.getpid(), signal.SIGSEGV)\n"
HANGS = "def {op}(value):\n    while True: pass\n"
OTHERWISE = "def {op}(value):\n    raise TypeError('{op} fails in another way')\n"

OPS = {
    "relu": BROKEN, "sin": BROKEN, "cos": WORKS, "tan": WORKS, "exp": BROKEN, "log": WORKS, "sqrt": BROKEN,
    "crash": CRASHES, "hang": HANGS, "other": OTHERWISE, "pow": WORKS, "sum": WRONG, "mean": BROKEN,
}  # fmt: skip


class Desk(Checkout):
    """What lies on the developer's desk."""

    def __init__(self, folder: Path) -> None:
        kinds = {
            "crash": {"kind": "crash"}, "hang": {"kind": "hang", "time_limit_s": 2.0},
            "sum": {"kind": "accuracy"}, "mean": {"kind": "compile"},
        }  # fmt: skip
        scripts = {op: script(op, **kinds.get(op, {})) for op in OPS}
        super().__init__(folder, OPS, {**scripts, "damaged": "# /// script\n# broken = [\n# ///\n"})
        self.commit(ignored="*.log")

    def module(self, op: str) -> Path:
        return self.package / f"{op}.py"

    def save(self, op: str, source: str) -> None:
        self.module(op).write_text(source.format(op=op))

    def save_atomically(self, op: str, source: str) -> None:
        draft = self.package / f".{op}.py.new"
        draft.write_text(source.format(op=op))
        os.replace(draft, self.module(op))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def daemon(desk: Desk) -> Iterator[WatchProcess]:
    with steady(desk.folder, desk.env) as running:
        yield running


def states(desk: Desk) -> dict[str, str]:
    with sqlite3.connect(f"file:{desk.repros}/.minidbg/history.sqlite?mode=ro", uri=True) as connection:
        rows = connection.execute("select repro, verdict from states").fetchall()
    connection.close()
    return dict(rows)


FIRST_STATES = {
    "relu.py": "reproduces", "sin.py": "reproduces", "cos.py": "gone", "tan.py": "gone", "exp.py": "reproduces",
    "log.py": "gone", "sqrt.py": "reproduces", "crash.py": "reproduces", "hang.py": "reproduces",
    "other.py": "changed", "pow.py": "gone", "sum.py": "reproduces", "mean.py": "reproduces",
}  # fmt: skip


def test_a_branch_switch_with_hundreds_of_files_is_one_sweep(desk: Desk, daemon: WatchProcess) -> None:
    git(desk.source, "switch", "-q", "-c", "feature")
    mark = daemon.mark()
    for number in range(400):
        (desk.package / f"generated_{number}.py").write_text(f"VALUE = {number}\n")
    desk.save("relu", WORKS)
    git(desk.source, "add", ".")
    git(desk.source, "commit", "-q", "-m", "feature")
    daemon.wait_for_sweep(since=mark)
    daemon.wait_until_quiet()
    with daemon.sweep() as mark:
        git(desk.source, "switch", "-q", "main")
    daemon.wait_until_quiet()
    assert len(daemon.since(mark, "sweep_started")) == 1
    assert [flip["kind"] for flip in daemon.since(mark, "flip")] == ["REGRESSED"]
    assert states(desk) == FIRST_STATES


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_within_seconds_also_during_a_hang(
    desk: Desk, number: signal.Signals
) -> None:
    with watching(desk.folder, env=desk.env) as running:
        running.wait_for_event("sweep_started")
        family = psutil.Process(running.process.pid).children(recursive=True)
        began = time.monotonic()
        assert running.stop(number) == 0
        assert time.monotonic() - began < 10
        assert psutil.wait_procs(family, timeout=15)[1] == []
    assert not (desk.repros / ".minidbg" / "watch.json").exists()


def test_polling_sees_the_same(desk: Desk) -> None:
    with watching(desk.folder, "--poll", "0.2", env=desk.env) as running:
        running.wait_for_sweep(since=0)
        mark = running.mark()
        desk.save("relu", WORKS)
        desk.save_atomically("cos", BROKEN)
        running.wait_for_sweep(since=mark)
        assert sorted(running.flips()) == [("FIXED", "relu.py"), ("REGRESSED", "cos.py")]
        assert running.stop() == 0


def test_spawned_workers_see_the_same(desk: Desk) -> None:
    """As on systems where a process that has loaded torch cannot be forked."""
    with watching(desk.folder, "--workers", "spawn", env=desk.env) as running:
        running.wait_for_sweep(since=0, seconds=150)
        assert states(desk) == FIRST_STATES
        with running.sweep(150):
            desk.save("relu", WORKS)
        assert running.flips() == [("FIXED", "relu.py")]
        assert running.stop() == 0


def test_names_that_are_no_utf8_are_judged_stored_and_told_under_once(tmp_path: Path) -> None:
    name, data = "caf\udce9", "table\udcff.txt"  # as Python has the bytes
    desk = Checkout(tmp_path, {"relu": BROKEN}, {name: script("relu")})
    (desk.package / data).write_text("1")
    desk.commit(ignored="*.log")
    for status, source, flips in ((1, BROKEN, []), (0, WORKS, [("FIXED", f"{name}.py")])):
        (desk.package / "relu.py").write_text(source.format(op="relu"))
        (desk.package / data).write_text(source)
        with watching(desk.folder, "--once", env=desk.env) as running:
            assert running.process.wait(60) == status
        assert running.flips() == flips
    listed = cli("list", cwd=desk.folder, env=desk.env, check=True)
    assert listed.stdout.startswith(r"caf\udce9.py  cpu  gone")
