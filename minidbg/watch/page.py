"""The matrix of repros and devices as an HTML page that is kept up to date: a view like the terminal's, for a browser or a wall."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import jinja2

from minidbg.watch.announce import Event
from minidbg.watch.matrix import Cell, Matrix, clock, span
from minidbg.watch.plain import printable

PACKAGE = Path(__file__).parent.parent
FOLDERS = (PACKAGE / "repro_templates", PACKAGE.parent / "repro_templates")
"""As in ``minidbg.repro.templates``, which would load torch; the daemon holds none."""
BETWEEN_S = 1.0
"""Seconds between two writings while a sweep runs."""
RELOAD_S = 3
ENDS = ("sweep_finished", "flip", "started", "paused", "resumed", "backend_broken", "backend_back", "notice")
"""Events after which the page is written at once."""


@dataclass(slots=True)
class Page:
    """Hears every event and keeps the file up to date; a reader sees the old page or the new one, whole."""

    path: Path
    matrix: Matrix = field(default_factory=Matrix)
    clock: Callable[[], float] = time.time
    written: float = 0.0

    def show(self, event: Event) -> None:
        """Take the event in. A file that cannot be written any more ends nothing."""
        self.matrix.hear(event)
        if event.name in ENDS or self.clock() - self.written >= BETWEEN_S:
            self.write(running=True)

    def close(self) -> None:
        """The last page: it reloads no more, and says that nobody watches."""
        self.write(running=False)

    def write(self, *, running: bool) -> None:
        """Write the page."""
        self.written = self.clock()
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        with contextlib.suppress(OSError):
            draft.write_text(page(self.matrix, running=running, now=self.clock()), encoding="utf-8")
            os.replace(draft, self.path)


def page(matrix: Matrix, *, running: bool, now: float) -> str:
    """The page of the matrix as it is."""
    devices = matrix.devices()
    return template().render(
        home=matrix.home,
        activity=activity(matrix, running=running),
        cause=matrix.cause if matrix.began is not None else "",
        reload_s=RELOAD_S if running else 0,
        counts=sorted(counted(matrix).items()),
        broken=[f"{backend} on {device}: {why}" for (backend, device), why in matrix.broken.items()],
        flips=[(clock(at), kind, printable(text)) for at, kind, text in matrix.flips],
        devices=devices,
        rows=list(rows(matrix, devices, now)),
        notices=[(clock(at), printable(text)) for at, text in matrix.notices],
        made=time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now)),
    )


def activity(matrix: Matrix, *, running: bool) -> str:
    """What the daemon does, in words."""
    if not running:
        return "not watched any more"
    if matrix.paused:
        return "paused"
    if matrix.began is not None and matrix.total:
        return f"{matrix.activity}: {matrix.seen} of {matrix.total}"
    return matrix.activity


def counted(matrix: Matrix) -> dict[str, int]:
    """How many cells show each verdict."""
    counts: dict[str, int] = {}
    for cell in matrix.cells.values():
        verdict = cell.verdict or "unseen"
        counts[verdict] = counts.get(verdict, 0) + 1
    return counts


def rows(
    matrix: Matrix, devices: Sequence[str], now: float
) -> Iterator[tuple[str, list[tuple[str, str]], str]]:
    """Name, verdict and words of each device, and a remark; what needs attention first."""
    for name in sorted({name for name, _ in matrix.cells}, key=matrix.attention):
        cells = [matrix.cells.get((name, device)) for device in devices]
        remark = next((cell.note for cell in cells if cell and cell.note), "")
        yield printable(name), [told(cell, now) for cell in cells], printable(remark)


def told(cell: Cell | None, now: float) -> tuple[str, str]:
    """Verdict and words of a cell."""
    if cell is None:
        return "unseen", "-"
    words = cell.verdict or "not seen yet"
    words += f" → {cell.maybe}?" if cell.maybe else ""
    words += f" for {span(now - cell.since)}" if cell.since is not None else ""
    return cell.verdict or "unseen", words


@cache
def template() -> jinja2.Template:
    """The page's template."""
    loader = jinja2.FileSystemLoader([str(folder) for folder in FOLDERS])
    environment = jinja2.Environment(
        loader=loader, undefined=jinja2.StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("matrix.html.j2")
