"""Work for quiet times: what waits to be reduced, one after the other, at the lowest priority.

Captures that programs wrote with ``reduce="later"``, and the flight records of processes that a backend has killed.
"""

from __future__ import annotations

import enum
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minidbg.failure import LAYOUT
from minidbg.history import History
from minidbg.processes.deaths import last_json
from minidbg.watch.announce import Announcer
from minidbg.watch.pool import IN_WORKER, Ended, Order, Pool
from minidbg.watch.repros import HIDDEN, Repro, header_table

FOLDER = "flight"
UNTOUCHED_S = 10.0
"""A record that keeps its name for so long belongs to a process that is dead, idle, or long at one step.

``minidbg run`` sees to its own dead within a second or two; until then the record is its own.
"""
ASK_AGAIN_S = 60.0


@dataclass(slots=True)
class Flights:
    """The records in a repro folder, by name; a record gets another name with each step of its process."""

    folder: Path
    first_seen: dict[str, float] = field(default_factory=dict)
    asked: float = float("-inf")

    def due(self, now: float) -> bool:
        """Whether somebody should find out if the process of a record has died. ``now`` in seconds of any clock."""
        names = {path.name for path in (self.folder / HIDDEN / FOLDER).glob("*.py")}
        self.first_seen = {name: self.first_seen.get(name, now) for name in names}
        if now - self.asked < ASK_AGAIN_S or all(
            now - since < UNTOUCHED_S for since in self.first_seen.values()
        ):
            return False
        self.asked = now
        return True


REDUCE_SECONDS = 600.0
"""Budget of one reduction; the process gets a minute more to write what it has."""
FLIGHT_SECONDS = 120.0
LOWEST_PRIORITY = 19


class Work(enum.Enum):
    """What an order of ours does."""

    REDUCE = enum.auto()
    FLIGHTS = enum.auto()
    BISECT = enum.auto()


@dataclass(frozen=True, slots=True)
class Waiting:
    """A capture as it was when it was chosen."""

    path: Path
    digest: str


@dataclass(slots=True)
class Background:
    """At most one process at a time, each ``python -m minidbg...`` in an interpreter of its own."""

    folder: Path
    """The repro folder."""
    history: History
    pool: Pool
    announce: Announcer
    clock: Callable[[], float] = time.monotonic
    flights: Flights = field(init=False)
    running: dict[int, tuple[Work, Waiting | None]] = field(default_factory=dict)
    """By the number of the order."""
    told: set[Waiting] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.flights = Flights(self.folder)

    def start(self, number: int, repros: Iterable[Repro]) -> bool:
        """Begin with what is next, as order ``number``; whether there was anything."""
        if self.running:
            return False
        if self.flights.due(self.clock()):
            argv: tuple[str, ...] = (str(IN_WORKER), "flights", str(self.folder))
            self.order(number, argv, FLIGHT_SECONDS, Work.FLIGHTS, None)
            return True
        found = self.next_capture(repros)
        if found is None:
            return False
        argv = ("-m", "minidbg", "reduce", str(found.path), "--seconds", str(REDUCE_SECONDS), "--json")
        self.order(number, argv, REDUCE_SECONDS + 60, Work.REDUCE, found)
        self.announce("reduction_started", capture=str(found.path))
        return True

    def bisect(self, number: int, path: str, good: str, bad: str) -> str:
        """Search the commit at which the repro at ``path`` regressed, as order ``number``; why not, or nothing."""
        commits = [revision.partition("+")[0] for revision in (good, bad)]
        if "" in commits or ", " in good + bad:
            return "git does not say which commits lie on both sides"
        if commits[0] == commits[1]:
            return f"it regressed by a change that is not committed, on top of {commits[0]}"
        argv = ("-m", "minidbg", "bisect", *commits, path, "--json")
        self.order(number, argv, REDUCE_SECONDS, Work.BISECT, Waiting(Path(path), ""))
        self.announce("bisect_started", repro=path, good=commits[0], bad=commits[1])
        return ""

    def order(
        self, number: int, argv: Sequence[str], seconds: float, work: Work, what: Waiting | None
    ) -> None:
        """Have it run."""
        self.running[number] = work, what
        self.pool.run(Order(number, tuple(argv), "fresh", seconds, nice=LOWEST_PRIORITY))

    def next_capture(self, repros: Iterable[Repro]) -> Waiting | None:
        """A capture that has not been tried as it is now and whose failure no repro shows yet, the oldest first."""
        known = self.history.background()
        shown = {failure_in(repro.table): repro.name for repro in repros if not repro.damage}
        for path in captures_in(self.folder):
            try:
                data = path.read_bytes()
                table = header_table(data.decode("utf-8-sig"))
            except (OSError, ValueError, KeyError):
                continue  # damaged, or still being written
            if (table.get("signature") or {}).get("message") == LAYOUT:
                continue  # reduced on request
            found = Waiting(path, hashlib.sha1(data, usedforsecurity=False).hexdigest())
            if found.digest in (known.get(str(path), ("", ""))[0], reduced_digest(path)):
                continue
            repro = shown.get(failure_in(table))
            if repro is None:
                return found
            self.tell_known(found, repro)
        return None

    def tell_known(self, found: Waiting, repro: str) -> None:
        """Say once why a capture is left as it is."""
        if found not in self.told:
            self.told.add(found)
            self.announce("capture_known", capture=str(found.path), repro=repro)

    def ended(self, message: Ended, now: float) -> bool:
        """Hear of an order; whether it was ours. A reduction that was cut off by us is tried again later."""
        mine = self.running.pop(message.id, None)
        if mine is None:
            return False
        work, found = mine
        if message.cancelled or message.lost:
            return True
        said: dict[str, Any] = dict(last_json(message.stdout) or {})
        if work is Work.FLIGHTS:
            for capture in said.get("captures", ()):
                self.announce("process_died", capture=capture)
        elif work is Work.BISECT and found is not None:
            text = (
                f"{said['commit'][:10]} {said['subject']} ({said['author']})"
                if said
                else last_line(message.stderr)
            )
            self.announce("bisect_finished", repro=str(found.path), text=text, commit=said.get("commit"))
        elif found is not None:
            self.reduced(found, said, message, now)
        return True

    def reduced(self, found: Waiting, said: Mapping[str, Any], message: Ended, now: float) -> None:
        """A reduction has ended: remember that, and tell what came of it."""
        repro = said.get("path")
        reason = last_line(message.stderr) or str(said.get("verdict") or f"status {message.status}")
        self.history.put_background(str(found.path), found.digest, now, str(repro or reason))
        self.announce(
            "reduction_finished", capture=str(found.path), repro=repro, reason="" if repro else reason
        )

    def cancel(self) -> None:
        """End the running reduction; its own log lets it go on where it was."""
        for number in self.running:
            self.pool.cancel(number)


def captures_in(folder: Path) -> list[Path]:
    """The captures of a repro folder, the oldest first."""
    return sorted((folder / HIDDEN / "captures").glob("*.py"), key=modified)


def reduced_digest(path: Path) -> str:
    """The digest of the capture when somebody last reduced it, be it by ``minidbg run`` or ``minidbg reduce``; empty if nobody."""
    try:
        return str(json.loads(path.with_suffix(".reduced").read_text())["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def failure_in(table: Mapping[str, Any]) -> str:
    """What a capture and the repro that it was reduced to have in common: backend, failure, and the size at capture."""
    signature, origin = table.get("signature") or {}, table.get("origin") or {}
    failure = [signature.get("types"), signature.get("message"), list(signature.get("frames", ()))[:1]]
    return repr([table.get("backend"), table.get("kind"), failure, origin.get("nodes", table.get("nodes"))])


def modified(path: Path) -> float:
    """When the file was written; 0 when it has gone."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def last_line(text: str) -> str:
    """The last line that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
