"""``on_flip``: a burst is given to each command once, one flip a line, and a command that fails is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minidbg.watch import views
from minidbg.watch.events import Event, Flipped, SweepFinished
from minidbg.watch.views import FlipCommands
from minidbg.words.outcome import Verdict


def flip(name: str, kind: str = "FIXED") -> Event:
    verdicts = (Verdict.REPRODUCES, Verdict.GONE)
    return Flipped(f"{name}.py", "cpu", kind, *verdicts, 2, 1, (), "", "", at=1.0)


FINISHED = SweepFinished(1, "complete", 1.0, None, {}, 0, at=2.0)


def given_to(commands: tuple[str, ...], folder: Path, *events: Event) -> list[str]:
    """Give the events to the commands, and wait; what was said of them."""
    said: list[str] = []
    view = FlipCommands(commands, folder, said.append)
    for event in events:
        view.show(event)
    for thread in view.threads:
        thread.join(30)
    view.close()
    return said


def read(path: Path) -> list[str]:
    return [json.loads(line)["repro"] for line in path.read_text().splitlines()]


def test_each_command_gets_a_burst_at_once(tmp_path: Path) -> None:
    burst = [flip("sin"), flip("cos", "REGRESSED"), FINISHED, FINISHED]
    commands = ("cat >> one; echo end >> ends", "cat >> two")
    assert given_to(commands, tmp_path, *burst) == []
    assert read(tmp_path / "one") == read(tmp_path / "two") == ["sin.py", "cos.py"]
    assert (tmp_path / "ends").read_text() == "end\n", "started once"


def test_what_waits_is_given_at_the_end(tmp_path: Path) -> None:
    given_to(("cat >> flips",), tmp_path, flip("sin"))
    assert read(tmp_path / "flips") == ["sin.py"]


def test_a_command_that_fails_is_said_with_its_last_line(tmp_path: Path) -> None:
    (said,) = given_to(("echo no network >&2; exit 6",), tmp_path, flip("sin"), FINISHED)
    assert "for 1 flip: ended with status 6: no network" in said


def test_a_command_that_does_not_end_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "COMMAND_SECONDS", 0.1)
    (said,) = given_to(("exec sleep 60",), tmp_path, flip("sin"), FINISHED)
    assert "timed out after 0.1 seconds" in said
