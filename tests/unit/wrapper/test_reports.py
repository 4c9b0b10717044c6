"""The report on a failure: found on what the user catches, shown in a notebook, printed once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from minidbg.wrapper.process import Report, add_line, own_report, report_of, set_report

REPORT = Report("3 -> 1 nodes; run: python r.py")


def wraps(inner: BaseException) -> Exception:
    """As dynamo's BackendCompilerFailed does."""
    outer = ValueError("outer")
    outer.inner_exception = inner  # type: ignore[attr-defined]
    return outer


def raised_from(cause: BaseException) -> Exception:
    outer = ValueError("outer")
    outer.__cause__ = cause
    return outer


def test_a_report_is_read_from_the_exception_and_from_what_wraps_it_or_was_raised_from_it() -> None:
    error = KeyError()
    assert report_of(error) is report_of(None) is None
    set_report(error, REPORT)
    for one in (error, wraps(error), raised_from(error), wraps(raised_from(error))):
        assert report_of(one) is REPORT


def test_a_report_is_set_on_the_wrapped_exception_too_and_belongs_to_no_other() -> None:
    inner = KeyError()
    set_report(wraps(inner), REPORT)
    assert own_report(inner) is REPORT
    assert own_report(raised_from(inner)) is None


def test_an_attribute_of_that_name_that_somebody_else_has_set_is_no_report() -> None:
    error = KeyError()
    error.minidbg_report = "mine"  # type: ignore[attr-defined]
    assert report_of(error) is None


@dataclass(frozen=True)
class Frozen(Exception):
    """Refuses attributes."""

    value: int = 0


def test_an_exception_that_refuses_attributes_carries_its_report_all_the_same() -> None:
    set_report(error := Frozen(), REPORT)
    assert report_of(error) is REPORT


def test_the_line_is_a_note_that_is_added_once() -> None:
    error = KeyError()
    add_line(error, REPORT)
    add_line(error, REPORT)
    add_line(error, Report("another"))
    assert error.__notes__ == [f"minidbg: {REPORT.line}", "minidbg: another"]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "r.py"
    path.write_text("import torch\n\n# /// script\n# x = 1\n# ///\n")
    return path


class Printer:
    def __init__(self) -> None:
        self.said = ""

    def text(self, text: str) -> None:
        self.said += text


def shown(report: Report) -> str:
    printer: Any = Printer()
    report._repr_pretty_(printer, False)
    return str(printer.said)


def test_a_notebook_and_ipython_show_the_part_of_the_script_that_is_about_the_failure(script: Path) -> None:
    report = Report("a line", script)
    assert report._repr_markdown_() == "**minidbg**: a line\n\n```python\nimport torch\n```"
    assert shown(report) == "minidbg: a line\n\nimport torch"
    assert repr(report) == "<minidbg report: a line>"


@pytest.mark.parametrize("path", [None, Path("/no/such/file.py")])
def test_without_a_script_the_line_is_shown_alone(path: Path | None) -> None:
    report = Report("a line", path)
    assert (report._repr_markdown_(), shown(report)) == ("**minidbg**: a line", "minidbg: a line")
