"""What is written is read back, by other readers at the same time, and after a killed writer."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from minidbg.core.errors import MinidbgError
from minidbg.core.outcome import Kind, Outcome, Signature, Verdict
from minidbg.history import (
    KEPT_SWEEPS,
    DamagedHistory,
    Flip,
    History,
    Observation,
    Revision,
    State,
    SweepRecord,
    open_or_begin_anew,
)

OUTCOME = Outcome(
    Verdict.REPRODUCES, Signature(Kind.COMPILE, types=("ValueError",)), seconds=0.25, reason="said so"
)


def state(repro: str = "r.py", **changes: object) -> State:
    fields = {
        "repro": repro, "device": "cpu", "verdict": Verdict.GONE, "since": 1.0, "seen": 2.0,
        "script": "s", "environment": "e", "code": "c",
    }  # fmt: skip
    return State(**{**fields, **changes})


def result(repro: str = "r.py", **changes: object) -> Observation:
    fields = {
        "repro": repro, "device": "cpu", "at": 3.0, "outcome": OUTCOME, "purpose": "run", "script": "s",
        "environment": "e",
    }  # fmt: skip
    return Observation(**{**fields, **changes})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


@pytest.fixture
def history(path: Path) -> Iterator[History]:
    with History(path) as opened:
        yield opened


@pytest.mark.parametrize("name", ["caf\u00e9.py", "caf\udce9.py", "\udcff/\u3042.py"])
def test_a_repro_may_have_any_name_that_a_file_may_have(history: History, name: str) -> None:
    history.add(state(name))
    history.add(result(name))
    assert [*history.states()] == [(name, "cpu")]
    assert [one.repro for one in history.observations(name)] == [name]


def test_sweeps_results_states_and_flips_are_read_back(history: History) -> None:
    number = history.add(SweepRecord(("src/a.py", "src/b.py")))
    revision = Revision("0123456789abcdef", "fedcba98")
    history.set_revisions(number, {"/src": revision})
    history.add(result(sweep=number))
    history.add(state(files=("a.py",), streak_verdict=Verdict.GONE))
    flip = Flip("r.py", "cpu", 3.0, "FIXED", Verdict.REPRODUCES, Verdict.GONE, number, None)
    flip_id = history.add(flip)

    sweep = history.sweep(number)
    assert sweep == SweepRecord(("src/a.py", "src/b.py"), {"/src": revision}, number)
    assert history.sweep(history.add(SweepRecord(None))).files is None
    assert str(revision) == "0123456789+fedcba98"
    assert history.observations("r.py") == [result(sweep=number)]
    assert history.states() == {("r.py", "cpu"): state(files=("a.py",), streak_verdict=Verdict.GONE)}
    assert [found.id for found in history.flips(announced=False)] == [flip_id]
    history.mark_announced(flip_id)
    assert history.flips(announced=False) == []
    assert history.flips(announced=True) == history.flips("r.py")
    assert history.flips("r.py")[0].after is Verdict.GONE
    assert history.flips("other.py") == []


def test_readers_see_what_is_committed_and_a_transaction_is_whole_or_nothing(
    history: History, path: Path
) -> None:
    history.add(state())
    with History(path, readonly=True) as reader:
        with history.transaction():
            history.add(state(verdict=Verdict.REPRODUCES))
            assert reader.states()["r.py", "cpu"].verdict is Verdict.GONE
        assert reader.states()["r.py", "cpu"].verdict is Verdict.REPRODUCES
        with pytest.raises(MinidbgError, match=r"history\.sqlite cannot be written: .*readonly"):
            reader.add(state())
    with contextlib.suppress(ZeroDivisionError), history.transaction():
        history.add(state(verdict=Verdict.FLAKY))
        raise ZeroDivisionError
    assert history.states()["r.py", "cpu"].verdict is Verdict.REPRODUCES, "all of a transaction or nothing"


def test_a_killed_writer_leaves_whole_results(path: Path) -> None:
    program = f"""
import os, sys
from pathlib import Path
from minidbg.history import History, SweepRecord
history = History(Path({str(path)!r}))
history.add(SweepRecord(()))
history.connection.execute("begin immediate")
history.connection.execute("insert into states(repro, device) values('half', 'cpu')")
os.kill(os.getpid(), 9)
"""
    killed = subprocess.run([sys.executable, "-c", program], env={**os.environ}, timeout=60, check=False)
    assert killed.returncode == -9
    with History(path) as history:
        assert history.states() == {}
        assert history.sweep(1) == SweepRecord((), id=1)


def test_a_pipe_is_no_history_and_reading_one_that_is_not_there_creates_nothing(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        History(path, readonly=True)
    assert not path.exists()
    os.mkfifo(path)
    with pytest.raises(DamagedHistory, match="not a regular file"):
        History(path, readonly=True)


def test_a_history_of_a_newer_schema_is_refused_not_rewritten(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("pragma user_version = 99")
    connection.close()
    with pytest.raises(DamagedHistory, match="schema 99"):
        History(path)


def test_of_old_sweeps_the_results_alone_are_dropped(history: History) -> None:
    for _ in range(KEPT_SWEEPS + 5):
        history.add(result(sweep=history.add(SweepRecord(()))))
    history.add(Flip("r.py", "cpu", 3.0, "FIXED", Verdict.REPRODUCES, Verdict.GONE, 4, 3))
    history.add(state(last_sweep=2))
    assert history.sweep(1) is not None
    assert len(history.flips()) == len(history.states()) == 1
    assert [run.sweep for run in history.observations(limit=2000)] == [*range(KEPT_SWEEPS + 5, 5, -1)]


def test_a_full_disk_is_no_damage(history: History) -> None:
    ((pages,),) = history.connection.execute("pragma page_count")
    history.connection.execute(f"pragma max_page_count = {pages}")
    with pytest.raises(MinidbgError, match=r"history\.sqlite cannot be written: .*full") as full:
        history.add(state(files=tuple(map(str, range(9000)))))
    assert not isinstance(full.value, DamagedHistory)


def test_a_new_history_begins_without_the_log_of_the_damaged_one(path: Path) -> None:
    path.write_bytes(b"no database" * 100)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).write_bytes(b"of the damaged one")
    opened, notice = open_or_begin_anew(path, 7.9)
    opened.close()
    assert notice
    assert path.with_name("history.sqlite.damaged-7").exists()
    with History(path) as again:
        assert again.states() == {}
    untouched, nothing = open_or_begin_anew(path, 8.0)
    untouched.close()
    assert nothing == ""
