"""What runs when no sweep does: the build before one; and in quiet times what waits to be reduced, and bisections.

To be reduced are captures that programs wrote with ``reduce="later"``, and the flight records of processes that a backend has
killed: one after the other, at the lowest priority.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from minidbg.history import History
from minidbg.watch import events
from minidbg.watch.announce import Announcer
from minidbg.watch.repros import Repro, header_table, stamp_of
from minidbg.watch.runner import PROBE_SCRIPT
from minidbg.watch.settings import Column
from minidbg.watch.watched import Mark, Watched
from minidbg.words.claims import is_claimed
from minidbg.words.files import NOTE_LIMIT_BYTES, glob, read_regular
from minidbg.words.json_lines import last_json
from minidbg.words.kinds import Kind
from minidbg.words.outcome import LAYOUT
from minidbg.words.run_spec import DAMAGE, Provenance, RunSpec
from minidbg.words.script_header import HIDDEN, SCRIPT_LIMIT_BYTES, nodes_in, text_of
from minidbg.words.text import last_line
from minidbg.workers.build import Build, Built
from minidbg.workers.pool import NUMBERS, Ended, Order, Pool, RunMode

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
        names = {path.name for path in glob(self.folder / HIDDEN / FOLDER, "*.py")}
        self.first_seen = {name: self.first_seen.get(name, now) for name in names}
        oldest = min(self.first_seen.values(), default=now)
        if now - self.asked < ASK_AGAIN_S or now - oldest < UNTOUCHED_S:
            return False
        self.asked = now
        return True


REDUCE_SECONDS = 600.0
"""Budget of one reduction; the process gets a minute more to write what it has."""
FLIGHT_SECONDS = 120.0
LOWEST_PRIORITY = 19
NO_VARIABLES: Mapping[str, str] = {}


@dataclass(slots=True)
class IdleWork:
    """At most one process at a time, each ``python -m minidbg...`` in an interpreter of its own."""

    folder: Path
    """The repro folder."""
    history: History
    pool: Pool
    announce: Announcer
    clock: Callable[[], float] = time.monotonic
    kinds: Collection[Kind] = ()
    """Only captures of these kinds are reduced; of all, where there are none."""
    flights: Flights = field(init=False)
    running: dict[int, Callable[[Ended], None]] = field(default_factory=dict)
    """By the number of the order: who hears of its end."""

    def __post_init__(self) -> None:
        self.flights = Flights(self.folder)

    def start(self, repros: Iterable[Repro]) -> bool:
        """Begin with what is next; whether there was anything."""
        if self.running:
            return False
        if self.flights.due(self.clock()):
            self.order((PROBE_SCRIPT, "flights", str(self.folder)), FLIGHT_SECONDS, self.tell_deaths)
            return True
        found = self.next_capture(repros)
        if found is None:
            return False
        path, digest = str(found[0]), found[1]
        argv = ("-m", "minidbg", "reduce", path, "--seconds", str(REDUCE_SECONDS), "--json")
        self.order(argv, REDUCE_SECONDS + 60, lambda ended: self.reduced(path, digest, ended))
        self.announce(events.ReductionStarted(path))
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
        self.order(argv, REDUCE_SECONDS, lambda ended: self.bisected(path, ended), column.variables)
        self.announce(events.BisectStarted(path, commits[0], commits[1]))
        return ""

    def order(
        self, argv: tuple[str, ...], seconds: float, then: Callable[[Ended], None], env: Mapping[str, str] = NO_VARIABLES
    ) -> None:  # fmt: skip
        """Have it run; ``then`` hears of its end."""
        number = next(NUMBERS)
        self.running[number] = then
        self.pool.run(Order(number, argv, RunMode.FRESH, seconds, nice=LOWEST_PRIORITY, env=env))

    def next_capture(self, repros: Iterable[Repro]) -> tuple[Path, str] | None:
        """A capture that nobody has tried as it is now, or is trying, and whose failure no repro shows yet, the oldest first."""
        found = captures_in(self.folder)
        here = {str(repro.path): repro for repro in repros if found and not repro.damage}
        shown = {failure_of(one.spec, one.provenance.nodes or one.nodes): one.name for one in here.values()}
        known = self.history.background() if found else {}
        waiting = []
        for path, read in found:
            ends = [
                end
                for end in (known.get(str(path)), reduced(path))
                if end is not None and end[0] == read.digest
            ]
            if not ends:
                waiting.append((path, read))
            elif (made := here.get(ends[-1][1])) is not None:
                shown[read.program] = made.name
        for path, read in waiting:
            if self.kinds and read.kind not in self.kinds:
                continue
            repro = shown.get(read.failure) or shown.get(read.program)
            if repro is not None:
                self.announce.once((path, read.digest), events.CaptureKnown(str(path), repro))
            elif not is_claimed(path):
                return path, read.digest
        return None

    def ended(self, message: Ended) -> bool:
        """Hear of an order; whether it was ours. A reduction that was cut off by us is tried again later."""
        then = self.running.pop(message.id, None)
        if then is not None and not message.cancelled and not message.lost:
            then(message)
        return then is not None

    def tell_deaths(self, ended: Ended) -> None:
        for capture in (last_json(ended.stdout) or {}).get("captures", ()):
            self.announce(events.ProcessDied(capture))

    def bisected(self, path: str, ended: Ended) -> None:
        said = last_json(ended.stdout)
        text = last_line(ended.stderr)
        if said:
            text = f"{said['commit'][:10]} {said['subject']} ({said['author']})"
        self.announce(events.BisectFinished(path, text, said["commit"] if said else None))

    def reduced(self, capture: str, digest: str, ended: Ended) -> None:
        """A reduction has ended: remember that, and tell what came of it."""
        said = last_json(ended.stdout) or {}
        repro = said.get("path")
        reason = last_line(ended.stderr) or str(said.get("verdict") or f"status {ended.status}")
        self.history.put_background(capture, digest, time.time(), str(repro or reason))
        self.announce(events.ReductionFinished(capture, repro, "" if repro else reason))


class Capture(NamedTuple):
    """What is to be known of a capture without torch."""

    digest: str
    kind: Kind
    failure: str
    program: str
    """Equal for captures of the same program, graph and settings, wherever its lines stand in the source and whichever rank it was."""


def captures_in(folder: Path) -> list[tuple[Path, Capture]]:
    """The captures of the repro folder, the oldest first."""
    stamps = {path: stamp_of(path) for path in glob(folder / HIDDEN / "captures", "*.py")}
    oldest_first = sorted(stamps, key=lambda path: stamps[path][1])
    return [(path, read) for path in oldest_first if (read := read_capture(path, stamps[path])) is not None]


def unreduced(folder: Path) -> list[Path]:
    """The captures of the repro folder that nobody has reduced as they are now, the oldest first."""
    return [
        path for path, read in captures_in(folder) if (end := reduced(path)) is None or end[0] != read.digest
    ]


@lru_cache(maxsize=1024)
def read_capture(path: Path, stamp: tuple[int, ...]) -> Capture | None:
    """The capture at ``path``, whose files have this ``stamp``: it is asked for every second.

    None for one that is damaged, still being written, or of another layout, which is reduced on request.
    """
    try:
        data = read_regular(path, SCRIPT_LIMIT_BYTES)
        text = text_of(data)
        table = header_table(text)
        spec, nodes = RunSpec.from_table(table), Provenance.from_table(table).nodes or nodes_in(table)
        program = repr(spec) + program_of(text)
    except (OSError, *DAMAGE):
        return None
    if spec.expected.message == LAYOUT:
        return None
    digest = hashlib.sha1(data, usedforsecurity=False).hexdigest()
    return Capture(digest, spec.expected.kind, failure_of(spec, nodes), program)


def program_of(text: str) -> str:
    """A digest of what a capture runs: of its text without the docstring in front, the header and the comments behind lines."""
    code = re.sub(r"(?ms)\A\"\"\".*?\"\"\"|^# .*?$|  # .*?$", "", text)
    return hashlib.sha1(code.encode("utf-8", "backslashreplace"), usedforsecurity=False).hexdigest()


def reduced(capture: Path) -> tuple[str, str] | None:
    """The digest of the capture when somebody last reduced it, by ``minidbg run`` or ``minidbg reduce``, and the repro or nothing."""
    try:
        told = json.loads(read_regular(capture.with_suffix(".reduced"), NOTE_LIMIT_BYTES))
        return str(told["digest"]), str(
            told.get("written", {}).get("path") or ""
        )  # an earlier version told no more
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def failure_of(spec: RunSpec, nodes: int) -> str:
    """What a capture and the repro that it was reduced to have in common: backend, failure, and the size at capture."""
    failure = spec.expected
    return repr([spec.backend.name, failure.kind, failure.types, failure.message, failure.frames[:1], nodes])


# The build before a sweep


@dataclass(slots=True)
class Builds:
    """When the build command runs, and what its end means for sweeps."""

    listener: Callable[[Built], None]
    watched: Watched
    history: History
    announce: Announcer
    current: Build | None = None
    repeated: bool = False
    """Whether the build was begun once more because of an edit under it."""

    def begin(self) -> bool:
        """Start a build if the outputs may be those of other code; whether one runs now."""
        command = self.watched.settings.build
        if not command or not self.watched.needs_build:
            return False
        self.watched.mark(Mark.BUILD)
        self.watched.marks.pop(Mark.BUILT, None)
        self.current = Build(command, self.watched.settings.folder, self.listener)
        self.announce(events.BuildStarted(command))
        return True

    def ended(self, message: Built) -> bool:
        """Hear of a build; whether it went well. A file edited under it may have been missed: then another one is needed, once."""
        if message.build is not self.current:
            return False
        self.current = None
        self.watched.look(everywhere=True)
        seconds = round(message.seconds, 3)
        if message.status != 0:
            self.watched.mark(Mark.BUILD_FAILED)
            self.announce(events.BuildFailed(message.status, seconds, message.output, message.error))
            number = self.history.start_sweep(time.time(), code=self.watched.snapshot.digest(), files=[])
            self.history.end_sweep(number, time.time(), "build_failed")
            return False
        self.watched.marks.pop(Mark.BUILD_FAILED, None)
        self.announce(events.BuildFinished(seconds))
        edited = set(self.watched.changed_since(Mark.BUILD)) - self.watched.always
        self.repeated = bool(edited) and not self.repeated
        if not self.repeated:
            self.watched.mark(Mark.BUILT)
        return True

    def cancel(self) -> None:
        """End the build under way, and hear no more of it."""
        if self.current is not None:
            self.current.cancel()
            self.current = None
