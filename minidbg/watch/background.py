"""What runs beside sweeps: the build before one; and in quiet times what waits to be reduced, and bisections.

To be reduced are captures that programs wrote with ``reduce="later"``, and the flight records of processes that a backend has
killed: one after the other, at the lowest priority.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minidbg.cluster.members import Cluster
from minidbg.failure import LAYOUT
from minidbg.history import History
from minidbg.processes.deaths import last_json
from minidbg.processes.pool import NUMBERS, Ended, Order, Pool
from minidbg.watch.announce import Announcer
from minidbg.watch.columns import Column
from minidbg.watch.repros import HIDDEN, Repro, header_table
from minidbg.watch.runner import IN_WORKER
from minidbg.watch.snapshot import Snapshot
from minidbg.watch.watched import Mark, Watched

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
NO_VARIABLES: Mapping[str, str] = {}


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
    cluster: Cluster | None = None
    """Where the questions of a reduction are asked, when not here."""
    flights: Flights = field(init=False)
    running: dict[int, tuple[Work, Waiting | None]] = field(default_factory=dict)
    """By the number of the order."""
    told: set[Waiting] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.flights = Flights(self.folder)

    def start(self, repros: Iterable[Repro]) -> bool:
        """Begin with what is next; whether there was anything."""
        if self.running:
            return False
        if self.flights.due(self.clock()):
            argv: tuple[str, ...] = (IN_WORKER, "flights", str(self.folder))
            self.order(argv, FLIGHT_SECONDS, Work.FLIGHTS, None)
            return True
        found = self.next_capture(repros)
        if found is None:
            return False
        argv = ("-m", "minidbg", "reduce", str(found.path), "--seconds", str(REDUCE_SECONDS), "--json")
        if self.cluster is not None and not self.cluster.workers:
            argv += self.cluster.arguments
        self.order(argv, REDUCE_SECONDS + 60, Work.REDUCE, found)
        self.announce("reduction_started", capture=str(found.path))
        return True

    def bisect(self, path: str, good: str, bad: str, column: Column) -> str:
        """Search the commit at which the repro at ``path`` regressed in ``column``; why not, or nothing."""
        commits = [revision.partition("+")[0] for revision in (good, bad)]
        if "" in commits or ", " in good + bad:
            return "git does not say which commits lie on both sides"
        if commits[0] == commits[1]:
            return f"it regressed by a change that is not committed, on top of {commits[0]}"
        options = ("--options", column.options) if column.options else ()
        argv = ("-m", "minidbg", "bisect", *commits, path, "--device", column.device, *options, "--json")
        self.order(argv, REDUCE_SECONDS, Work.BISECT, Waiting(Path(path), ""), column.variables)
        self.announce("bisect_started", repro=path, good=commits[0], bad=commits[1])
        return ""

    def order(
        self, argv: Sequence[str], seconds: float, work: Work, what: Waiting | None,
        env: Mapping[str, str] = NO_VARIABLES,
    ) -> None:  # fmt: skip
        """Have it run."""
        number = next(NUMBERS)
        self.running[number] = work, what
        self.pool.run(Order(number, tuple(argv), "fresh", seconds, nice=LOWEST_PRIORITY, env=env))

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


# The build before a sweep

OUTPUT_LINES = 30
MOST_OUTPUT_BYTES = 1 << 20
ERROR = re.compile(r"\b(error|fatal|failed|undefined reference|no such file)\b|Error\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Built:
    """A build has ended. ``output``: its last lines; ``error``: the first line that tells of an error."""

    number: int
    status: int
    seconds: float
    output: str
    error: str = ""


class Builder:
    """One build at a time, in a process group of its own."""

    def __init__(self, command: str, folder: Path, listener: Callable[[Built], None]) -> None:
        self.command, self.folder, self.listener = command, folder, listener
        self.number = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether a build is under way."""
        return self.process is not None

    def start(self) -> int:
        """Start the command; ``Built`` with the returned number follows."""
        self.number += 1
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the thread that waits
        self.process = subprocess.Popen(
            self.command, shell=True, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        threading.Thread(
            target=self.wait, args=(self.process, output, self.number), name="minidbg-build", daemon=True
        ).start()
        return self.number

    def wait(self, process: subprocess.Popen[bytes], output: object, number: int) -> None:
        """In a thread: tell when the build ends."""
        began = time.monotonic()
        status = process.wait()
        with output as file:  # type: ignore[attr-defined]  # a TemporaryFile, whose type has no public name
            file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_OUTPUT_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
        last = "\n".join(lines[-OUTPUT_LINES:])
        self.listener(
            Built(number, status, time.monotonic() - began, last, first_error(lines) if status else "")
        )

    def ended(self, message: Built) -> bool:
        """Whether the message is of the present build."""
        if message.number != self.number or self.process is None:
            return False
        self.process = None
        return True

    def cancel(self) -> None:
        """End the build; its message will be none of the present one."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process = None


@dataclass(slots=True)
class Builds:
    """When the build command runs, and what its end means for sweeps."""

    builder: Builder | None
    """None without a build command: then there is nothing to wait for."""
    watched: Watched
    history: History
    announce: Announcer
    base: Snapshot | None = None
    """The code that the present build began with."""
    repeated: bool = False
    """Whether the build was begun once more because of an edit under it."""

    @property
    def under_way(self) -> bool:
        """Whether a build runs."""
        return self.builder is not None and self.builder.running

    def begin(self) -> bool:
        """Start a build if the outputs may be those of other code; whether one runs now."""
        if self.builder is None or not self.watched.needs_build:
            return False
        self.base = self.watched.snapshot
        self.watched.marks.pop(Mark.BUILT, None)
        self.builder.start()
        self.announce("build_started", command=self.builder.command)
        return True

    def ended(self, message: Built) -> bool:
        """Hear of a build; whether it went well. A file edited under it may have been missed: then another one is needed, once."""
        if self.builder is None or not self.builder.ended(message):
            return False
        self.watched.look(everywhere=True)
        snapshot, seconds = self.watched.snapshot, round(message.seconds, 3)
        if message.status != 0:
            self.watched.mark(Mark.BUILD_FAILED)
            self.announce(
                "build_failed",
                status=message.status,
                seconds=seconds,
                output=message.output,
                error=message.error,
            )
            number = self.history.start_sweep(time.time(), code=snapshot.digest(), files=[])
            self.history.end_sweep(number, time.time(), "build_failed")
            return False
        self.watched.marks.pop(Mark.BUILD_FAILED, None)
        self.announce("build_finished", seconds=seconds)
        edited = set(snapshot.changes_since(self.base or snapshot)) - self.watched.always
        self.repeated = bool(edited) and not self.repeated
        if not self.repeated:
            self.watched.mark(Mark.BUILT)
        return True

    def cancel(self) -> None:
        """End the build under way."""
        if self.builder is not None:
            self.builder.cancel()


def first_error(lines: Sequence[str]) -> str:
    """The first line that tells of an error, else the last that says anything."""
    told = [line.strip() for line in lines if line.strip()]
    return next((line for line in told if ERROR.search(line)), told[-1] if told else "")
