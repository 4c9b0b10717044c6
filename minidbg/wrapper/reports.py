"""What became of a failure, on the exception that the user catches."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minidbg.core.foreign import attribute_of, chain_of
from minidbg.core.script_header import START

ATTRIBUTE = "minidbg_report"


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """What became of a failure. A notebook and IPython show it with the script."""

    line: str
    """The result for people, one line: ``812 -> 1 nodes, 14 runs, 3.2 s; run: python ...``; or why
    nothing was written."""
    path: Path | None = None
    """The verified repro."""
    capture: Path | None = None
    """The unreduced capture."""
    missing_backend: Path | None = None
    """The reduced script that lacks its backend, where nothing leads to that: no verified repro."""

    def __repr__(self) -> str:
        return f"<minidbg report: {self.line}>"

    def _repr_markdown_(self) -> str:
        # Markdown rather than HTML: the notebook brings the highlighting, in the reader's own colours.
        script = self.script()
        return f"**minidbg**: {self.line}" + (f"\n\n```python\n{script}\n```" if script else "")

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        script = self.script()
        printer.text(f"minidbg: {self.line}" + (f"\n\n{script}" if script else ""))

    def script(self) -> str:
        """The part of the repro that is about the failure; empty when there is none, or it has gone."""
        try:
            path = self.path or self.missing_backend
            text = path.read_text(encoding="utf-8") if path else ""
        except OSError:
            return ""
        return START.split(text)[0].rstrip()


def report_of(error: BaseException | None) -> Report | None:
    """What minidbg wrote about ``error``, or about the exception that it wraps or was raised from; else None.

    ``.path`` is the verified repro (None when there is none), ``.capture`` the unreduced capture,
    ``.line`` the result in one line. As the last value of a notebook's cell it shows the script.
    """
    return next((report for one in chain_of(error) if (report := own_report(one)) is not None), None)


def own_report(error: BaseException) -> Report | None:
    report = attribute_of(error, ATTRIBUTE)
    return report if isinstance(report, Report) else None


def set_report(error: BaseException, report: Report) -> None:
    for one in (error, attribute_of(error, "inner_exception")):
        if isinstance(one, BaseException):
            with contextlib.suppress(AttributeError, TypeError):  # a type that takes no attribute
                # exceptions that are frozen dataclasses refuse a plain assignment
                object.__setattr__(one, ATTRIBUTE, report)


def add_line(error: BaseException, report: Report) -> None:
    """Let the report's line be the last thing that is printed for ``error``; once."""
    note = f"minidbg: {report.line}"
    with contextlib.suppress(Exception):  # one that refuses notes stays without
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
