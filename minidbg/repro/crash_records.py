"""Crash records: what a process wrote down before a step of a backend that it may not survive.

A record is a repro script like any other, in ``.minidbg/crash_records/`` of the repro folder, with
the tensors that must keep their values beside it. Its name says whose it is and what was going on;
a change of that is a renaming, so that a record costs one write. Nothing here runs a record.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from minidbg.core.files import read_regular
from minidbg.core.machine import Clock
from minidbg.core.script_header import HIDDEN, SCRIPT_LIMIT_BYTES
from minidbg.repro.folder import IGNORE, captures, hidden
from minidbg.workers.leftovers import has_ended, started_ms, this_place

RECORD_FOLDER = "crash_records"
LONG_S = 5.0
"""After so many seconds in a step a process may hang."""
FOREIGN_AFTER_S = 3600.0
"""A record of another machine, whose processes are unseen, counts as left behind at this age."""
RECORD_NAME = re.compile(
    r"(?P<place>\w+)-(?P<pid>\d+)-(?P<started>\d+)-(?P<number>\d+)\.(?P<step>[a-z-]+)\.py"
)


class Step(enum.StrEnum):
    COMPILE = "compile"
    RUN = "run"
    WAITING = "waiting"
    """Taking part in a collective of the graph, which ends when the other ranks come to it."""
    BACKWARD = "backward"
    """Compiling or running it."""
    IDLE = "idle"
    """Nothing: a process that ends now does not end because of this graph."""
    INTERRUPTED = "interrupted"
    """Somebody pressed Ctrl-C while it took long: a hang, perhaps."""


DOING = {
    Step.COMPILE: "compiling a graph",
    Step.RUN: "running a graph for the first time",
    Step.BACKWARD: "running or compiling a backward for the first time",
    Step.WAITING: "waiting for other ranks in a collective of a graph, which is no failure of the backend",
    Step.INTERRUPTED: "in a step that took long and was interrupted",
}


class RecordName(NamedTuple):
    place: str
    """Machine and process namespace; process numbers mean something only there."""
    pid: int
    started_ms: int
    """When the process started, milliseconds of the epoch."""
    number: int
    step: Step

    def __str__(self) -> str:
        return f"{self.place}-{self.pid}-{self.started_ms}-{self.number}.{self.step}.py"


def own_name(number: int, step: Step) -> RecordName:
    pid = os.getpid()
    return RecordName(this_place(), pid, started_ms(pid), number, step)


def read_name(path: Path) -> RecordName | None:
    found = RECORD_NAME.fullmatch(path.name)
    if found is None or found["step"] not in list(Step):
        return None
    pid, started, number = map(int, found.group("pid", "started", "number"))
    return RecordName(found["place"], pid, started, number, Step(found["step"]))


def make_record_folder(folder: Path | str) -> Path:
    return hidden(folder, RECORD_FOLDER)


def remove_if_unused(folder: Path) -> None:
    """Take the repro folder away when nothing lies in it but what was made for records."""
    place = folder / HIDDEN
    with contextlib.suppress(OSError):
        (place / RECORD_FOLDER).rmdir()
        if [path.name for path in place.iterdir()] == [IGNORE]:
            (place / IGNORE).unlink()
            place.rmdir()
            folder.rmdir()


def records_of_dead(folder: Path | str, clock: Clock = time.time) -> list[Path]:
    """Those whose process died in a backend's step, newest first. Of living ones all stay; what one
    left that ended between steps is removed."""
    dead = [(path, name) for path, name in records(folder) if is_left_behind(path, name, clock)]
    for path, name in dead:
        if name.step is Step.IDLE:
            remove_record(path)
    found = [path for path, name in dead if name.step not in (Step.IDLE, Step.WAITING)]
    return sorted(found, key=modified, reverse=True)


def waited_in_vain(folder: Path | str) -> list[Path]:
    """The records of processes that ended while waiting for another rank: no backend's failures."""
    return [at for at, name in records(folder) if name.step is Step.WAITING and is_left_behind(at, name)]


def at_work(folder: Path | str, clock: Clock = time.time) -> Iterator[str]:
    """What the living processes are at that have been in one step for long, one line each."""
    for path, name in records(folder):
        seconds = clock() - modified(path)
        if name.step in DOING and seconds > LONG_S and not is_left_behind(path, name):
            yield f"{process_of(path, name)}, for {seconds:.0f} s: {DOING[name.step]}"


def death(path: Path) -> str:
    """The fate of a record's process: ``process 12 (rank 1 of 4) died while compiling a graph``."""
    name = read_name(path)
    return "" if name is None else f"{process_of(path, name)} died while {DOING.get(name.step, 'at rest')}"


def process_of(path: Path, name: RecordName) -> str:
    """Its number, and its rank in a job of several."""
    text = ""
    with contextlib.suppress(OSError):
        text = read_regular(path, SCRIPT_LIMIT_BYTES).decode(errors="replace")
    rank = re.search(r"(?i)seen on (rank \d+ of \d+)", text)
    return f"process {name.pid} ({rank[1]})" if rank else f"process {name.pid}"


def records(folder: Path | str) -> Iterator[tuple[Path, RecordName]]:
    """Every record in the repro folder; links are none, so that nothing outside can be meant."""
    place = Path(folder) / HIDDEN / RECORD_FOLDER
    with contextlib.suppress(OSError):
        for path in sorted(place.iterdir()):
            name = read_name(path)
            if name is not None and path.is_file() and not path.is_symlink():
                yield path, name


def is_left_behind(path: Path, name: RecordName, clock: Clock = time.time) -> bool:
    if name.place != this_place():
        return clock() - modified(path) > FOREIGN_AFTER_S
    return has_ended(name.pid, name.started_ms)


def modified(path: Path) -> float:
    try:
        return path.stat().st_ctime
    except OSError:
        return 0.0


def as_capture(path: Path) -> Path:
    """Move a record to the captures of its repro folder; the new path. One graph gives one file.
    Raises OSError, and FileNotFoundError when another process was faster."""
    digest = hashlib.sha256(read_regular(path, SCRIPT_LIMIT_BYTES)).hexdigest()[:6]
    target = captures(path.parent.parent.parent) / f"crash_{digest}.py"
    with contextlib.suppress(FileNotFoundError):
        os.replace(tensors_of_record(path), target.with_suffix(".safetensors"))
    os.replace(path, target)
    return target


def remove_record(path: Path) -> None:
    path.unlink(missing_ok=True)
    tensors_of_record(path).unlink(missing_ok=True)


def tensors_of_record(path: Path) -> Path:
    return path.with_name(path.name.partition(".")[0] + ".safetensors")
