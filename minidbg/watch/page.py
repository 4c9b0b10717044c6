"""The matrix for others: the data that a browser draws, what has changed in it, the page as one file; and JSON and JUnit files."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from minidbg.watch import recorder
from minidbg.watch.announce import Event, View, between
from minidbg.watch.matrix import Matrix, VerdictCell
from minidbg.watch.repros import Repro, replace_text
from minidbg.watch.settings import FailOn
from minidbg.watch.states import FAILING
from minidbg.words.errors import MinidbgError
from minidbg.words.text import display_path, in_one_line, printable

Json = dict[str, Any]
SITE = Path(__file__).with_name("site")
STYLES = Path("repro_templates", "style.css.j2")
CELL_EVENTS = frozenset({"result", "unconfirmed", "flip"})
ROW_EVENTS = frozenset({"repro_added", "repro_edited", "repro_removed", "repro_damaged"})
SHOWN_FLIPS = 50
BRIEF_CHARACTERS = 160


class Live(View):
    """The matrix as JSON: all of it, or what has changed since a browser last asked. Every event is a new ``seq``.

    The daemon's thread tells it of events, a server's threads ask. Whoever missed something asks with an old ``seq``;
    what changed several times in between is sent once.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.matrix = Matrix(clock=clock)
        self.boot = f"{os.getpid()}-{clock():.3f}"
        """Another daemon counts its events anew."""
        self.seq = 0
        self.changed: dict[tuple[str, str], int] = {}
        """Repro and column (empty: what its header says) -> the event that changed it last; the latest change stands last."""
        self.flips: deque[tuple[int, Json]] = deque(maxlen=SHOWN_FLIPS)
        self.dimmed = 0
        """The event with which the present sweep began: older verdicts are those of earlier sweeps."""
        self.rebuilt = 0
        """The event since which there are other columns: whoever knows nothing later gets everything."""
        self.machine: Json = {}
        self.repros: Callable[[], Mapping[str, Repro]] = dict
        self.wake: Callable[[], None] = lambda: None
        self.lock = threading.Lock()

    def show(self, event: Event) -> None:
        """Take the event in, and wake whoever waits for news."""
        data = event.data
        if event.name == "serving":
            return  # its token is not for copies of the page
        with self.lock:
            self.matrix.hear(event)
            self.seq += 1
            match event.name:
                case "started":
                    with contextlib.suppress(MinidbgError):  # there is no history yet
                        past = recorder.history_of(Path(data["home"]), SHOWN_FLIPS)
                        self.flips.extend((self.seq, flip_entry(entry)) for entry in reversed(past))
                case "machine":
                    self.machine = {"torch": data["torch"], "devices": data["devices"]}
                case "columns":
                    self.rebuilt = self.seq
                case "sweep_started":
                    self.dimmed = self.seq
                case "flip" if not data.get("muted"):
                    self.flips.append((self.seq, flip_entry({"at": event.at, **data})))
            if event.name in CELL_EVENTS or event.name in ROW_EVENTS:
                key = data["repro"], data["device"] if event.name in CELL_EVENTS else ""
                self.changed.pop(key, None)
                self.changed[key] = self.seq
        self.wake()

    def close(self) -> None:
        """Say that nobody watches any more."""
        with self.lock:
            self.matrix.activity, self.matrix.began = "not watching any more", None
            self.seq += 1
        self.wake()

    def everything(self, *, brief: bool = True) -> Json:
        """The whole matrix, what fails first; with ``brief`` of each message its beginning."""
        with self.lock:
            repros, names = self.repros(), self.matrix.names(every=True)
            by_name: dict[str, Json] = {name: {} for name in [*names, *sorted(set(repros).difference(names))]}
            for (name, column), cell in self.matrix.cells.items():
                by_name[name][column] = cell_json(cell, brief=brief)
            return {
                **self.head(),
                "columns": self.matrix.devices(),
                "rows": [[name, about(repros.get(name)), cells] for name, cells in by_name.items()],
                "flips": [entry for _, entry in self.flips],
            }

    def since(self, seq: int) -> Json | None:
        """What has changed since the event ``seq``; None when nothing has."""
        with self.lock:
            if seq >= self.seq:
                return None
            keys = []
            for key, at in reversed(self.changed.items()):
                if at <= seq:
                    break
                keys.append(key)
            repros, gone = self.repros(), {name for name, column in keys if not column}
            gone -= {name for name, _ in self.matrix.cells} | repros.keys()
            return {
                **self.head(),
                "dim": self.dimmed > seq,
                "cells": [
                    [name, column, cell_json(self.matrix.cells[name, column])]
                    for name, column in keys
                    if (name, column) in self.matrix.cells
                ],
                "rows": [
                    [name, None if name in gone else about(repros.get(name))]
                    for name, column in keys
                    if not column
                ],
                "flips": [entry for at, entry in self.flips if at > seq],
            }

    def head(self) -> Json:
        """What stands above the rows."""
        matrix = self.matrix
        return {
            "boot": self.boot, "seq": self.seq, "home": display_path(matrix.home) if matrix.home else "",
            "activity": "paused" if matrix.paused else matrix.activity, "cause": matrix.cause, "began": matrix.began,
            "total": matrix.total, "seen": matrix.seen, "build_failure": matrix.build_failure,
            "broken": [f"{backend} on {device}: {why}" for (backend, device), why in matrix.broken.items()],
            "notices": list(matrix.notices), "machine": self.machine,
        }  # fmt: skip


def about(repro: Repro | None) -> Json:
    """What the header of a repro says; nothing of one that is not there."""
    if repro is None:
        return {}
    if repro.damage:
        return {"damage": repro.damage}
    notes = {key: text for key, text in repro.row().items() if key != "repro"}
    return {
        "kind": str(repro.spec.expected.kind),
        "backend": repro.spec.backend.name,
        "expect": str(repro.expect),
        **notes,
    }


def cell_json(cell: VerdictCell, *, brief: bool = True) -> list[Any]:
    """Verdict, since when, seconds, whether the present sweep saw it, what was said, and what is being confirmed."""
    note = cell.note.partition("\n")[0][:BRIEF_CHARACTERS] if brief else cell.note
    since = None if cell.since is None else round(cell.since)
    return [cell.verdict, since, round(cell.seconds, 2), int(cell.fresh), note, cell.maybe]


def flip_entry(data: Mapping[str, Any]) -> Json:
    """A flip as the page shows it."""
    told = {name: data[name] for name in ("repro", "device", "kind", "before", "after", "files")}
    return {"at": round(data["at"], 1), **told, "between": between(data).strip()}


def page_html(state: Json, *, alone: bool) -> str:
    """The page with ``state`` in it. ``alone``: with its style and script too, so that it needs no server."""
    text = (SITE / "index.html").read_text(encoding="utf-8")
    data = json.dumps(state, separators=(",", ":")).replace("<", "\\u003c")
    if alone:
        style, script = style_text(), (SITE / "page.js").read_text(encoding="utf-8")
        text = text.replace('<link rel="stylesheet" href="page.css">', f"<style>\n{style}</style>")
        text = text.replace('<script src="page.js" defer></script>', "")
        text = text.replace("</body>", f"<script>\n{script}</script>\n</body>")
    return text.replace("STATE", data, 1)


def style_text() -> str:
    """The style of all pages of minidbg, then this one's own."""
    package = Path(__file__).parents[1]
    shared = next(path for folder in (package, package.parent) if (path := folder / STYLES).is_file())
    return shared.read_text(encoding="utf-8") + (SITE / "page.css").read_text(encoding="utf-8")


class Page(View):
    """Keeps the page as a file that needs no server; a reader sees the old page or the new one, whole."""

    def __init__(self, path: Path, live: Live, clock: Callable[[], float] = time.time) -> None:
        self.path, self.live, self.clock, self.written = path, live, clock, 0.0

    def show(self, event: Event) -> None:
        """Write what ``live`` has heard. A file that cannot be written any more ends nothing."""
        if event.name in PAGE_ENDS or self.clock() - self.written >= PAGE_BETWEEN_S:
            self.write(reload_s=RELOAD_S)

    def close(self) -> None:
        """The last page: it reloads no more."""
        self.write(reload_s=0)

    def write(self, *, reload_s: int) -> None:
        """Write the page, with all messages in full."""
        self.written = self.clock()
        state = {**self.live.everything(brief=False), "alone": True, "reload_s": reload_s}
        with contextlib.suppress(OSError):
            replace_text(self.path, page_html(state, alone=True))


PAGE_BETWEEN_S = 1.0
"""Seconds between two writings while a sweep runs."""
RELOAD_S = 3
PAGE_ENDS = frozenset(
    ["sweep_finished", "flip", "started", "paused", "resumed", "backend_broken", "backend_back", "build_failed",
     "notice"]
)  # fmt: skip
"""Events after which the page is written at once."""


# What ``minidbg watch --once`` leaves for other programs


class Results(View):
    """Gathers the results of one sweep, and writes them when the daemon ends. ``live`` knows since when."""

    def __init__(self, live: Live, fail_on: FailOn, *, junit: Path | None, document: Path | None) -> None:
        """Raises OSError for files that cannot be written."""
        self.live, self.fail_on = live, fail_on
        wanted = ((junit, self.junit), (document, self.document))
        self.writers = {path: text for path, text in wanted if path is not None}
        for path in self.writers:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        self.began = time.time()
        self.results: dict[tuple[str, str], Json] = {}
        self.flips: list[Json] = []
        self.sweep: Json = {}
        self.status: int | None = None

    def show(self, event: Event) -> None:
        """Take the event in; a second sweep's results replace those of the first."""
        data = dict(event.data)
        if event.name == "result":
            self.results[data["repro"], data["device"]] = data
        elif event.name == "flip":
            self.flips.append({"at": event.at, **data})
        elif event.name == "sweep_finished":
            self.sweep = data
        elif event.name == "stopped":
            self.status = data["status"]

    def close(self) -> None:
        """Write the files; say so where one cannot be written."""
        for path, text in self.writers.items():
            try:
                replace_text(path, text())
            except OSError as error:
                print(f"minidbg: {path} cannot be written: {error}", file=sys.stderr)

    def document(self) -> str:
        home = Path(self.live.matrix.home) if self.live.matrix.home else None
        status = recorder.status_of(home) if home is not None else {}
        found = {
            "schema": 1, "at": self.began, "exit_status": self.status, "revision": status.get("revision", ""),
            **self.live.machine, "sweep": self.sweep, "broken": self.broken(),
            "build_failure": self.live.matrix.build_failure,
            "results": [{**data, **self.more_about(data)} for data in self.results.values()], "flips": self.flips,
        }  # fmt: skip
        return json.dumps(found, indent=1) + "\n"

    def more_about(self, data: Json) -> Json:
        """Since when, and what the header says to people."""
        cell = self.live.matrix.cells.get((data["repro"], data["device"]))
        since = cell.since if cell else None
        return {"since": since, **about(self.live.repros().get(data["repro"]))}

    def broken(self) -> list[Json]:
        """The backends that could do nothing at all."""
        return [
            {"backend": backend, "device": device, "reason": why}
            for (backend, device), why in self.live.matrix.broken.items()
        ]

    def junit(self) -> str:
        """A test suite with a case for each repro and column."""
        suite = ElementTree.Element("testsuite", name="minidbg watch")
        for data in self.results.values():
            self.add_case(suite, data)
        for one in self.broken():
            add_error(suite, f"backend {one['backend']}", one["device"], f"is broken: {one['reason']}")
        if self.live.matrix.build_failure:
            add_error(suite, "build", "build", self.live.matrix.build_failure)
        counts = {
            name: str(len(suite.findall(f"testcase/{tag}")))
            for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))
        }
        seconds = str(self.sweep.get("seconds", 0.0))
        suite.attrib |= {"tests": str(len(suite)), **counts, "time": seconds, "timestamp": utc(self.began)}
        root = ElementTree.Element("testsuites")
        root.append(suite)
        return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, "unicode") + "\n"

    def add_case(self, suite: ElementTree.Element, data: Json) -> None:
        """A failure where the exit status counts one; a known failure is skipped, as pytest writes an expected one."""
        verdict, said = data["verdict"] or data["standing"], data["reason"] or data.get("message", "")
        case = ElementTree.SubElement(
            suite, "testcase", name=printable(data["repro"]), classname=printable(data["device"]),
            time=str(data["seconds"]),
        )  # fmt: skip
        more = self.more_about(data)
        properties = ElementTree.SubElement(case, "properties")
        for name in ("since", "expect", "owner", "issue", "muted"):
            if more.get(name):
                value = utc(more[name]) if name == "since" else in_one_line(str(more[name]))
                ElementTree.SubElement(properties, "property", name=name, value=value)
        known = self.fail_on is FailOn.UNEXPECTED and (data.get("expected", False) or bool(data["muted"]))
        failing = verdict in FAILING
        contradicts = self.fail_on is FailOn.UNEXPECTED and verdict == "gone" and not known
        if contradicts:
            said = f"its header expects {more.get('expect')}; if it is fixed: minidbg accept {data['repro']}"
        if failing and known:
            add(case, "skipped", verdict, f"known failure: {said}")
        elif failing or contradicts:
            add(case, "failure", verdict, said)
        elif verdict == "invalid":
            add(case, "error", verdict, said)
        elif verdict != "gone":
            add(case, "skipped", verdict, said)


def add(case: ElementTree.Element, tag: str, kind: str, text: str) -> None:
    """What became of a test case: in short, and in full."""
    found = ElementTree.SubElement(case, tag, type=kind, message=in_one_line(f"{kind}: {text}")[:300])
    found.text = printable(text)


def add_error(suite: ElementTree.Element, name: str, where: str, text: str) -> None:
    case = ElementTree.SubElement(suite, "testcase", name=in_one_line(name), classname=in_one_line(where))
    add(case, "error", "not judged", text)


def utc(at: Any) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(float(at)))
