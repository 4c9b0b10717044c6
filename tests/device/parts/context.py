"""What the parts of the acceptance run share: a row's outcome, and children that are ended at their limit."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acceptance import OVER, die_with_the_parent, is_here

Figures = dict[str, Any]
Row = Callable[[], tuple[Figures, str]]


class Skipped(Exception):
    """The row cannot be run here, or no further; says why."""

    def __init__(self, reason: str, figures: Figures | None = None) -> None:
        super().__init__(reason)
        self.figures = figures or {}


class Failed(Exception):
    """The row ran, and is not as it should be."""


@dataclass(frozen=True, slots=True)
class Done:
    """How a child ended."""

    status: int | None
    """Its exit status, or minus the signal; None when it was killed for its time."""
    out: str
    err: str
    seconds: float

    @property
    def tail(self) -> str:
        """The last line that it wrote, for a sentence."""
        lines = [line for line in (self.err + "\n" + self.out).splitlines() if line.strip()]
        return lines[-1].strip()[:300] if lines else "no output"


@dataclass(frozen=True, slots=True)
class Context:
    """What rows share."""

    device: str
    out: Path
    folder: Path
    until: float
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @property
    def left(self) -> float:
        """Seconds of the part's share."""
        return max(0.1, self.until - time.monotonic())

    def place(self, name: str) -> Path:
        """An empty folder for a row."""
        number = 0
        while (found := self.folder / (name if not number else f"{name}-{number}")).exists():
            number += 1
        found.mkdir(parents=True)
        return found

    def python(self, *words: object, cwd: Path, limit: float | None = None, **variables: str) -> Done:
        """``python WORDS`` in a process group of its own, killed at its limit; what it prints is kept in ``cwd``.

        Raises Skipped where the part's time is over first.
        """
        began = time.monotonic()
        process = self.started(*words, cwd=cwd, **variables)
        with ended_with(process):
            try:
                process.wait(min(self.left, limit or self.left))
                status = process.returncode
            except subprocess.TimeoutExpired:
                status = None
        if status is None and time.monotonic() >= self.until:
            raise Skipped(OVER)
        return self.done(process, status, cwd, began)

    @contextlib.contextmanager
    def beside(self, *words: object, cwd: Path, limit: float) -> Iterator[Callable[[], Done]]:
        """``python WORDS`` while the block does something else; what is given waits for its end."""
        began, process = time.monotonic(), self.started(*words, cwd=cwd)

        def ended() -> Done:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, min(self.left, began + limit - time.monotonic())))
            if process.returncode is None and time.monotonic() >= self.until:
                raise Skipped(OVER)
            return self.done(process, process.returncode, cwd, began)

        with ended_with(process):
            yield ended

    def started(self, *words: object, cwd: Path, **variables: str) -> subprocess.Popen[bytes]:
        with (cwd / "stdout.txt").open("wb") as out, (cwd / "stderr.txt").open("wb") as err:
            return subprocess.Popen(
                [sys.executable, *map(str, words)],
                cwd=cwd, env={**self.environ, **variables}, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                preexec_fn=die_with_the_parent if sys.platform == "linux" else None,
            )  # fmt: skip

    def done(self, process: subprocess.Popen[bytes], status: int | None, cwd: Path, began: float) -> Done:
        texts = [(cwd / f"{name}.txt").read_text(errors="replace") for name in ("stdout", "stderr")]
        return Done(status, *texts, time.monotonic() - began)

    def minidbg(self, *words: object, cwd: Path, limit: float | None = None, **variables: str) -> Done:
        return self.python("-m", "minidbg", *words, cwd=cwd, limit=limit, **variables)


@contextlib.contextmanager
def ended_with(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """A block at whose end the process and all of its group are gone."""
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def last_json(text: str) -> dict[str, Any]:
    """The last line that is a JSON object. Raises Failed where there is none."""
    for line in reversed(text.splitlines()):
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict):
                return found
    raise Failed(f"no answer: {text.strip()[-300:] or 'no output'}")


def need(*modules: str) -> None:
    """Raises Skipped where one of them is not here."""
    if (missing := is_here(modules)) is not None:
        raise Skipped(f"{missing} is not here (--wheels)")
