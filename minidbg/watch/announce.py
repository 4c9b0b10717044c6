"""What the daemon tells: events, and those who hear them."""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

import structlog

LOG_BYTES = 5_000_000
LOG_FILES = 3


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. ``name`` is a constant word; ``data`` holds JSON values only."""

    name: str
    data: Mapping[str, Any] = field(default_factory=dict)
    at: float = field(default_factory=time.time)

    def to_json(self) -> dict[str, Any]:
        """One object for ``--json``."""
        return {"event": self.name, "at": round(self.at, 3), **self.data}


class View(Protocol):
    """Hears every event, in order, in the daemon's thread."""

    def show(self, event: Event) -> None: ...
    def close(self) -> None: ...


class JsonLines:
    """One object a line, on a stream that someone reads."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def show(self, event: Event) -> None:
        """Write and flush. Raises BrokenPipeError when the reader has gone."""
        self.stream.write(json.dumps(event.to_json()) + "\n")
        self.stream.flush()

    def close(self) -> None:
        """Nothing to end."""


class Log:
    """The daemon's log: JSON lines in a file that is rotated, written by structlog; no other logger is touched."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handler = logging.handlers.RotatingFileHandler(
            path, maxBytes=LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8", delay=True
        )
        vars(self.handler)["handleError"] = lambda record: (
            None
        )  # on a full disk it would write into the terminal
        target = logging.Logger("minidbg.watch", logging.DEBUG)
        target.addHandler(self.handler)
        self.log = structlog.wrap_logger(
            target,
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(),
            ],
            wrapper_class=structlog.BoundLogger,
        )

    def show(self, event: Event) -> None:
        """Write the event."""
        self.log.info(event.name, **event.data)

    def exception(self, event: str, **values: Any) -> None:
        """Write the exception that is being handled, with its traceback."""
        self.log.error(event, exc_info=True, **values)

    def close(self) -> None:
        """Close the file."""
        self.handler.close()


class Announcer:
    """Passes events on to all views. A view that fails is dropped: a closed terminal must not end the daemon."""

    def __init__(self, views: list[View]) -> None:
        self.views = views

    def __call__(self, name: str, **data: Any) -> None:
        """Tell everyone."""
        event = Event(name, data)
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
