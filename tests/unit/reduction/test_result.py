"""What a reduction says of itself: while it runs, on a terminal and elsewhere, and in one line at its end."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minidbg.reduction.result import Limits, Progress, ReductionResult, on_stream
from minidbg.words.outcome import Verdict

WRITTEN = ReductionResult(Path("r.py"), 812, 1, 14, 3.21, True, Verdict.REPRODUCES)
NOTHING = replace(WRITTEN, path=None, verdict=Verdict.GONE)
RUN = "run: python r.py"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize(
    ("written", "line"),
    [
        (WRITTEN, f"812 -> 1 nodes, 14 runs, 3.2 s; {RUN}"),
        (
            replace(WRITTEN, known_before=True),
            f"812 -> 1 nodes, found before, and its repro still fails; {RUN}",
        ),
        (
            replace(WRITTEN, also_found=1),
            f"812 -> 1 nodes, 14 runs, 3.2 s (also found another failure); {RUN}",
        ),
        (replace(WRITTEN, also_found=2), f"812 -> 1 nodes, 14 runs, 3.2 s (also found 2 others); {RUN}"),
        (
            replace(WRITTEN, certified=False),
            f"812 -> 1 nodes, 14 runs, 3.2 s (not certified as minimal); {RUN}",
        ),
        (
            replace(WRITTEN, certified=False, ended_by="budget of 8 s"),
            f"812 -> 1 nodes, 14 runs, 3.2 s (not certified as minimal: budget of 8 s); {RUN}",
        ),
        (
            replace(WRITTEN, ended_by="budget of 8 s"),
            f"812 -> 1 nodes, 14 runs, 3.2 s (not made plainer: budget of 8 s); {RUN}",
        ),
        (NOTHING, "812 -> 1 nodes, 14 runs, 3.2 s; no verified repro (gone)"),
        (
            replace(NOTHING, notes=("eager agrees", "nothing printed")),
            "812 -> 1 nodes, 14 runs, 3.2 s; no verified repro (gone): eager agrees; nothing printed",
        ),
        (
            replace(NOTHING, ended_by="budget of 8 s"),
            "812 -> 1 nodes, 14 runs, 3.2 s; not verified: budget of 8 s",
        ),
    ],
)
def test_the_line_says_what_became_of_the_failure(written: ReductionResult, line: str) -> None:
    assert written.line == line


@pytest.mark.parametrize("written", [WRITTEN, replace(NOTHING, notes=("a", "b"))], ids=["a repro", "none"])
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
    assert said(Stream(is_terminal), *events).splitlines() == [
        "minidbg: bisect: 800 -> 12 nodes, 7 runs, 5 s",
        "minidbg: bisect: 800 -> 12 nodes, 7 runs, 10 s, about 12 s more",
    ]


def test_a_terminal_has_a_bar_from_the_first_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    drawn = COLOURS.sub("", said(Stream(True), at(0.1, rest_seconds=11.2)))
    assert "minidbg: bisect" in drawn
    assert "788/800 nodes removed, 12 left, 7 runs" in drawn
    assert "about 12 s more" in drawn
    assert "->" not in drawn
