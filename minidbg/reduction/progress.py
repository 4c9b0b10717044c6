"""What a person sees while a reduction runs: a bar on a terminal, a quiet line now and then elsewhere."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TextIO, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

QUIET_S = 5.0
"""Least seconds between two lines where no terminal shows a bar."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a reduction stands after an oracle call."""

    phase: str
    """``bisect``, ``certify``, ``verify``: a word for people."""
    nodes: int
    """Call nodes of the smallest graph that still fails."""
    start_nodes: int
    oracle_calls: int
    seconds: float
    rest_seconds: float | None = None
    """About how long it still takes, where that can be said."""


Listener: TypeAlias = Callable[[Progress], None]


def silent(event: Progress) -> None:
    """The listener of those who asked for none."""


@contextmanager
def on_stream(stream: TextIO) -> Iterator[Listener]:
    """A listener that writes to ``stream``, in the form that suits it; the bar is gone when the block ends."""
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        with bar(stream) as listener:
            yield listener
    else:
        yield lines(stream)


@contextmanager
def bar(stream: TextIO) -> Iterator[Listener]:
    """A transient rich progress bar. It draws only when told: a drawing thread would not survive the forks."""
    columns = (
        TextColumn("minidbg: {task.fields[phase]}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("nodes removed, {task.fields[nodes]} left, {task.fields[calls]} oracle calls"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[rest]}"),
    )
    with RichProgress(*columns, console=Console(file=stream), auto_refresh=False, transient=True) as display:
        task = display.add_task("", total=None, phase="reducing", nodes="?", calls=0, rest="")

        def listener(event: Progress) -> None:
            display.update(
                task,
                total=event.start_nodes,
                completed=event.start_nodes - event.nodes,
                phase=event.phase,
                nodes=event.nodes,
                calls=event.oracle_calls,
                rest=rest_of(event).removeprefix(", "),
            )
            display.refresh()

        yield listener


def lines(stream: TextIO) -> Listener:
    """A listener that writes a line at most every ``QUIET_S`` seconds of the reduction's own clock."""
    last = 0.0

    def listener(event: Progress) -> None:
        nonlocal last
        if event.seconds - last < QUIET_S:
            return
        last = event.seconds
        stream.write(
            f"minidbg: {event.phase}: {event.start_nodes} -> {event.nodes} nodes, "
            f"{event.oracle_calls} oracle calls, {event.seconds:.0f} s{rest_of(event)}\n"
        )
        stream.flush()

    return listener


def rest_of(event: Progress) -> str:
    """``, about 12 s more``, or nothing where that cannot be said."""
    return "" if event.rest_seconds is None else f", about {math.ceil(event.rest_seconds)} s more"


def as_events(log: Callable[..., object]) -> Listener:
    """A listener for machines: each event becomes a call ``log("reduction", phase=..., nodes=..., ...)`` (structlog's form)."""

    def listener(event: Progress) -> None:
        log("reduction", **asdict(event))

    return listener
