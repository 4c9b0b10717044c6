"""Processes of a program that did not come back from a backend: the case that each has left, reduced."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from minidbg.printable import display_path
from minidbg.processes.deaths import last_json
from minidbg.repro import flights
from minidbg.repro.flights import RecordName, Step
from minidbg.run.launch import Ending
from minidbg.settings import Reduce, Settings

GRACE_S = 180.0
"""What reducing may take beyond its budget: loading the backend, and verifying."""


@dataclass(frozen=True, slots=True)
class Death:
    """A process that did not come back from a backend, and the case that it left."""

    name: RecordName
    record: Path


def since(folder: Path, began: float) -> list[Death]:
    """The records of processes that started since ``began`` and are dead."""
    found = []
    for record in (*flights.dead_flights(folder), *flights.waited_in_vain(folder)):
        name = flights.read_name(record)
        if name is not None and name.started_ms / 1000 >= began - flights.SAME_START_S:
            found.append(Death(name, record))
    return found


def answered(
    death: Death, settings: Settings, ending: Ending, say: Callable[[str], object]
) -> tuple[str, Path | None]:
    """The line for a death, and the repro that was made of it."""
    happened = flights.death(death.record)
    if ending.signal is not None:
        happened += f" (the program ended by {signal.Signals(ending.signal).name})"
    elif ending.status:
        happened += f" (the program ended with status {ending.status})"
    if death.name.step is Step.WAITING:
        flights.remove(death.record)
        return happened, None
    try:
        capture = flights.as_capture(death.record)
    except FileNotFoundError:
        return f"{happened}; another minidbg has taken its record", None
    except OSError as error:
        return f"{happened}; its record {death.record} cannot be moved ({error})", None
    shown = display_path(capture)
    if settings.reduce is Reduce.LATER:
        return f"{happened}; run: minidbg reduce {shown}", None
    if ending.was_interrupted or death.name.step is Step.INTERRUPTED:
        return f"{happened}; if the backend hung, run: minidbg reduce {shown}", None
    say(f"{happened}; reducing what it was at")
    return reduced(capture, settings, happened)


def reduced(capture: Path, settings: Settings, happened: str) -> tuple[str, Path | None]:
    """Reduce the capture in a process of its own, which the backend's import may kill."""
    command = [sys.executable, "-m", "minidbg", "reduce", "-q", str(capture), "--json", "--seconds"]
    command.append(f"{settings.seconds:g}")
    began = time.monotonic()
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, timeout=settings.seconds + GRACE_S, check=False, text=True
        )
    except subprocess.TimeoutExpired:
        return (
            f"{happened}; reducing it took {time.monotonic() - began:.0f} s and was ended: {display_path(capture)}",
            None,
        )
    written = last_json(done.stdout) or {}
    if written.get("path"):
        path = Path(written["path"])
        counts = f"{written['nodes_before']} -> {written['nodes_after']} nodes, {written['oracle_calls']} oracle calls"
        return f"{happened}: {counts}; run: python {display_path(path)}", path
    return (
        f"{happened}; that could not be brought about again, its case is kept: {display_path(capture)}",
        None,
    )
