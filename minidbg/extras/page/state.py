"""The state of watch as a page, and a page of each repro.

Both templates are given values only; they escape all of them.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from minidbg.core import templates
from minidbg.core.errors import MinidbgError
from minidbg.core.files import read_regular
from minidbg.core.script_header import SCRIPT_LIMIT_BYTES, parse_header, text_of
from minidbg.core.text import display_path, moment, plural, printable
from minidbg.watch import queries
from minidbg.watch.events import Event, Matrix
from minidbg.watch.repros import read_repro, repro_name
from minidbg.watch.views import View

PAGE_HISTORY_ENTRIES = 50
SHOWN_CHARACTERS = 200_000
"""Of a script."""
PAGE_STYLE, PAGE_SCRIPT = (templates.fill(name, {}) for name in ("page.css", "page.js"))


class Page(View):
    """The state, kept up to date by events, and its HTML."""

    def __init__(self) -> None:
        self.matrix = Matrix()
        self.changes = 0
        self.lock = threading.Lock()

    def show(self, event: Event) -> None:
        with self.lock:
            event.update(self.matrix)
            self.changes += 1

    def html(self, template: str = "page.html.j2") -> str:
        with self.lock:
            home = display_path(self.matrix.home) if self.matrix.home else ""
            return filled(template, matrix=self.matrix, home=home)

    def details_page(self, name: str) -> str:
        """Its failure, what was seen of it, and its script. Raises MinidbgError for an unknown
        name."""
        with self.lock:
            # an address has the name as it is shown: a file's need not be UTF-8
            name = {printable(repro): repro for repro, _ in self.matrix.cells}.get(name, name)
            cells, home = self.matrix.of_repro(name), Path(self.matrix.home)
        path = home / name
        if not cells or (repro := read_repro(path, repro_name(path, home))) is None:
            raise MinidbgError(f"no repro {printable(name)} is watched")
        script, header = "", None
        try:
            if not repro.damage:  # else it is nobody's to read, such as what a link leads to
                script = text_of(read_regular(path, SCRIPT_LIMIT_BYTES))
                header = parse_header(script, path)
            if (rest := len(script) - SHOWN_CHARACTERS) > 0:
                script = f"{script[:SHOWN_CHARACTERS]}\n# ... and {plural(rest, 'more character')}"
        except (OSError, ValueError) as error:
            script = f"# cannot be read: {error}"
        past = queries.history_text(queries.history_of(path, PAGE_HISTORY_ENTRIES))
        values = {"cells": cells, "repro": repro, "header": header, "script": script, "past": past}
        return filled("details.html.j2", **values)


def filled(template: str, **values: Any) -> str:
    return templates.fill(template, {
        **values, "style": PAGE_STYLE, "script_of_page": PAGE_SCRIPT, "moment": moment,
        "printable": printable,
    })  # fmt: skip
