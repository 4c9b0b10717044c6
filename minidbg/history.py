"""What watch has seen: sweeps, results, flips and each repro's state on each device, in SQLite.

One process writes (the daemon, under its lock); any number read, since the journal is write-ahead.
Each method that writes is one transaction: after ``kill -9`` the file holds whole results or none.
Times are seconds since the epoch.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from minidbg.core.errors import MinidbgError
from minidbg.core.outcome import Outcome, Verdict
from minidbg.core.records import MALFORMED, plain, record_of
from minidbg.core.text import abridged


@dataclass(frozen=True, slots=True)
class Revision:
    """What a repository held: its commit, and a digest of what was uncommitted (empty if clean)."""

    commit: str
    uncommitted: str = ""

    def __str__(self) -> str:
        return self.commit[:10] + (f"+{self.uncommitted[:8]}" if self.uncommitted else "")


@dataclass(frozen=True, slots=True)
class SweepRecord:
    """All jobs after a change of ``files``, the first of them; None where nobody watched before."""

    files: tuple[str, ...] | None
    revisions: Mapping[str, Revision] = field(default_factory=dict)
    """By the root of the source repository."""
    id: int = 0


@dataclass(frozen=True, slots=True)
class Observation:
    """One run of one repro on one device: what it showed, on what. ``purpose``: run or confirm."""

    repro: str
    device: str
    at: float
    outcome: Outcome
    purpose: str
    script: str
    """Digest of the repro's files."""
    environment: str
    """A machine's device: verdicts seen on equal ones may be compared, whatever torch it was."""
    torch: str = ""
    """Torch's version, which is code under test rather than part of the machine."""
    sweep: int = 0
    # What only the sweep itself needs to know, and the history does not keep: see State.
    code: str = ""
    loaded: str = ""
    files: tuple[str, ...] = ()
    fresh: bool = False
    """Whether it ran in a fresh interpreter rather than in a warm worker."""

    @property
    def verdict(self) -> Verdict:
        return self.outcome.verdict

    @property
    def seconds(self) -> float:
        return self.outcome.seconds

    @property
    def reason(self) -> str:
        return self.outcome.reason or abridged(self.outcome.message, 200)


@dataclass(frozen=True, slots=True)
class State:
    """The last confirmed verdict of a repro on a device, and what it was seen with."""

    repro: str
    device: str
    verdict: Verdict
    since: float
    """When this verdict was first seen."""
    seen: float
    script: str
    environment: str
    code: str
    """Digest of all watched files at the last run."""
    loaded: str = ""
    """Digest of those watched files that the last run had loaded; empty when not known."""
    files: tuple[str, ...] = ()
    """The watched files that the last run had loaded."""
    seconds: float = 0.0
    last_sweep: int | None = None
    """The last sweep that showed this verdict."""
    runs: int = 0
    """Runs since this verdict was first seen or last contradicted, and how many of them failed."""
    failures: int = 0
    streak: int = 0
    """Of a flaky repro: how many of the last runs in a row gave ``streak_verdict``."""
    streak_verdict: Verdict | None = None
    disagreements: int = 0
    """How many times in a row a warm worker was contradicted by fresh interpreters."""
    reason: str = ""

    @property
    def fresh(self) -> bool:
        """Whether only fresh interpreters are asked, since warm workers do not show the same."""
        return self.disagreements >= 2


@dataclass(frozen=True, slots=True)
class Flip:
    """A confirmed change of a verdict. ``last_before`` and ``sweep``: the sweeps on either side."""

    repro: str
    device: str
    at: float
    kind: str
    before: Verdict
    after: Verdict
    sweep: int
    last_before: int | None
    id: int = 0


Record = TypeVar("Record", SweepRecord, Observation, State, Flip)

SCHEMA_VERSION = 6
HISTORY_FILE = "history.sqlite"
WAIT_S = 10.0
"""For another process that is just writing."""
KEPT_SWEEPS = 1000
"""Of so many the results are kept; flips, states and sweeps stay."""
TABLES: Mapping[type, tuple[str, tuple[str, ...]]] = {
    SweepRecord: ("sweeps", ("files", "revisions")),
    Observation: ("results", ("sweep", "repro", "device", "at", "outcome", "purpose",
                              "script", "environment", "torch")),
    State: ("states", tuple(one.name for one in fields(State))),
    Flip: ("flips", ("sweep", "repro", "device", "at", "kind", "before", "after", "last_before")),
}  # fmt: skip
"""Each column holds the field of its name. An observation's other fields only serve its sweep."""
SCHEMA = f"""
{"".join(f"create table {name}(id integer primary key, {', '.join(columns)});" for name, columns in TABLES.values())}
create unique index state_of_job on states(repro, device);
create index results_of_repro on results(repro, id);
create index results_of_sweep on results(sweep);
alter table flips add column announced default 0;
create trigger no_old_results after insert on sweeps begin
    delete from results where sweep <= new.id - {KEPT_SWEEPS};
end;
"""
IN_JSON = ("outcome", "files", "revisions")
"""Columns. All others are stored as they are."""


class DamagedHistory(MinidbgError):
    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} is no readable history: {why}; move it away to begin a new one")


@contextmanager
def fenced(path: Path) -> Iterator[None]:
    """A block that raises only MinidbgError for a busy, full or damaged (DamagedHistory) file."""
    try:
        yield
    except sqlite3.Error as error:
        match getattr(error, "sqlite_errorcode", 0) & 0xFF:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                why = f"cannot be read now: {error}; another process is writing to it, try again"
            case sqlite3.SQLITE_FULL | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_IOERR:
                why = f"cannot be written: {error}"
            case _:
                raise DamagedHistory(path, str(error)) from error
        raise MinidbgError(f"{path} {why}") from error
    except MALFORMED as error:
        raise DamagedHistory(path, f"{type(error).__name__}: {error!s:.200}") from error


class History(AbstractContextManager["History", None]):
    """Every method may raise what ``fenced`` does."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        """Open or create the file. Raises FileNotFoundError when there is nothing to read."""
        self.path = path
        if readonly and not path.exists():
            raise FileNotFoundError(path)
        if path.exists() and not path.is_file():  # to open a pipe would wait for ever
            raise DamagedHistory(path, "not a regular file")
        uri = f"{path.absolute().as_uri()}?mode={'ro' if readonly else 'rwc'}"
        with fenced(path), ExitStack() as stack:
            self.connection = sqlite3.connect(uri, uri=True, timeout=WAIT_S, isolation_level=None)
            stack.callback(self.connection.close)
            self.connection.row_factory = sqlite3.Row
            self.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 64 << 20)  # ours have kilobytes
            ((version,),) = self.connection.execute("pragma user_version")
            if version not in (0, SCHEMA_VERSION):
                schemas = f"schema {version}, here {SCHEMA_VERSION}"
                why = f"it was written by another version of minidbg ({schemas})"
                raise DamagedHistory(self.path, why)
            if not readonly:
                run = self.connection.executescript
                # With a write-ahead log this is safe against a killed process; only a power cut may
                # lose the last commits.
                run("pragma journal_mode = wal; pragma synchronous = normal;")
                # The default, 2,000 pages in memory, fills slowly like a leak; these are kilobytes.
                run("pragma journal_size_limit = 4000000; pragma cache_size = -64;")
                begin = f"begin; {SCHEMA} pragma user_version = {SCHEMA_VERSION}; commit;"
                run(begin if version == 0 else "")
            stack.pop_all()

    def close(self) -> None:
        self.connection.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that the block writes, or nothing."""
        with fenced(self.path), self.connection:
            self.connection.execute("begin immediate")
            yield

    def write(self, query: str, *values: object) -> sqlite3.Cursor:
        with fenced(self.path):
            return self.connection.execute(query, [stored(value) for value in values])

    def add(self, record: Record) -> int:
        """Store a record, a state in place of an earlier one; its number. Announces no flip yet."""
        table, names = TABLES[type(record)]
        columns, marks = ", ".join(names), ", ".join("?" * len(names))
        query = f"insert or replace into {table}({columns}) values({marks})"
        return int(self.write(query, *(getattr(record, name) for name in names)).lastrowid or 0)

    def read(self, record_type: type[Record], query: str, *values: object) -> list[Record]:
        def restored(name: str, content: Any) -> tuple[str, Any]:
            """Raises one of MALFORMED: bytes may have flipped anywhere in the file."""
            if name in IN_JSON:
                return name, json.loads(content or "null")
            return name, os.fsdecode(content) if isinstance(content, bytes) else content

        with fenced(self.path):
            rows = self.connection.execute(query, [stored(value) for value in values])
            tables = (map(restored, row.keys(), row) for row in rows)
            return [record_of(dict(table), record_type) for table in tables]

    def set_revisions(self, sweep: int, revisions: Mapping[str, Revision]) -> None:
        self.write("update sweeps set revisions = ? where id = ?", revisions, sweep)

    def sweep(self, number: int | None) -> SweepRecord | None:
        return next(iter(self.read(SweepRecord, "select * from sweeps where id = ?", number)), None)

    def observations(self, repro: str | None = None, *, limit: int = 50) -> list[Observation]:
        query = "select * from results where repro = ifnull(?, repro)"
        return self.read(Observation, f"{query} order by at desc, id desc limit ?", repro, limit)

    def states(self) -> dict[tuple[str, str], State]:
        states = self.read(State, "select * from states order by repro, device")
        return {(state.repro, state.device): state for state in states}

    def mark_announced(self, flip: int) -> None:
        self.write("update flips set announced = 1 where id = ?", flip)

    def flips(
        self, repro: str | None = None, *, limit: int = 50, announced: bool | None = None
    ) -> list[Flip]:
        """The newest first; with ``announced`` those that people have been told of, or have not."""
        wanted = "repro = ifnull(?, repro) and announced = ifnull(?, announced)"
        query = f"select * from flips where {wanted} order by at desc, id desc limit ?"
        return self.read(Flip, query, repro, announced, limit)


def stored(value: object) -> object:
    if isinstance(value, str) and not value.isascii():
        name = os.fsencode(value)  # a file's, which need not be UTF-8
        return value if name.decode(errors="ignore") == value else name
    return json.dumps(plain(value)) if isinstance(value, tuple | Mapping | Outcome) else value


def open_or_begin_anew(path: Path, now: float) -> tuple[History, str]:
    """The history at ``path``, and a sentence if a damaged file was set aside (else empty)."""
    try:
        with History(path) as history:
            # all that a daemon reads later: a file with damaged pages is to be found now
            history.states(), history.flips(announced=False)
            history.read(SweepRecord, "select * from sweeps order by id desc limit 1")
        return History(path), ""
    except DamagedHistory as error:
        aside = path.with_name(f"{path.name}.damaged-{int(now)}")
        path.replace(aside)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return History(path), f"{error}; it was moved to {aside.name}, and a new history begins"
