"""Who hears of events: the announcer hands each to all views; of these, JSON lines, lines for people and the log are here."""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import time
from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TextIO

import structlog
from structlog import processors

from minidbg.watch.events import Event, Flipped, Judged, Unconfirmed

LOG_BYTES = 5_000_000
LOG_FILES = 3


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
        match event:
            case Flipped() | Unconfirmed():
                heard = True
            case Judged():
                heard = self.every_result or not event.is_unchanged
            case _:
                heard = True
        if heard and (text := event.line()):
            clock = time.strftime("%H:%M:%S", time.localtime(event.at))
            self.stream.write("".join(f"{clock} {line}\n" for line in text.splitlines()))
            self.stream.flush()
