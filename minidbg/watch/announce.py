"""What the daemon tells: events, those who hear them, and each event as a line for people."""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

import structlog
from structlog import processors

from minidbg.words.text import display_path, plural, printable

LOG_BYTES = 5_000_000
LOG_FILES = 3


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. ``name`` is a constant word; ``data`` holds JSON values only."""

    name: str
    data: Mapping[str, Any] = field(default_factory=dict)
    at: float = field(default_factory=time.time)


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
        said = {"event": event.name, "at": round(event.at, 3), **event.data}
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
        """Write the event, without the token of a page: others may read logs."""
        self.log.info(event.name, **{name: value for name, value in event.data.items() if name != "token"})

    def exception(self, event: str, **values: Any) -> None:
        """Write the exception that is being handled, with its traceback."""
        self.log.error(event, exc_info=True, **values)

    def close(self) -> None:
        self.handler.close()


class Announcer:
    """Passes events on to all views. A view that fails is dropped: a closed terminal must not end the daemon."""

    def __init__(self, views: list[View]) -> None:
        self.views = views

    def __call__(self, name: str, **data: Any) -> None:
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


UNCHANGED = frozenset({"still failing", "still gone"})


class PlainLines(View):
    """One line for each thing worth knowing. Unchanged and muted results are only counted, unless ``every_result``."""

    def __init__(self, stream: TextIO, *, every_result: bool = False) -> None:
        self.stream, self.every_result = stream, every_result

    def show(self, event: Event) -> None:
        data = event.data
        muted = event.name in ("flip", "unconfirmed", "result") and data.get("muted")
        if event.name == "result":
            muted = not self.every_result and (muted or data["standing"] in UNCHANGED)
        if not muted and (text := line_of(event)):
            clock = time.strftime("%H:%M:%S", time.localtime(event.at))
            self.stream.write("".join(f"{clock} {line}\n" for line in text.splitlines()))
            self.stream.flush()


def line_of(event: Event) -> str:
    """The event in words; empty when it is not worth a line."""
    words = WORDS.get(event.name, event.name.replace("_", " "))
    return printable(words.format_map(event.data) if isinstance(words, str) else words(event.data))


def started(data: Mapping[str, Any]) -> str:
    sources = ", ".join(data["sources"]) or "no sources"
    return (
        f"watching {plural(len(data['repros']), 'repro')} in {display_path(data['home'])} and {plural(data['files'], 'file')} in "
        f"{sources} (process {data['pid']})"
    )


def sweep_started(data: Mapping[str, Any]) -> str:
    more = ", ..." if data["changed"] > 3 else ""
    cause = f"; {', '.join(data['files'][:3])}{more} changed" if data["changed"] else ""
    return f"sweep {data['sweep']}: {plural(data['jobs'], 'run')}{cause}"


def sweep_finished(data: Mapping[str, Any]) -> str:
    counts = ", ".join(f"{count} {standing}" for standing, count in sorted(data["standings"].items()))
    unjudged = f", {data['unjudged']} not judged" if data["unjudged"] else ""
    how = "" if data["end"] == "complete" else f" ({data['end']}: the code changed)"
    return f"sweep {data['sweep']} took {data['seconds']:.2f} s{how}: {counts or 'no verdict'}{unjudged}"


def result(data: Mapping[str, Any]) -> str:
    verdict = f" ({data['verdict']})" if data["verdict"] else ""
    said = data["message"].partition("\n")[0] if data["verdict"] == "changed" else ""
    reason = f": {said}" if (said := data["reason"] or said) else ""
    return f"  {data['standing']:<17} {data['repro']} [{data['device']}]{verdict}{reason}"


def unconfirmed(data: Mapping[str, Any]) -> str:
    return f"  {data['verdict'] + '?':<17} {data['repro']} [{data['device']}] {'was' if data['seen'] else 'its header expects'} {data['before']}; asking a fresh interpreter"


def flip(data: Mapping[str, Any]) -> str:
    """What happened to which repro comes first, then between which revisions: the end of a long line is cut off."""
    name = Path(data["path"]).stem
    verdicts = "" if data["kind"] in ("FIXED", "REGRESSED") else f" {data['before']} -> {data['after']}"
    return f"{data['kind']} {name} [{data['device']}]{verdicts}{between(data)}"


def between(data: Mapping[str, Any]) -> str:
    """``  abc9cb0964 -> +6c2b27b0``: the revisions on both sides, a commit that is on both only once."""
    before, after = data["last_before"], data["first_after"]
    if not (before or after):
        return ""
    if before == after:
        return f"  at {after}, no watched file changed"
    commit = after.partition("+")[0]
    same = commit == before.partition("+")[0] and "+" in after and ", " not in after
    return f"  {before or '?'} -> {after[len(commit) :] if same else after or '?'}"


def columns(data: Mapping[str, Any]) -> str:
    places = sorted(data["places"].items())
    here = ", ".join(f"{place} ({plural(slots, 'run')} at a time)" for place, slots in places)
    left = f"; no longer there, and not judged: {', '.join(data['left'])}" if data["left"] else ""
    return f"machines: {here or 'none'}{left}"


def backend_broken(data: Mapping[str, Any]) -> str:
    return f"backend {data['backend']} is broken on {data['device']}: {data['reason']}; {plural(data['repros'], 'repro')} not judged"


def reduction_finished(data: Mapping[str, Any]) -> str:
    if data["repro"]:
        return f"reduced {display_path(data['capture'])} to {display_path(data['repro'])}"
    return f"could not reduce {display_path(data['capture'])}: {data['reason']}"


def serving(data: Mapping[str, Any]) -> str:
    token = f"?token={data['token']}" if data["token"] else ""
    actions = ", and whoever opens it may ask for runs" if data["actions"] else ""
    return f"the page is at {data['url']}{token}{actions}"


WORDS: Mapping[str, str | Callable[[Mapping[str, Any]], str]] = {
    **dict.fromkeys(["workers_ready", "machine", "build_started", "reduction_started", "stopped"], ""),
    "started": started,
    "sweep_started": sweep_started,
    "sweep_finished": sweep_finished,
    "result": result,
    "flip": flip,
    "unconfirmed": unconfirmed,
    "backend_broken": backend_broken,
    "columns": columns,
    "backend_back": "backend {backend} works again on {device}",
    "build_failed": "build failed with status {status}; nothing was judged: {error}\n{output}",
    "build_finished": "built in {seconds:.1f} s",
    "disk_full": "{path} cannot be written ({reason}): repros are judged, and kept in memory only",
    "device_missing": "{text}",
    "notice": "{text}",
    "repro_added": "new repro {repro}",
    "repro_edited": "repro {repro} was edited",
    "repro_removed": "repro {repro} is gone",
    "repro_damaged": "repro {repro} cannot be used: {reason}",
    "reduction_finished": reduction_finished,
    "unexpected": "unexpected: {repro} [{device}] is {verdict}, and its header expects {expect}",
    "process_died": lambda data: (
        f"a process died in a backend; what it was at is in {display_path(data['capture'])}"
    ),
    "capture_known": lambda data: (
        f"{display_path(data['capture'])} shows the failure of {data['repro']}, so it is left as it is"
    ),
    "bisect_started": lambda data: (
        f"bisecting {display_path(data['repro'])} between {data['good']} and {data['bad']}"
    ),
    "bisect_finished": lambda data: f"bisected {display_path(data['repro'])}: {data['text']}",
    "serving": serving,
    "stopping": "stopping: {reason}",
    "paused": "paused: no sweeps until p is pressed again",
    "resumed": "going on",
}
"""Each event in words: a format, or a function of its data; an empty text for what is not worth a line."""
