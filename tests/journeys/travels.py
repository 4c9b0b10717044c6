"""A journey is a command as a person types it, and what he then notices: processes, questions, files, and what is on the screen."""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.command_line import python

COUNTED = Path(__file__).parent / "counted"


@dataclass(frozen=True)
class Journey:
    """What there is after a command has ended."""

    status: int
    stdout: str
    stderr: str
    started: list[list[str]]
    """The arguments of each interpreter that was started, the command's own first."""
    calls: int
    """How often a backend that minidbg wraps was called, in any process."""
    folder: Path

    @property
    def scripts(self) -> list[Path]:
        """The verified repros."""
        return sorted((self.folder / "minidbg_repros").glob("*.py"))

    @property
    def script(self) -> str:
        """The text of the only repro."""
        (path,) = self.scripts
        return path.read_text()

    @property
    def questions(self) -> int:
        """Oracle calls, as the last line about a repro says."""
        return int(re.findall(r"(\d+) runs", self.stderr)[-1])

    def last_line(self) -> str:
        return self.stderr.strip().splitlines()[-1]


def traveller(factory: pytest.TempPathFactory) -> Callable[..., Journey]:
    """``travel(*words, program=TEXT, folder=FOLDER, env=MORE, typed=TEXT)``: run ``python *words`` where model.py has the text, and stdin what is typed."""

    def travel(
        *words: object, program: str = "", folder: Path | None = None, env: dict[str, str] | None = None,
        typed: str | None = None,
    ) -> Journey:  # fmt: skip
        folder = folder or factory.mktemp("journey")
        if program:
            (folder / "model.py").write_text(textwrap.dedent(program).lstrip("\n"))
        log = factory.mktemp("log") / "log.jsonl"
        path = os.pathsep.join([str(COUNTED), *filter(None, [os.environ.get("PYTHONPATH")])])
        given = {"PYTHONPATH": path, "JOURNEY_LOG": str(log), **(env or {})}
        done = python(*words, cwd=folder, env=given, input=typed)
        events: list[dict[str, Any]] = [json.loads(line) for line in log.read_text().splitlines()]
        return Journey(
            done.returncode, done.stdout, done.stderr,
            started=[one["argv"] for one in events if one["event"] == "start"],
            calls=sum(one["event"] == "call" for one in events),
            folder=folder,
        )  # fmt: skip

    return travel
