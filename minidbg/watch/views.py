"""Who hears of events: the announcer hands each to all views. These are lines for people, JSON lines, the log, and ``on_flip``."""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TextIO

import structlog
from structlog import processors

from minidbg.watch.events import Event, Flipped, Judged, SweepFinished
from minidbg.watch.states import Transition
from minidbg.words import environment
from minidbg.words.text import in_one_line, last_line, plural

COMMAND_SECONDS, CLOSE_SECONDS = 60.0, 20.0
"""That a command of ``on_flip`` gets, and what still runs when we end."""
LOG_BYTES = 5_000_000
LOG_FILES = 3
UNCHANGED = Transition.STILL_FAILING, Transition.STILL_GONE


class View(Protocol):
    """Hears every event, in order, in the daemon's thread."""

    def show(self, event: Event) -> None:
        """Take the event in. Raises OSError when nobody can be told any more."""

    def close(self) -> None:
        """By default there is nothing to end."""
        return


class JsonLines(View):
    """One object a line, on a stream that someone reads."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def show(self, event: Event) -> None:
        said = {"event": event.name, "at": round(event.at, 3), **event.to_json()}
        self.stream.write(json.dumps(said) + "\n")
        self.stream.flush()


class Log(View):
    """The daemon's log: JSON lines in a file that is rotated, written by structlog; no other logger is touched."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handler = logging.handlers.RotatingFileHandler(
            path, maxBytes=LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8", delay=True
        )
        # on a full disk it would write into the terminal
        vars(self.handler)["handleError"] = lambda record: None
        target = logging.Logger("minidbg.watch", logging.DEBUG)
        target.addHandler(self.handler)
        self.log = structlog.wrap_logger(
            target,
            processors=[
                processors.add_log_level, processors.TimeStamper(fmt="iso", utc=True),
                processors.format_exc_info, processors.JSONRenderer(),
            ],
            wrapper_class=structlog.BoundLogger,
        )  # fmt: skip

    def show(self, event: Event) -> None:
        self.log.info(event.name, **event.to_json())

    def exception(self, event: str, **values: Any) -> None:
        """Write the exception that is being handled, with its traceback."""
        self.log.error(event, exc_info=True, **values)

    def close(self) -> None:
        self.handler.close()


class Announcer:
    """Passes events on to all views. A view that fails is dropped: a closed terminal must not end the daemon."""

    def __init__(self, views: list[View]) -> None:
        self.views = views
        self.said: set[Hashable] = set()

    def once(self, key: Hashable, event: Event) -> None:
        """Announce ``event`` unless one with this ``key`` was announced before."""
        if key not in self.said:
            self.said.add(key)
            self(event)

    def __call__(self, event: Event) -> None:
        event = replace(event, at=time.time())
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
    """One line for each thing worth knowing. Unchanged results are only counted, unless ``every_result``."""

    def __init__(self, stream: TextIO, *, every_result: bool = False) -> None:
        self.stream, self.every_result = stream, every_result

    def show(self, event: Event) -> None:
        if isinstance(event, Judged) and event.standing in UNCHANGED and not self.every_result:
            return
        clock = time.strftime("%H:%M:%S", time.localtime(event.at))
        self.stream.write("".join(f"{clock} {line}\n" for line in event.line().splitlines()))
        self.stream.flush()


class FlipCommands(View):
    """Gathers flips and gives them to each command when the sweep has ended, beside us: one line a flip, the event as ``--json`` has it.

    A command that fails or takes too long is said by ``tell``, with its last line on stderr, and ends nothing.
    """

    def __init__(self, commands: Sequence[str], folder: Path, tell: Callable[[str], None]) -> None:
        self.commands, self.folder, self.tell = commands, folder, tell
        self.flips: list[Flipped] = []
        self.threads: list[threading.Thread] = []

    def show(self, event: Event) -> None:
        if isinstance(event, Flipped):
            self.flips.append(event)
        elif isinstance(event, SweepFinished):
            self.send()

    def send(self) -> None:
        flips, self.flips = self.flips, []
        self.threads = [thread for thread in self.threads if thread.is_alive()]
        if flips:
            self.threads.append(threading.Thread(target=self.run, args=(flips,), daemon=True))
            self.threads[-1].start()

    def run(self, flips: Sequence[Flipped]) -> None:
        data = "".join(json.dumps({**one.to_json(), "at": one.at}) + "\n" for one in flips).encode()
        for command in self.commands:
            try:
                done = subprocess.run(
                    command, shell=True, input=data, cwd=self.folder, timeout=COMMAND_SECONDS, check=False,
                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
                    env=environment.for_tool(),
                )  # fmt: skip
                last = last_line(done.stderr.decode(errors="replace"))
                trouble = f"ended with status {done.returncode}: {last}" if done.returncode else ""
            except (OSError, subprocess.TimeoutExpired) as error:
                trouble = f"could not be run: {error}"
            if trouble:
                self.tell(in_one_line(f"on_flip {command!r}, for {plural(len(flips), 'flip')}: {trouble}"))

    def close(self) -> None:
        """Run the commands for the rest, and give them some time; what goes wrong now nobody but stderr hears."""
        self.tell = lambda text: print(f"minidbg: {text}", file=sys.stderr)
        self.send()
        for thread in self.threads:
            thread.join(CLOSE_SECONDS)
