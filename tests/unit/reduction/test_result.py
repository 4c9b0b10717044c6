"""What a reduction says of itself: while it runs, on a terminal and elsewhere, and in one line at its end."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minidbg.core.outcome import Verdict
from minidbg.reduction.result import Limits, Progress, ReductionResult, figures_of, on_stream

WRITTEN = ReductionResult(Path("r.py"), 812, 1, 14, 3.21, True, Verdict.REPRODUCES)
NOTHING = replace(WRITTEN, path=None, verdict=Verdict.GONE)
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize(
    "written",
    [WRITTEN, replace(WRITTEN, also_found=1, others=(("said", "a.py"),)), replace(NOTHING, notes=("a", "b"))],
    ids=["a repro", "others", "none"],
)
def test_a_result_is_read_back_from_its_json(written: ReductionResult) -> None:
    assert ReductionResult.from_json(written.to_json()) == written


def test_seconds_that_have_begun_do_not_begin_again() -> None:
    assert Limits(seconds=8.0, due=3.0).begun().due == 3.0
    first = Limits(seconds=8.0).begun()
    assert first.due is not None
    assert first.begun() == first


class Stream(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


def said(stream: Stream, *events: Progress) -> str:
    with on_stream(stream) as listener:
        for event in events:
            listener(event)
    return stream.getvalue()


def at(seconds: float, **more: Any) -> Progress:
    return Progress("bisect", 12, 800, 7, seconds, **more)


@pytest.mark.parametrize(("is_terminal", "term"), [(False, "xterm"), (True, "dumb")])
def test_where_no_bar_can_be_drawn_lines_come_at_most_every_five_seconds(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, term: str
) -> None:
    monkeypatch.setenv("TERM", term)
    events = [at(1.0), at(5.0), at(9.9), at(10.0, rest_seconds=11.2)]
    shown = [f"minidbg: bisect: {figures_of(event)}" for event in (events[1], events[3])]
    assert said(Stream(is_terminal), *events).splitlines() == shown


def test_a_terminal_has_a_bar_from_the_first_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    drawn = COLOURS.sub("", said(Stream(True), at(0.1, rest_seconds=11.2)))
    assert "minidbg: bisect" in drawn
    assert figures_of(at(0.1, rest_seconds=11.2)) in drawn


def test_a_narrow_terminal_cuts_off_the_words_of_the_bar_and_no_figure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    long = Progress("a phase with a name that is longer than others", 19999, 20000, 1234, 1234.0, 1234.0)
    drawn = COLOURS.sub("", said(Stream(True), long))
    assert figures_of(long) in drawn
    assert "others" not in drawn
    assert "minidbg: bisect \u2501" in COLOURS.sub("", said(Stream(True), at(99.0, rest_seconds=99.0)))
