"""What is written is read back, by other readers at the same time, and after a killed writer."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from minidbg.history import (
    DamagedHistory,
    Flip,
    History,
    Observation,
    Revision,
    State,
    open_or_begin_anew,
    store,
)
from minidbg.words.errors import MinidbgError
from minidbg.words.outcome import Kind, Outcome, Signature, Verdict

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


def test_sweeps_results_states_and_flips_are_read_back(history: History) -> None:
    number = history.start_sweep(1.0, code="c", files=["src/a.py", "src/b.py"])
    revision = Revision("0123456789abcdef", "fedcba98")
    history.set_revisions(number, {"/src": revision})
    history.add_observation(result(stale=True, sweep=number))
    history.put_state(state(modules=("a.py",), streak_verdict=Verdict.GONE))
    flip = Flip("r.py", "cpu", 3.0, "FIXED", Verdict.REPRODUCES, Verdict.GONE, number, None)
    flip_id = history.add_flip(flip)
    history.end_sweep(number, 4.0, "complete")

    sweep = history.sweep(number)
    assert (sweep.files, sweep.end) == (("src/a.py", "src/b.py"), "complete")
    assert sweep.revisions == {"/src": revision}
    assert str(revision) == "0123456789+fedcba98"
    assert history.observations("r.py") == [result(stale=True, sweep=number)]
    assert history.states() == {("r.py", "cpu"): state(modules=("a.py",), streak_verdict=Verdict.GONE)}
    assert [found.id for found in history.flips(announced=False)] == [flip_id]
    history.mark_announced(flip_id)
    assert history.flips(announced=False) == []
    assert history.flips(announced=True) == history.flips("r.py")
    assert history.flips("r.py")[0].after is Verdict.GONE
    assert history.flips("other.py") == []


def test_readers_see_what_is_committed_and_a_transaction_is_whole_or_nothing(
    history: History, path: Path
) -> None:
    history.put_state(state())
    with History(path, readonly=True) as reader:
        with history.transaction():
            history.put_state(state(verdict=Verdict.REPRODUCES))
            assert reader.states()["r.py", "cpu"].verdict is Verdict.GONE
        assert reader.states()["r.py", "cpu"].verdict is Verdict.REPRODUCES
        with pytest.raises(MinidbgError, match=r"history\.sqlite cannot be written: .*readonly"):
            reader.put_state(state())
    with contextlib.suppress(ZeroDivisionError), history.transaction():
        history.put_state(state(verdict=Verdict.FLAKY))
        raise ZeroDivisionError
    assert history.states()["r.py", "cpu"].verdict is Verdict.REPRODUCES, "all of a transaction or nothing"


def test_the_closed_file_is_the_whole_history_although_a_reader_has_it_open(
    path: Path, tmp_path: Path
) -> None:
    """Issue 38: CI keeps this one file; SQLite folds its log in by itself only at the last close of all."""
    with History(path) as history, History(path, readonly=True) as reader:
        history.put_state(state())
        assert reader.states(), "and so the log is in use"
        history.close()
        alone = tmp_path / "cache" / "history.sqlite"
        alone.parent.mkdir()
        alone.write_bytes(path.read_bytes())
    with History(alone, readonly=True) as copied:
        assert copied.states() == {("r.py", "cpu"): state()}


def test_what_people_read_is_in_the_order_of_time_whatever_the_numbers(history: History) -> None:
    """An import adds older sweeps under higher numbers; pruning drops the oldest, not the lowest number."""
    for at in (3.0, 4.0, 1.0, 2.0):
        number = history.start_sweep(at, code="c", files=[])
        history.add_observation(result(at=at, sweep=number))
        history.add_flip(Flip("r.py", "cpu", at, "FIXED", Verdict.REPRODUCES, Verdict.GONE, number, None))
    assert [sweep.started for sweep in history.sweeps()] == [4.0, 3.0, 2.0, 1.0]
    assert [run.at for run in history.observations("r.py")] == [4.0, 3.0, 2.0, 1.0]
    assert [flip.at for flip in history.flips()] == [4.0, 3.0, 2.0, 1.0]
    history.connection.execute("delete from flips")
    history.prune(keep_sweeps=2)
    assert [sweep.started for sweep in history.sweeps()] == [4.0, 3.0]


def test_a_killed_writer_leaves_whole_results_and_a_sweep_to_be_marked(path: Path) -> None:
    program = f"""
import os, sys
from pathlib import Path
from minidbg.history import History
history = History(Path({str(path)!r}))
history.start_sweep(1.0, code="c", files=[])
history.connection.execute("begin immediate")
history.connection.execute("insert into states(repro, device) values('half', 'cpu')")
os.kill(os.getpid(), 9)
"""
    killed = subprocess.run([sys.executable, "-c", program], env={**os.environ}, timeout=60, check=False)
    assert killed.returncode == -9
    with History(path) as history:
        assert history.states() == {}
        assert history.interrupt_running(5.0) == 1
        assert history.sweeps()[0].end == "interrupted"


def test_a_damaged_file_is_set_aside_and_named(path: Path) -> None:
    path.write_bytes(b"this is no database, but long enough to look like one" * 100)
    with pytest.raises(DamagedHistory, match=r"history\.sqlite is no readable history"):
        History(path)
    history, notice = open_or_begin_anew(path, 7.0)
    with history:
        assert history.states() == {}
    assert "history.sqlite.damaged-7" in notice
    assert (path.parent / "history.sqlite.damaged-7").exists()


def full_history(path: Path) -> bytes:
    with History(path) as history:
        number = history.start_sweep(1.0, code="c", files=["a.py"])
        history.set_revisions(number, {"/src": Revision("0123456789abcdef")})
        for name in (f"r{number}.py" for number in range(40)):
            history.add_observation(result(name, sweep=number))
            history.put_state(state(name))
            history.add_flip(Flip(name, "cpu", 3.0, "FIXED", Verdict.REPRODUCES, Verdict.GONE, number, None))
    return path.read_bytes()


def read_all(history: History) -> None:
    history.states(), history.sweeps(1), history.flips(announced=False)
    history.observations(limit=500)
    history.observations("r1.py")


def test_flipped_bytes_anywhere_give_rows_or_an_error_that_names_the_file_and_what_to_do(path: Path) -> None:
    whole = full_history(path)
    chance = random.Random(40)
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(chance.choice((1, 30, 2000))):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(bytes(damaged))
        said = ""
        try:
            with History(path, readonly=True) as history:
                read_all(history)
        except DamagedHistory as error:
            said, refused = str(error), refused + 1
        assert not said or (str(path) in said and "move it away" in said)
    assert refused > 100


@pytest.mark.parametrize(
    ("column", "value"), [("verdict", "odd"), ("modules", "3"), ("modules", "[" * 100_000), ("since", "x"), ("seen", None)]
)  # fmt: skip
def test_rows_of_a_wrong_kind_are_damage(path: Path, column: str, value: object) -> None:
    full_history(path)
    with sqlite3.connect(path) as connection:
        connection.execute(f"update states set {column} = ? where repro = 'r3.py'", (value,))
    connection.close()
    with History(path, readonly=True) as history, pytest.raises(DamagedHistory, match="move it away"):
        history.states()


def test_a_daemon_sets_aside_a_file_of_which_a_page_is_damaged(path: Path) -> None:
    whole = full_history(path)
    path.write_bytes(whole[:8192] + b"\x00" * (len(whole) - 8192))
    history, notice = open_or_begin_anew(path, 7.0)
    with history:
        assert history.states() == {}
    assert "moved to history.sqlite.damaged-7" in notice


def test_a_pipe_is_no_history(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(DamagedHistory, match="no regular file"):
        History(path, readonly=True)


def open_and_read(path: Path) -> None:
    with History(path, readonly=True) as reader:
        reader.states()


def test_a_history_that_is_written_to_for_long_is_not_called_damaged(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "WAIT_S", 0.01)
    full_history(path)
    with sqlite3.connect(path) as writer:
        writer.execute("pragma locking_mode = exclusive")
        writer.execute("begin exclusive")
        with pytest.raises(MinidbgError, match="another process is writing to it") as refused:
            open_and_read(path)
        assert not isinstance(refused.value, DamagedHistory)
    writer.close()


def test_a_history_of_a_newer_schema_is_refused_not_rewritten(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("pragma user_version = 99")
    connection.close()
    with pytest.raises(DamagedHistory, match="schema 99"):
        History(path)


def test_pruning_keeps_the_sweeps_that_flips_and_states_name(history: History) -> None:
    for _ in range(20):
        history.add_observation(result(sweep=history.start_sweep(1.0, code="c", files=[])))
    history.add_flip(Flip("r.py", "cpu", 3.0, "FIXED", Verdict.REPRODUCES, Verdict.GONE, 4, 3))
    history.put_state(state(last_sweep=2))
    history.prune(keep_sweeps=5)
    assert [sweep.id for sweep in history.sweeps()] == [20, 19, 18, 17, 16, 4, 3, 2]
    assert {run.sweep for run in history.observations(limit=99)} == {20, 19, 18, 17, 16, 4, 3, 2}


def test_reading_a_history_that_is_not_there_creates_nothing(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        History(path, readonly=True)
    assert not path.exists()


def test_a_full_disk_is_no_damage(history: History) -> None:
    ((pages,),) = history.connection.execute("pragma page_count")
    history.connection.execute(f"pragma max_page_count = {pages}")
    with pytest.raises(MinidbgError, match=r"history\.sqlite cannot be written: .*full") as full:
        history.put_state(state(modules=tuple(map(str, range(9000)))))
    assert not isinstance(full.value, DamagedHistory)


def test_a_checkout_is_told_by_short_forms_and_a_clean_one_by_its_commit_alone() -> None:
    assert str(Revision("0123456789abcdef")) == "0123456789"
    assert str(Revision("0123456789abcdef", "fedcba9876543210")) == "0123456789+fedcba98"


def test_warm_workers_are_not_asked_once_fresh_ones_have_contradicted_them_twice() -> None:
    assert (state().runs, state().failures, state().fresh) == (0, 0, False)
    assert [state(disagreements=count).fresh for count in range(4)] == [False, False, True, True]


def test_the_latest_of_one_repro_or_of_all_are_read_and_no_more_than_asked_for(history: History) -> None:
    number = history.start_sweep(1.0, code="c", files=[])
    for at, repro in enumerate(["a.py", "b.py", "a.py", "b.py"]):
        history.add_observation(result(repro, at=float(at), sweep=number))
        history.add_flip(
            Flip(repro, "cpu", float(at), "FIXED", Verdict.REPRODUCES, Verdict.GONE, number, None)
        )
    assert [run.at for run in history.observations("a.py")] == [2.0, 0.0]
    assert [run.at for run in history.observations(limit=3)] == [3.0, 2.0, 1.0]
    assert [flip.at for flip in history.flips("b.py", limit=1)] == [3.0]
    assert len(history.sweeps(limit=0)) == 0


def test_no_sweep_is_read_by_a_number_that_none_has(history: History) -> None:
    assert history.sweep(None) is None
    assert history.sweep(1) is None


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
