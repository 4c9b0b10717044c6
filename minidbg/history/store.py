"""What watch has seen: sweeps, results, flips and the present state of each repro on each device, in SQLite.

One process writes (the daemon, under its lock); any number read meanwhile, since the journal is a
write-ahead log. Each method that writes is one transaction: after ``kill -9`` the file holds whole
results or none. Times are seconds since the epoch.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from minidbg.history.records import Flip, Observation, Revision, State, SweepRecord
from minidbg.words.errors import MinidbgError
from minidbg.words.outcome import Outcome, Verdict
from minidbg.words.records import check_kinds, texts

T = TypeVar("T")
P = ParamSpec("P")

SCHEMA_VERSION = 1
NAME = "history.sqlite"
WAIT_S = 10.0
"""For another process that is just writing."""

SCHEMA = """
create table sweeps(
    id integer primary key, started real not null, ended real, end text not null default 'running',
    code text not null, files text not null, revisions text not null default '{}');
create table results(
    id integer primary key, sweep integer not null references sweeps(id), repro text not null, device text not null,
    at real not null, seconds real not null, verdict text not null, purpose text not null, stale integer not null,
    script text not null, environment text not null, torch text not null, outcome text not null);
create index results_of_repro on results(repro, device, id);
create index results_of_sweep on results(sweep);
create table states(
    repro text not null, device text not null, state text not null, primary key(repro, device));
create table flips(
    id integer primary key, sweep integer not null references sweeps(id), repro text not null, device text not null,
    at real not null, kind text not null, before text not null, after text not null, last_before integer,
    announced integer not null default 0);
"""


class DamagedHistory(MinidbgError):
    """The history file cannot be read; ``path`` names it."""

    def __init__(self, path: Path, why: str) -> None:
        self.path = path
        super().__init__(f"{path} is no readable history: {why}; move it away to begin a new one")


def reads(method: Callable[P, T]) -> Callable[P, T]:
    """``method`` of a History, which raises DamagedHistory for rows that cannot be read: bytes may have flipped anywhere in the file."""

    @functools.wraps(method)
    def read(*args: P.args, **kwargs: P.kwargs) -> T:
        history = args[0]
        assert isinstance(history, History)
        try:
            return method(*args, **kwargs)
        except sqlite3.Error as error:
            raise trouble_with(history.path, error) from error
        except ROW_DAMAGE as error:
            raise DamagedHistory(
                history.path, f"{method.__name__}: {type(error).__name__}: {error!s:.200}"
            ) from error

    return read


ROW_DAMAGE = (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError)
"""What making a record of a row can raise."""
LONGEST_VALUE_BYTES = 64 << 20
"""Of a column; ours have some kilobytes."""


def trouble_with(path: Path, error: sqlite3.Error) -> MinidbgError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return MinidbgError(
            f"{path} cannot be read now: {error}; another process is writing to it, try again"
        )
    return DamagedHistory(path, str(error))


class History:
    def __init__(self, connection: sqlite3.Connection, path: Path, *, readonly: bool = False) -> None:
        self.connection = connection
        self.path, self.readonly = path, readonly
        self.trouble = ""
        """Why the file cannot be written any more; from then on everything is kept in memory."""

    @classmethod
    def open(cls, path: Path, *, readonly: bool = False) -> History:
        """Open or create the file. Raises DamagedHistory, or FileNotFoundError when there is nothing to read."""
        if readonly and not path.exists():
            raise FileNotFoundError(path)
        if path.exists() and not path.is_file():  # to open a pipe would wait for ever
            raise DamagedHistory(path, "no regular file")
        if not readonly:
            with contextlib.suppress(OSError):  # SQLite says why not
                os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        try:
            connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode={'ro' if readonly else 'rwc'}", uri=True, timeout=WAIT_S
            )
            try:
                prepare(connection, readonly=readonly)
            except BaseException:
                connection.close()
                raise
        except sqlite3.Error as error:
            raise trouble_with(path, error) from error
        except UnicodeDecodeError as error:  # out of what SQLite says of its damaged tables
            raise DamagedHistory(path, f"no text in UTF-8 ({error.reason})") from error
        return cls(connection, path, readonly=readonly)

    def close(self) -> None:
        """Close the file, which then is the whole history: a write-ahead log is needed by no copy of it."""
        if not self.readonly:
            # SQLite does this by itself at the last close alone: a page that is still open would be another reader
            with contextlib.suppress(sqlite3.Error):
                self.connection.execute("pragma wal_checkpoint(truncate)")
        self.connection.close()

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def atomically(self, write: Callable[[], T]) -> T:
        """All that ``write`` writes, or nothing. Nested calls belong to the outermost one.

        When the disk is full or gone, the same is written in memory instead: see ``trouble``.
        """
        if self.connection.in_transaction:
            return write()
        try:
            return self.in_transaction(write)
        except sqlite3.OperationalError as error:
            if self.trouble or self.readonly:
                raise
            self.go_on_in_memory(str(error))
            return self.in_transaction(write)

    def in_transaction(self, write: Callable[[], T]) -> T:
        with self.connection:
            self.connection.execute("begin immediate")
            return write()

    def write_row(self, query: str, values: Sequence[object]) -> int:
        return self.atomically(lambda: int(self.connection.execute(query, values).lastrowid or 0))

    def insert(self, table: str, **values: object) -> int:
        marks = ", ".join("?" * len(values))
        return self.write_row(
            f"insert into {table}({', '.join(values)}) values({marks})", tuple(values.values())
        )

    def go_on_in_memory(self, trouble: str) -> None:
        """Copy everything into memory and leave the file as it is."""
        memory = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.backup(memory)
        with contextlib.suppress(sqlite3.Error):
            self.connection.close()
        self.connection, self.trouble = memory, trouble

    # Sweeps

    def start_sweep(self, started: float, *, code: str, files: Sequence[str]) -> int:
        return self.insert("sweeps", started=started, code=code, files=json.dumps(list(files)))

    def set_revisions(self, sweep: int, revisions: Mapping[str, Revision]) -> None:
        table = {root: asdict(revision) for root, revision in revisions.items()}
        self.write_row("update sweeps set revisions = ? where id = ?", (json.dumps(table), sweep))

    def end_sweep(self, sweep: int, ended: float, end: str) -> None:
        self.write_row("update sweeps set ended = ?, end = ? where id = ?", (ended, end, sweep))

    def interrupt_running(self, now: float) -> int:
        """Mark the sweeps that a killed daemon left running; how many there were."""
        query = "update sweeps set ended = ?, end = 'interrupted' where end = 'running'"
        return self.atomically(lambda: self.connection.execute(query, (now,)).rowcount)

    @reads
    def sweeps(self, limit: int = 50) -> list[SweepRecord]:
        rows = self.connection.execute(
            f"select {SWEEP_COLUMNS} from sweeps order by started desc, id desc limit ?", (limit,)
        )
        return [sweep_of(row) for row in rows]

    @reads
    def sweep(self, number: int | None) -> SweepRecord | None:
        if number is None:
            return None
        row = self.connection.execute(
            f"select {SWEEP_COLUMNS} from sweeps where id = ?", (number,)
        ).fetchone()
        return sweep_of(row) if row else None

    # Observations and states

    def add_observation(self, run: Observation) -> None:
        self.insert(
            "results", sweep=run.sweep, repro=run.repro, device=run.device, at=run.at,
            seconds=run.outcome.seconds, verdict=run.verdict, purpose=run.purpose, stale=run.stale,
            script=run.script, environment=run.environment, torch=run.torch,
            outcome=json.dumps(run.outcome.to_json()),
        )  # fmt: skip

    @reads
    def observations(self, repro: str | None = None, *, limit: int = 50) -> list[Observation]:
        rows = self.connection.execute(
            "select repro, device, at, outcome, purpose, script, environment, torch, stale, sweep from results"
            f"{' where repro = :repro' if repro is not None else ''} order by at desc, id desc limit :limit",
            {"repro": repro, "limit": limit},
        )
        return [
            sound(Observation(name, device, at, Outcome.from_json(json.loads(outcome)), purpose, script, where, torch, bool(stale), sweep))
            for name, device, at, outcome, purpose, script, where, torch, stale, sweep in rows
        ]  # fmt: skip

    def put_state(self, state: State) -> None:
        self.write_row(
            "insert into states values(?, ?, ?) on conflict do update set state = excluded.state",
            (state.repro, state.device, json.dumps(asdict(state))),
        )

    @reads
    def states(self) -> dict[tuple[str, str], State]:
        rows = self.connection.execute("select state from states order by repro, device")
        found = [state_of(json.loads(text)) for (text,) in rows]
        return {(state.repro, state.device): state for state in found}

    # Flips

    def add_flip(self, flip: Flip) -> int:
        """Store a flip that is not announced yet; its id."""
        return self.insert("flips", **{name: value for name, value in asdict(flip).items() if name != "id"})

    def mark_announced(self, flip: int) -> None:
        self.write_row("update flips set announced = 1 where id = ?", (flip,))

    @reads
    def flips(
        self, repro: str | None = None, *, limit: int = 50, announced: bool | None = None
    ) -> list[Flip]:
        """The newest first; with ``announced`` those that people have been told of, or those they have not."""
        rows = self.connection.execute(
            "select repro, device, at, kind, before, after, sweep, last_before, id from flips"
            " where (:repro is null or repro = :repro) and (:announced is null or announced = :announced) order by at desc, id desc limit :limit",
            {"repro": repro, "announced": announced, "limit": limit},
        )
        return [
            sound(Flip(name, device, at, kind, Verdict(before), Verdict(after), sweep, last_before, number))
            for name, device, at, kind, before, after, sweep, last_before, number in rows
        ]

    def read_through(self) -> None:
        """Read once what a daemon reads later, so that a file with damaged pages is found at the start. Raises DamagedHistory."""
        self.states(), self.sweeps(1), self.flips(announced=False)

    def prune(self, *, keep_sweeps: int = 1000) -> None:
        """Drop results and sweeps older than the last ``keep_sweeps``, those of flips and states excepted."""
        doomed = (
            "(select id from sweeps where id not in (select id from sweeps order by started desc, id desc limit ?) and id not in"
            " (select sweep from flips union select last_before from flips where last_before is not null"
            " union select json_extract(state, '$.last_sweep') from states where json_extract(state, '$.last_sweep') > 0))"
        )

        def drop() -> None:
            self.connection.execute(f"delete from results where sweep in {doomed}", (keep_sweeps,))
            self.connection.execute(f"delete from sweeps where id in {doomed}", (keep_sweeps,))

        self.atomically(drop)


SWEEP_COLUMNS = "id, started, ended, end, code, files, revisions"


def prepare(connection: sqlite3.Connection, *, readonly: bool) -> None:
    connection.isolation_level = None
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE_BYTES)
    version = known_version(connection)
    if readonly:
        return
    connection.execute("pragma journal_mode = wal")
    # With a write-ahead log this is safe against a killed process; only a power cut may lose the last commits.
    connection.execute("pragma synchronous = normal")
    connection.execute("pragma journal_size_limit = 4000000")
    # Kilobytes: the default of 2,000 fills slowly and looks like a leak.
    connection.execute("pragma cache_size = -64")
    if version == 0:
        connection.executescript(f"begin; {SCHEMA} pragma user_version = {SCHEMA_VERSION}; commit;")


def known_version(connection: sqlite3.Connection) -> int:
    """The version of its tables, 0 of an empty file. Raises sqlite3.DatabaseError for one that is not known here."""
    (version,) = connection.execute("pragma user_version").fetchone()
    if version not in (0, SCHEMA_VERSION):
        raise sqlite3.DatabaseError(
            f"it was written by another version of minidbg (schema {version}, here {SCHEMA_VERSION})"
        )
    return int(version)


def open_or_begin_anew(path: Path, now: float) -> tuple[History, str]:
    """The history at ``path``, and a sentence when a damaged file had to be set aside (else empty)."""
    try:
        history = History.open(path)
        try:
            history.read_through()
        except BaseException:
            history.connection.close()
            raise
        return history, ""
    except DamagedHistory as error:
        aside = path.with_name(f"{path.name}.damaged-{int(now)}")
        path.replace(aside)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return History.open(path), f"{error}; it was moved to {aside.name}, and a new history begins"


def sweep_of(row: Iterable[Any]) -> SweepRecord:
    number, started, ended, end, code, files, revisions = row
    table = {root: sound(Revision(**revision)) for root, revision in json.loads(revisions).items()}
    return sound(SweepRecord(number, started, ended, end, code, texts(json.loads(files), "files"), table))


def state_of(table: Mapping[str, Any]) -> State:
    streak_verdict = table.get("streak_verdict")
    state = State(
        **{
            **table,
            "verdict": Verdict(table["verdict"]),
            "modules": texts(table.get("modules", ()), "modules"),
            "streak_verdict": Verdict(streak_verdict) if streak_verdict else None,
        }
    )
    return sound(state)


def sound(record: T) -> T:
    """``record``, whose values are of their kinds. Raises ValueError."""
    check_kinds(record)
    return record
