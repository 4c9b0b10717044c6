"""What a reduction may spend, how far it is, and what became of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from minidbg import torch_internals
from minidbg.core.machine import HERE
from minidbg.core.outcome import Verdict
from minidbg.core.records import plain, record_of
from minidbg.core.run_spec import how_to_supply_backend
from minidbg.core.settings import VALUE_LIMIT_BYTES
from minidbg.core.text import display_path, plural


def shrinkage(before: int, after: int) -> str:
    """``44 -> 1 nodes``; ``1 node, nothing to remove``."""
    if before != after:
        return f"{before} -> {after} nodes"
    return f"{plural(after, 'node')}, {'nothing to remove' if after == 1 else 'none removed'}"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a reduction may spend, waiting and the verification of its result included."""

    seconds: float = 300.0
    max_calls: int | None = None
    call_seconds: float = 60.0
    """Time limit of one run."""
    memory_bytes: int | None = None
    value_limit_bytes: int = VALUE_LIMIT_BYTES
    """Most bytes of real tensor values that the script may store."""
    jobs: int = min(2, HERE.processors())
    """Runs at the same time, where they do not depend on each other. One gives the same result."""
    due: float | None = None
    """When ``seconds`` are over, by ``time.monotonic``, where somebody has waited for the answer
    since before the reduction began."""


@dataclass(frozen=True, slots=True)
class ReductionResult:
    """What became of a case: the verified repro, or why there is none."""

    path: Path | None
    """The verified repro at the top of the folder, or the script that is ``lacking`` its backend;
    None when no form of the case failed in a fresh interpreter."""
    nodes_before: int
    nodes_after: int
    oracle_calls: int
    """Calls in all, those of an interrupted reduction that this one went on from included."""
    seconds: float
    certified: bool
    verdict: Verdict
    """Of the last run in a fresh interpreter."""
    notes: tuple[str, ...] = ()
    also_found: int = 0
    """Other failures met on the way."""
    others: tuple[tuple[str, str], ...] = ()
    """What those said that were kept, and the captures that hold them."""
    known_before: bool = False
    """Whether an earlier reduction found it, and its repro was only run again."""
    ended_by: str = ""
    """What ended it before its end: ``budget of 8 s``."""
    lacking: str = ""
    """What a person must add to the script, then no verified repro: ``a closure of train.py:4``."""

    @property
    def line(self) -> str:
        counts = f"{shrinkage(self.nodes_before, self.nodes_after)}, "
        if self.known_before and self.path is not None:
            counts = f"{counts.partition(',')[0]}, found before, and its repro still fails"
            return f"{counts}; run: python {display_path(self.path)}"
        counts += f"{plural(self.oracle_calls, 'run')}, {self.seconds:.1f} s"
        if self.path is None and self.ended_by:
            return f"{counts}; not verified: {self.ended_by}"
        if self.path is None:
            said = f": {'; '.join(self.notes)}" if self.notes else ""
            return f"{counts}; no verified repro ({self.verdict} in a fresh interpreter){said}"
        why = f": {self.ended_by}" if self.ended_by else ""
        extra = f" (values and settings not simplified{why})" if why else ""
        extra = extra if self.certified else f" (not certified as minimal{why})"
        failures = plural(self.also_found, "other failure")
        also = f"; also found: {failures}" if self.also_found else ""
        if self.others:  # also found: `input 3 differs`, in .minidbg/captures/accuracy_mm_12ab34.py
            said, path = self.others[0]
            more = f" ({self.also_found - 1} more beside it)" if self.also_found > 1 else ""
            also = f"; also found: `{said}`, in {display_path(path)}{more}"
        counts += f"{extra}{also}"
        if self.lacking:
            return f"{counts}; a reduced {how_to_supply_backend(self.path, self.lacking)}"
        return f"{counts}; run: python {display_path(self.path)}"

    def to_json(self) -> dict[str, Any]:
        data = {**plain(self), "seconds": round(self.seconds, 3)}
        return data if self.lacking else {name: data[name] for name in data if name != "lacking"}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ReductionResult:
        """Read ``to_json`` back. Raises KeyError, TypeError or ValueError on a damaged object."""
        return record_of({**data, "path": Path(data["path"]) if data["path"] else None}, cls)


PROGRESS_QUIET_S = 5.0
"""Least seconds between two lines where no terminal shows a bar."""


@dataclass(frozen=True, slots=True)
class Progress:
    phase: str
    """``bisect``, ``certify``, ``verify``: a word for people."""
    nodes: int
    """Call nodes of the smallest graph that still fails."""
    start_nodes: int
    oracle_calls: int
    seconds: float


Listener: TypeAlias = Callable[[Progress], None]


def silent(event: Progress) -> None:
    """The listener of those who asked for none."""


@contextmanager
def on_stream(stream: TextIO) -> Iterator[Listener]:
    """A block with a listener that writes to ``stream``: on a terminal a bar, gone when the block
    ends; else a line every ``PROGRESS_QUIET_S`` at most."""
    last = 0.0

    def write(event: Progress) -> None:
        nonlocal last
        if event.seconds - last >= PROGRESS_QUIET_S:
            last = event.seconds
            stream.write(f"minidbg: {event.phase}: {figures_of(event)}\n")
            stream.flush()

    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        yield write
        return
    with torch_internals.restoring_random_numbers():  # rich draws one when it is imported
        from rich.console import Console
        from rich.progress import BarColumn, Task, TextColumn
        from rich.progress import Progress as RichProgress
        from rich.table import Column
        from rich.text import Text

    class CutOff(TextColumn):  # where the terminal is narrow: the figures beside it stay whole
        def render(self, task: Task) -> Text:
            words = super().render(task)
            words.no_wrap, words.overflow = True, "ellipsis"
            return words

    words = CutOff("minidbg: {task.fields[phase]}", table_column=Column())  # may be narrow itself
    bar = BarColumn(bar_width=None, table_column=Column(max_width=12))
    figures, console = TextColumn("{task.fields[figures]}"), Console(file=stream)
    # it draws only when told: a drawing thread would not survive the forks
    bars = RichProgress(words, bar, figures, console=console, auto_refresh=False, transient=True)
    with bars as display:
        task = display.add_task("", total=None, phase="reducing", figures="")

        def draw(event: Progress) -> None:
            total, figures = event.start_nodes, figures_of(event)
            done = total - event.nodes
            display.update(task, total=total, completed=done, phase=event.phase, figures=figures)
            display.refresh()

        yield draw


def figures_of(event: Progress) -> str:
    """``800 -> 12 nodes after 7 runs, 5 s``; only the seconds if a reduction has not begun."""
    clock = f"{event.seconds:.0f} s"
    start, nodes = event.start_nodes, event.nodes
    if not start:
        return clock
    size = f"{start} -> {nodes} nodes" if nodes != start else plural(nodes, "node")
    return f"{size} after {plural(event.oracle_calls, 'run')}, {clock}"
