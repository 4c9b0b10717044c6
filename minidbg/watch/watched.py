"""What is watched, when it is looked at, and what of it no sweep has judged yet: source trees,
files that runs load, and the repros.

An event of the operating system says "rescan", no more: once it is quiet (``FileEvents``), and not
too soon after the last one (``Watched.rescan``). A rescan is always a whole scan, and there is one
every few seconds without any event: so nothing is lost where no events come, where some were
dropped, or where a folder was replaced.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from watchdog import events as fs
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver
from watchdog.utils.event_debouncer import EventDebouncer

from minidbg.watch import sources
from minidbg.watch.events import Notice, ReproFileChanged
from minidbg.watch.files import JUNK_FOLDERS, Snapshot, scan
from minidbg.watch.repros import Repro, read_repros
from minidbg.watch.settings import WatchSettings
from minidbg.watch.views import Announcer

QUIET_S, QUIET_BEFORE_BUILD_S = 0.03, 0.2
"""The debounce: so long nothing is written any more. A save may be of several files: what comes
later supersedes the sweep, but nothing supersedes what a build writes."""
RESCAN_S, RESCAN_FACTOR = 5.0, 3.0
"""How long after a rescan the next one comes although no event says so; and how many times as long
as a rescan it waits at least, since events may never end."""
WRITES: list[type[fs.FileSystemEvent]] = [
    fs.FileCreatedEvent, fs.FileModifiedEvent, fs.FileClosedEvent, fs.FileMovedEvent,
    fs.FileDeletedEvent, fs.DirCreatedEvent, fs.DirMovedEvent, fs.DirDeletedEvent,
]  # fmt: skip
"""Opening and reading are left out: our own runs do that, and would cause the next sweep."""


class FileEvents(fs.FileSystemEventHandler):
    """Calls ``changed``, in a thread of watchdog's, once it is quiet after a write."""

    def __init__(self, changed: Callable[[], None], *, before_build: bool = False) -> None:
        quiet_s = QUIET_BEFORE_BUILD_S if before_build else QUIET_S
        self.debouncer = EventDebouncer(quiet_s, lambda events: changed())
        self.observer: BaseObserver | None = None
        self.folders: Mapping[str, tuple[bool, int]] = {}
        """That are watched: whether with all below, and the inode, since a watch stays with a
        folder that was moved away."""

    def watch(self, roots: Iterable[str], shallow: Iterable[str]) -> None:
        """Watch only ``roots`` and ``shallow`` folders' files. Raises OSError at a system limit."""
        deep = {root for root in roots if os.path.isdir(root)}
        wanted = {one if os.path.isdir(one) else os.path.dirname(one) for one in (*roots, *shallow)}
        folders = {
            one: (one in deep, os.stat(one).st_ino)
            for one in sorted(filter(os.path.isdir, wanted))
            if deep.isdisjoint(map(str, Path(one).parents))
        }
        if folders == self.folders:
            return
        if self.observer is None:
            logging.getLogger("watchdog").propagate = False  # its warnings would cross the matrix
            logging.getLogger("watchdog").addHandler(logging.NullHandler())
            self.observer = Observer()
            self.observer.start()
            self.debouncer.start()
        self.observer.unschedule_all()
        self.folders = folders
        for folder, (is_deep, _) in folders.items():
            self.observer.schedule(self, folder, recursive=is_deep, event_filter=WRITES)

    def on_any_event(self, event: fs.FileSystemEvent) -> None:
        """An atomic save shows only as the destination of a move, so both ends count."""
        for path in (event.src_path, getattr(event, "dest_path", "")):
            text = os.fsdecode(path)
            if text and JUNK_FOLDERS.isdisjoint(text.split(os.sep)[-3:]):
                self.debouncer.handle_event(event)

    def stop(self) -> None:
        if self.observer is not None:
            for thread in (self.observer, self.debouncer):
                thread.stop()
                thread.join()


@dataclass(slots=True)
class Watched:
    """The repros in ``paths``, called by their path in ``home``, and the code of their backends."""

    paths: Sequence[Path]
    home: Path
    settings: WatchSettings
    events: FileEvents
    announce: Announcer
    repros: dict[str, Repro] = field(default_factory=dict)
    roots: list[str] = field(default_factory=list)
    """The folders and single files that are looked at. Each is taken to have been at all times what
    it was at the first scan."""
    loaded: set[str] = field(default_factory=set)
    """Those of them runs have loaded: from elsewhere, or ignored by git as build outputs are."""
    snapshot: Snapshot = field(default_factory=dict)
    """The code as it is now; below, as it was when..."""
    begun: Snapshot = field(default_factory=dict)
    """... the sweep began that is under way,"""
    judged: Snapshot | None = None
    """... the last sweep began that was completed,"""
    built: Snapshot | None = None
    """... the last build ended; None when there was none, or when another one is asked for."""
    build_failed: bool = False
    to_run_again: set[str] = field(default_factory=set)
    """The repros that are to run although no code has changed: they were edited, a person asked, or
    a sweep was superseded."""
    soonest_rescan: float = 0.0
    """When the next one may be, where something has changed since the last."""
    next_rescan: float = 0.0

    # What is to be done

    @property
    def needs_build(self) -> bool:
        """Whether the build's outputs may be stale, also when this code was judged before."""
        return bool(self.settings.build) and self.built != self.snapshot

    @property
    def runs_all(self) -> bool:
        return self.judged != self.snapshot

    @property
    def to_run(self) -> set[str]:
        return self.repros.keys() & (self.repros if self.runs_all else self.to_run_again)

    @property
    def wants_sweep(self) -> bool:
        """Whether there is a reason for a sweep; none before a rescan that is due, nor while the
        code is what the last build failed on."""
        wanted = self.runs_all or bool(self.to_run)
        look_is_due = self.next_rescan <= self.soonest_rescan
        return not look_is_due and (self.needs_build or (wanted and not self.build_failed))

    def ask_for_all(self) -> None:
        """Run every repro, changed or not, and build again what could not be built."""
        self.to_run_again |= self.repros.keys()
        self.built = None if self.build_failed else self.built

    # Looking

    def rescan(self) -> None:
        began = time.monotonic()
        self.look_at_repros()
        if self.settings.poll_s is None and not self.settings.once:  # a single sweep needs none
            try:
                self.events.watch(self.roots, [str(one.absolute()) for one in self.paths])
            except OSError as error:
                text = f"file events are not available ({error}); rescanning every few seconds"
                self.announce.once("events", Notice(text))
        self.snapshot = scan(self.roots, self.settings.ignore)
        now = time.monotonic()
        self.soonest_rescan = now + RESCAN_FACTOR * (now - began)
        self.next_rescan = self.soonest_rescan + (self.settings.poll_s or RESCAN_S)

    def rescan_soon(self) -> None:
        self.next_rescan = min(self.next_rescan, self.soonest_rescan)

    def look_at_repros(self) -> None:
        before, is_first = self.repros, not self.next_rescan
        self.repros = read_repros(self.paths, self.home, before)
        changed = {
            name
            for name, one in self.repros.items()
            if name not in before or before[name].digest != one.digest
        }
        for name in sorted(changed) if not is_first else ():
            damage = self.repros[name].damage
            change = "damaged" if damage else "edited" if name in before else "added"
            self.announce(ReproFileChanged(change, name, damage))
        for name in sorted(before.keys() - self.repros.keys()):
            self.announce(ReproFileChanged("removed", name))
        self.to_run_again |= changed
        if changed:
            roots = sources.source_roots(self.repros.values(), self.settings.sources)
            if self.settings.build:
                roots += sources.repositories_worth_building(roots)
            self.watch(roots)

    def watch(self, roots: Iterable[str]) -> None:
        more = [root for root in dict.fromkeys(roots) if root not in self.roots]
        self.roots += more
        now = scan(more, self.settings.ignore) if more else {}
        self.snapshot, self.begun = {**now, **self.snapshot}, {**now, **self.begun}
        self.judged = self.judged and {**now, **self.judged}
        self.built = self.built and {**now, **self.built}

    def adopt(self, files: Iterable[str]) -> tuple[str, ...]:
        """Watch these files too, loaded by a run, where no root covers them; those watched then."""
        files = frozenset(files)
        if unknown := files - self.snapshot.keys():
            left_out = sources.left_out_folders(self.home)
            if more := [*sources.worth_watching(unknown, self.roots, left_out)]:
                self.watch(more)
                self.loaded.update(more)
        return tuple(sorted(files & self.snapshot.keys()))
