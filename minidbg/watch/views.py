"""The announcer hands each event to all views: lines for people, JSON lines, and ``on_flip``."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TextIO, TypeAlias

from minidbg.core import environment
from minidbg.core.text import in_one_line, last_line, plural
from minidbg.watch.events import Event, Flipped, Judged, Notice, SweepFinished
from minidbg.watch.states import Transition


@dataclass(frozen=True, slots=True)
class RunAll:
    """A person asked for it."""


@dataclass(frozen=True, slots=True)
class Stop:
    reason: str


Wish: TypeAlias = RunAll | Stop | Notice
"""What a view may have the daemon do."""
UNCHANGED = Transition.STILL_FAILING, Transition.STILL_GONE


class View(Protocol):
    """Hears every event, in order, in the daemon's thread."""

    def show(self, event: Event) -> None:
        """Take the event in. Raises OSError when nobody can be told any more."""

    def close(self) -> None:
        """By default there is nothing to end."""
        return


class JsonLines(View):
    """One object a line, on a stream that someone reads, or in the log."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def show(self, event: Event) -> None:
        print(json.dumps(event.to_json()), file=self.stream, flush=True)

    def close(self) -> None:
        if self.stream is not sys.stdout:
            self.stream.close()


def log_in(folder: Path) -> TextIO:
    """``watch.log``, empty; that of the last daemon is ``watch.log.1``."""
    path = folder / "watch.log"
    if path.exists():
        path.replace(folder / "watch.log.1")
    return path.open("w", encoding="utf-8")


class Announcer:
    """Passes events to all views. One that fails goes: the daemon outlives a closed terminal."""

    def __init__(self, views: list[View]) -> None:
        self.views = views
        self.said: set[Hashable] = set()

    def once(self, key: Hashable, event: Event) -> None:
        """Announce ``event`` unless one with this ``key`` was announced before."""
        if key not in self.said:
            self.said.add(key)
            self(event)

    def __call__(self, event: Event) -> None:
        for view in list(self.views):
            try:
                view.show(event)
            except (OSError, ValueError):  # ValueError: write to a closed file
                self.views.remove(view)

    def close(self) -> None:
        """End all views; what they could not write by now is lost."""
        for view in self.views:
            with contextlib.suppress(OSError):
                view.close()


class PlainLines(View):
    """One line for each thing worth knowing; with ``every_result`` also of what is unchanged."""

    def __init__(self, stream: TextIO, *, every_result: bool = False) -> None:
        self.stream, self.every_result = stream, every_result

    def show(self, event: Event) -> None:
        if isinstance(event, Judged) and event.transition in UNCHANGED and not self.every_result:
            return
        clock = time.strftime("%H:%M:%S", time.localtime(event.at))
        self.stream.write("".join(f"{clock} {line}\n" for line in event.line().splitlines()))
        self.stream.flush()


class FlipCommands(View):
    """Gives each command the flips of a sweep when it has ended, beside us: one line a flip, as
    ``--json`` has it. ``tell`` hears of one that fails or takes too long; it ends nothing."""

    def __init__(
        self, commands: Sequence[str], folder: Path, tell: Callable[[str], None], seconds: float = 60.0
    ) -> None:
        """``seconds``: what each command gets."""
        self.commands, self.folder, self.tell, self.seconds = commands, folder, tell, seconds
        self.flips: list[Flipped] = []
        self.beside = ThreadPoolExecutor(1)

    def show(self, event: Event) -> None:
        if isinstance(event, Flipped):
            self.flips.append(event)
        elif isinstance(event, SweepFinished):
            self.send()

    def send(self) -> None:
        if self.flips:
            self.beside.submit(self.run, self.flips)
            self.flips = []

    def run(self, flips: Sequence[Flipped]) -> None:
        data = "".join(json.dumps(one.to_json()) + "\n" for one in flips).encode()
        for command in self.commands:
            try:
                done = subprocess.run(
                    command, shell=True, input=data, cwd=self.folder, timeout=self.seconds,
                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
                    check=False, env=environment.for_tool(),
                )  # fmt: skip
                last = last_line(done.stderr.decode(errors="replace"))
                trouble = f"ended with status {done.returncode}: {last}" if done.returncode else ""
            except (OSError, subprocess.TimeoutExpired) as error:
                trouble = f"could not be run: {error}"
            if trouble:
                count = plural(len(flips), "flip")
                self.tell(in_one_line(f"on_flip {command!r}, for {count}: {trouble}"))

    def close(self) -> None:
        """Run the commands for the rest, and wait; what goes wrong now nobody but stderr hears."""
        self.tell = lambda text: print(f"minidbg: {text}", file=sys.stderr)
        self.send()
        self.beside.shutdown()
