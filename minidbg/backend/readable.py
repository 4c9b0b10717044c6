"""A report as the last value of a cell: its line and the script, for notebooks and for IPython in a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from minidbg.repro.render import DIVIDER


class HasPath(Protocol):
    """What is shown."""

    @property
    def path(self) -> Path | None: ...
    @property
    def line(self) -> str: ...


class Readable:
    """Gives a report the two methods by which notebooks and IPython show a value."""

    __slots__ = ()

    def __repr__(self: HasPath) -> str:
        return f"<minidbg report: {self.line}>"

    def _repr_markdown_(self: HasPath) -> str:
        # Markdown rather than HTML: the notebook brings the highlighting, in the reader's own colours.
        script = script_of(self)
        return f"**minidbg**: {self.line}" + (f"\n\n```python\n{script}\n```" if script else "")

    def _repr_pretty_(self: HasPath, printer: Any, _cycle: bool) -> None:
        script = script_of(self)
        printer.text(f"minidbg: {self.line}" + (f"\n\n{script}" if script else ""))


def script_of(report: HasPath) -> str:
    """The part of the repro that is about the failure; empty when there is none, or it has gone."""
    try:
        text = report.path.read_text(encoding="utf-8") if report.path else ""
    except OSError:
        return ""
    return text.split(DIVIDER)[0].rstrip()
