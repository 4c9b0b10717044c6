"""What is watched, and what of it no sweep has judged yet: source trees, single files that runs load, and the repros."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from minidbg.watch import sources
from minidbg.watch.events import Notice, ReproAdded, ReproDamaged, ReproEdited, ReproRemoved
from minidbg.watch.files import FileEvents, Snapshot, scan
from minidbg.watch.repros import Repro, read_repros
from minidbg.watch.settings import WatchSettings
from minidbg.watch.views import Announcer

LOOK_S, LOOK_FACTOR = 5.0, 50.0
"""How often everything is looked at although no event says so; looks take a small part of the time."""
THREE_LOOKS_S = 0.9
"""Three looks take at least so long, while events never end: a single save is looked at at once."""
EMPTY = Snapshot()


@dataclass(slots=True)
class Watched:
    """The repros in ``paths``, which are called by their path in ``home``, and the code of their backends."""

    paths: Sequence[Path]
    home: Path
    settings: WatchSettings
    events: FileEvents
    announce: Announcer
    repros: dict[str, Repro] = field(default_factory=dict)
    roots: tuple[str, ...] = ()
    snapshot: Snapshot = EMPTY
    """The code as it is now; below, as it was when..."""
    judged: Snapshot = EMPTY
    """... the last whole sweep began that was completed,"""
    built: Snapshot = EMPTY
    """... the last build began that succeeded,"""
    build_failed: Snapshot = EMPTY
    """... the last build failed. Empty when there was none, or when another one is asked for."""
    all_again: bool = False
    """Whether all repros are to run although no code has changed: a person asked, or a sweep was cut short."""
    asked_for: set[str] = field(default_factory=set)
    """Those that are to run."""
    own: frozenset[str] = frozenset()
    """The real paths of the scripts and of the tensors beside them, which are no code."""
    looks: deque[float] = field(default_factory=lambda: deque([0.0] * 3, maxlen=3))
    """When the last ones ended."""
    next_look: float = 0.0
    look_is_due: bool = False
    """Whether something has changed since the last look: no sweep begins before the next one."""

    # What is to be done

    @property
    def needs_build(self) -> bool:
        """Whether the build's outputs may not be those of the present code: also when that code was judged before."""
        return bool(self.settings.build) and self.differs(self.built)

    @property
    def runs_all(self) -> bool:
        return self.all_again or self.differs(self.judged)

    @property
    def to_run(self) -> set[str]:
        return set(self.repros) if self.runs_all else self.asked_for & self.repros.keys()

    @property
    def wants_sweep(self) -> bool:
        """Whether there is a reason for a sweep; none while the code is what the last build failed on."""
        wanted = self.needs_build or self.runs_all or bool(self.to_run)
        return wanted and not self.look_is_due and self.differs(self.build_failed)

    def differs(self, then: Snapshot) -> bool:
        return then is EMPTY or bool(self.snapshot.changes_since(then))

    def ask_for_all(self) -> None:
        """Run every repro, changed or not, and build again what could not be built."""
        self.all_again, self.build_failed = True, EMPTY

    # Looking

    def look(self) -> None:
        """Read the repros, and the files of their backends."""
        began = time.monotonic()
        self.read_repros()
        self.watch_events()
        self.snapshot = scan(self.roots, self.snapshot, self.settings.ignore)
        seconds = time.monotonic() - began
        self.looks.append(began + seconds)
        self.look_is_due = False
        self.next_look = self.looks[-1] + (self.settings.poll_s or max(LOOK_S, LOOK_FACTOR * seconds))

    def look_soon(self) -> None:
        self.look_is_due = True
        self.next_look = min(self.next_look, self.looks[0] + THREE_LOOKS_S)

    def read_repros(self) -> None:
        before, is_first = self.repros, self.snapshot is EMPTY
        self.repros = read_repros(self.paths, self.home, before)
        changed = {
            name
            for name, one in self.repros.items()
            if name not in before or before[name].digest != one.digest
        }
        for name in sorted(changed) if not is_first else ():
            repro = self.repros[name]
            if repro.damage:
                self.announce(ReproDamaged(name, repro.damage))
            else:
                self.announce((ReproEdited if name in before else ReproAdded)(name))
        for name in sorted(before.keys() - self.repros.keys()):
            self.announce(ReproRemoved(name))
        self.asked_for |= changed
        if changed or before.keys() != self.repros.keys():
            roots = sources.source_roots(self.repros.values(), self.settings.sources)
            if self.settings.build:
                roots += sources.repositories_worth_building(roots)
            self.roots = tuple(dict.fromkeys(roots))
            scripts = [repro.path for repro in self.repros.values()]
            both = (file for path in scripts for file in (path, path.with_suffix(".safetensors")))
            self.own = frozenset(map(os.path.realpath, both))

    def watch_events(self) -> None:
        """Have events sent for everything that is watched. One sweep alone, or who polls, needs none."""
        if self.settings.poll_s is not None or self.settings.once:
            return
        try:
            self.events.watch(self.all_roots(), [str(one.absolute()) for one in self.paths])
        except OSError as error:
            text = f"file events are not to be had ({error}); everything is looked at every few seconds"
            self.announce.once("events", Notice(text))

    def all_roots(self) -> list[str]:
        return [*self.roots, *sorted(self.snapshot.loaded)]

    def adopt(self, files: Iterable[str]) -> tuple[str, ...]:
        """Watch also these files, which a run has loaded, where no root covers them; those that are watched then."""
        files = frozenset(files)
        if unknown := files - self.snapshot.files.keys() - self.own:
            left_out = sources.left_out_folders(self.home)
            if found := [*sources.worth_watching(unknown, self.roots, left_out)]:
                self.snapshot = self.snapshot.with_loaded(found)
        return tuple(sorted(files & self.snapshot.files.keys()))
