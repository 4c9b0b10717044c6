"""The matrix for a browser: the data that it draws, what has changed in it, and the page as one file."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from minidbg.watch import events, recorder
from minidbg.watch.announce import View
from minidbg.watch.events import Event, Flipped, Json
from minidbg.watch.matrix import Cell, Matrix
from minidbg.watch.repros import Repro, replace_text
from minidbg.words.errors import MinidbgError
from minidbg.words.text import display_path

SCRIPT = Path(__file__).with_name("page.js")
SHOWN_FLIPS = 50
BRIEF_CHARACTERS = 300


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
        self.flips: deque[tuple[int, Flipped]] = deque(maxlen=SHOWN_FLIPS)
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
        if isinstance(event, events.Serving):
            return  # its token is not for copies of the page
        with self.lock:
            self.matrix.hear(event)
            self.seq += 1
            match event:
                case events.Started():
                    with contextlib.suppress(MinidbgError):  # there is no history yet
                        # those that nobody was told of are told next
                        past = recorder.flips_of(Path(event.home), SHOWN_FLIPS, announced=True)
                        muted = {notes["repro"] for notes in event.notes if notes.get("muted")}
                        heard = (flip for flip in reversed(past) if flip.repro not in muted)
                        self.flips.extend((self.seq, flip) for flip in heard)
                case events.MachineFound():
                    self.machine = event.to_json()
                case events.SweepStarted():
                    self.dimmed = self.seq
                case Flipped():
                    self.note_change(event.repro, event.device)
                    if not event.muted:
                        self.flips.append((self.seq, event))
                case events.Judged() | events.Unconfirmed():
                    self.note_change(event.repro, event.device)
                case (
                    events.ReproAdded() | events.ReproEdited() | events.ReproRemoved() | events.ReproDamaged()
                ):
                    self.note_change(event.repro, "")
        self.wake()

    def note_change(self, repro: str, column: str) -> None:
        """The present event has changed this cell, or without a column what the header says."""
        self.changed.pop((repro, column), None)
        self.changed[repro, column] = self.seq

    def close(self) -> None:
        """Say that nobody watches any more."""
        with self.lock:
            self.matrix.activity, self.matrix.first_verdict, self.matrix.began = (
                "not watching any more",
                "",
                None,
            )
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
                "flips": [flip.page_row() for _, flip in self.flips],
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
                "flips": [flip.page_row() for at, flip in self.flips if at > seq],
            }

    def head(self) -> Json:
        """What stands above the rows."""
        matrix = self.matrix
        activity = matrix.activity + matrix.first_verdict
        return {
            "boot": self.boot, "seq": self.seq, "home": display_path(matrix.home) if matrix.home else "",
            "activity": "paused" if matrix.paused else activity, "cause": matrix.cause, "began": matrix.began,
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


def cell_json(cell: Cell, *, brief: bool = True) -> list[Any]:
    """Verdict, since when, seconds, whether the present sweep saw it, what was said, and what is being confirmed."""
    note = cell.note
    if brief:
        note = note.partition("\n")[0]
        note = note if len(note) <= BRIEF_CHARACTERS else f"{note[: BRIEF_CHARACTERS - 1]}…"
    since = None if cell.since is None else round(cell.since)
    return [cell.verdict, since, round(cell.seconds, 2), int(cell.fresh), note, cell.maybe]


def page_html(state: Json, *, alone: bool) -> str:
    """The page with ``state`` in it. ``alone``: with its style and script too, so that it needs no server."""
    data = json.dumps(state, separators=(",", ":")).replace("<", "\\u003c")
    script = SCRIPT.read_text(encoding="utf-8") if alone else ""
    return filled("watch.html.j2", state=data, script=script, alone=alone)


def style_text() -> str:
    """The style of all pages of minidbg, then this one's own."""
    return filled("style.css.j2") + filled("watch.css.j2")


def filled(name: str, **variables: Any) -> str:
    from minidbg.words import templates  # jinja2 is loaded by a daemon that has a page

    return templates.fill(name, variables)


class Page(View):
    """Keeps the page as a file that needs no server; a reader sees the old page or the new one, whole."""

    def __init__(self, path: Path, live: Live, clock: Callable[[], float] = time.time) -> None:
        self.path, self.live, self.clock, self.written = path, live, clock, 0.0

    def show(self, event: Event) -> None:
        """Write what ``live`` has heard. A file that cannot be written any more ends nothing."""
        if isinstance(event, PAGE_ENDS) or self.clock() - self.written >= PAGE_BETWEEN_S:
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
PAGE_ENDS = (
    events.SweepFinished, Flipped, events.Started, events.Paused, events.Resumed, events.BackendBroken, events.BackendBack,
    events.BuildFailed, events.Notice,
)  # fmt: skip
"""Events after which the page is written at once."""
