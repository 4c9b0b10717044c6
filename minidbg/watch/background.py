"""Work for quiet times: captures that wait to be reduced, one after the other, at the lowest priority."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minidbg.history import History
from minidbg.watch.announce import Announcer
from minidbg.watch.outcomes import last_json
from minidbg.watch.pool import Ended, Order, Pool
from minidbg.watch.repros import HIDDEN, Repro, header_table

REDUCE_SECONDS = 600.0
"""Budget of one reduction; the process gets a minute more to write what it has."""
LOWEST_PRIORITY = 19
PLACES = ("captures", "flight")


@dataclass(slots=True)
class Background:
    """At most one reduction at a time, by ``python -m minidbg reduce`` in a process of its own."""

    folders: Sequence[Path]
    history: History
    pool: Pool
    announce: Announcer
    running: dict[int, tuple[Path, str]] = field(default_factory=dict)
    """By the number of the order: the capture and its digest."""

    def next_capture(self, repros: Iterable[Repro]) -> tuple[Path, str] | None:
        """A capture that has not been tried as it is now and whose failure no repro shows yet, the oldest first."""
        known = self.history.background()
        reduced = {failure_in(repro.table) for repro in repros if not repro.damage}
        for path in waiting(self.folders):
            try:
                data = path.read_bytes()
                table = header_table(data.decode("utf-8-sig"))
            except (OSError, ValueError, KeyError):
                continue  # damaged, or still being written
            digest = hashlib.sha1(data, usedforsecurity=False).hexdigest()
            if known.get(str(path), ("", ""))[0] != digest and failure_in(table) not in reduced:
                return path, digest
        return None

    def start(self, number: int, repros: Iterable[Repro]) -> bool:
        """Reduce the next capture as order ``number``; whether there was one."""
        found = None if self.running else self.next_capture(repros)
        if found is None:
            return False
        path, digest = found
        self.running[number] = path, digest
        argv = ("-m", "minidbg", "reduce", str(path), "--seconds", str(REDUCE_SECONDS), "--json")
        self.pool.run(Order(number, argv, "fresh", REDUCE_SECONDS + 60, nice=LOWEST_PRIORITY))
        self.announce("reduction_started", capture=str(path))
        return True

    def ended(self, message: Ended, now: float) -> bool:
        """Hear of an order; whether it was ours. A reduction that was cut off by us is tried again later."""
        mine = self.running.pop(message.id, None)
        if mine is None:
            return False
        path, digest = mine
        if message.cancelled or message.lost:
            return True
        said: dict[str, Any] = dict(last_json(message.stdout) or {})
        repro = said.get("path")
        reason = (
            ""
            if repro
            else (str(said.get("verdict") or last_line(message.stderr)) or f"status {message.status}")
        )
        self.history.put_background(str(path), digest, now, str(repro or reason))
        self.announce("reduction_finished", capture=str(path), repro=repro, reason=reason)
        return True

    def cancel(self) -> None:
        """End the running reduction; its own log lets it go on where it was."""
        for number in self.running:
            self.pool.cancel(number)


def waiting(folders: Sequence[Path]) -> list[Path]:
    """The captures below the repro folders, the oldest first."""
    found = [
        path for folder in folders for place in PLACES for path in (folder / HIDDEN / place).glob("*.py")
    ]
    return sorted(found, key=modified)


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
