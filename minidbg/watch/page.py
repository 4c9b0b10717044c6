"""The matrix as a page that a browser reloads."""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from minidbg.watch.announce import Event
from minidbg.watch.matrix import Matrix


class Page:
    """Hears every event and keeps an HTML file of the matrix up to date; a reader sees the old page or the new one, whole."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path, self.clock, self.written = path, clock, 0.0
        self.matrix = Matrix(clock=clock)

    def show(self, event: Event) -> None:
        """Take the event in. A file that cannot be written any more ends nothing."""
        self.matrix.hear(event)
        if event.name in PAGE_ENDS or self.clock() - self.written >= PAGE_BETWEEN_S:
            self.write(running=True)

    def close(self) -> None:
        """The last page: it reloads no more, and says that nobody watches."""
        self.matrix.activity, self.matrix.began = "not watching any more", None
        self.write(running=False)

    def write(self, *, running: bool) -> None:
        """Write the page: the matrix, and the errors of all rows in full."""
        self.written = self.clock()
        matrix, console = (
            self.matrix,
            Console(width=PAGE_WIDTH, record=True, file=io.StringIO(), force_terminal=True),
        )
        console.print(matrix.render(PAGE_WIDTH, 1 << 20))
        for name in matrix.names():
            matrix.selected = name
            for text in matrix.details(PAGE_WIDTH):
                console.print(text, markup=False, highlight=False)
        matrix.selected = ""
        reload = f'<meta http-equiv="refresh" content="{RELOAD_S}">' if running else ""
        page = console.export_html(code_format=PAGE.replace("RELOAD", reload), inline_styles=True)
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        with contextlib.suppress(OSError):
            draft.write_text(page, encoding="utf-8")
            os.replace(draft, self.path)


PAGE = """<!doctype html><html><head><meta charset="utf-8">RELOAD<title>minidbg watch</title></head>
<body style="background: #111; color: #ddd"><pre style="font-family: monospace">{code}</pre></body></html>
"""
PAGE_WIDTH = 160
PAGE_BETWEEN_S = 1.0
"""Seconds between two writings while a sweep runs."""
RELOAD_S = 3
PAGE_ENDS = frozenset(
    [
        "sweep_finished",
        "flip",
        "started",
        "paused",
        "resumed",
        "backend_broken",
        "backend_back",
        "build_failed",
        "notice",
    ]
)
"""Events after which the page is written at once."""
