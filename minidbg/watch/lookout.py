"""The daemon's eyes: hints of changes, when to look, and what that means for repros, sources and the running sweep."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from minidbg.watch.announce import Announcer
from minidbg.watch.debounce import Debounce
from minidbg.watch.events import Events
from minidbg.watch.repros import read_repros
from minidbg.watch.revisions import GitWork, git_work, repositories_of
from minidbg.watch.settings import WatchSettings
from minidbg.watch.snapshot import Root
from minidbg.watch.sources import repositories_worth_building, source_roots
from minidbg.watch.sweeper import Sweeper

POLL_S = 2.0
CHECK_ROOTS_S = 2.0
GIT_POLL_S = 0.1
LULL_S = 0.03
"""After so long without an event, a burst is likely to be over."""
LULL_PATHS = 20
SCRIPTS = (".py", ".safetensors")


@dataclass(slots=True)
class Lookout:
    """Watches the repros in ``paths``, which are called by their place in ``home``, and the sources of their backends."""

    paths: Sequence[Path]
    home: Path
    settings: WatchSettings
    sweeper: Sweeper
    events: Events
    announce: Announcer
    debounce: Debounce
    polling: bool = False
    unlooked: list[str] = field(default_factory=list)
    """Hinted paths of the burst under way that nobody has looked at yet."""
    next_look: float = 0.0
    next_check: float = 0.0
    told_stepping: bool = False

    def deadline(self, now: float) -> float:
        """When ``tick`` has something to do although no message came."""
        moments = [self.next_look, self.next_check]
        burst = self.debounce.deadline()
        if burst is not None and now < self.debounce.last + LULL_S:
            moments.append(self.debounce.last + LULL_S)
        elif burst is not None:
            moments.append(max(burst, now + (GIT_POLL_S if burst <= now else 0.0)))
        return min(moments)

    def tick(self, now: float) -> None:
        """Do what is due: renew watches, look at everything once in a while, end a burst."""
        if now >= self.next_check:
            self.next_check = now + CHECK_ROOTS_S
            self.watch_events()
        if now >= self.next_look:
            self.look((), everywhere=True)
            self.next_look = time.monotonic() + self.look_interval()
        self.look_if_burst_is_over(now)

    def is_lull(self, now: float) -> bool:
        """Whether a small burst seems to be over: runs may get a head start, though nothing may be said yet."""
        burst = self.debounce
        if burst.first is None or burst.lost or len(burst.paths) > LULL_PATHS or now < burst.last + LULL_S:
            return False
        return git_work(self.repositories()) is GitWork.NONE

    def repositories(self) -> tuple[str, ...]:
        """The git working trees that hold what is watched."""
        return repositories_of(root.path for root in self.sweeper.watched.roots)

    def peek(self) -> None:
        """Look at what was hinted, without waiting for the end of the burst: a run's result depends on it."""
        paths = [path for path in self.unlooked if self.sweeper.watched.concerns(path)]
        self.unlooked.clear()
        if paths:
            self.sweeper.watched.look(paths)
            self.stop_if_edited()

    def hinted(self, path: str | None) -> None:
        """An event has arrived."""
        if path is None:
            self.debounce.note(time.monotonic(), None)
        elif self.sweeper.watched.concerns(path) or self.concerns_repros(path):
            self.debounce.note(time.monotonic(), path)
            self.unlooked.append(path)

    def concerns_repros(self, path: str) -> bool:
        """Whether the path is a script that is watched, or may be one."""
        return any(
            path == str(one)
            or (one.is_dir() and os.path.dirname(path) == str(one) and path.endswith(SCRIPTS))
            for one in self.paths
        )

    def look_if_burst_is_over(self, now: float) -> None:
        """When files have been quiet for long enough and git is not at work, see what has changed."""
        if self.debounce.first is None:
            return
        work = git_work(self.repositories())
        if work is GitWork.STEPPING and not self.told_stepping:
            self.announce("notice", text="a rebase or merge is under way: sweeps wait until it is quiet")
        self.told_stepping = work is GitWork.STEPPING
        if self.debounce.is_due(now, work):
            paths, lost = self.debounce.take()
            self.look(paths, everywhere=lost)

    def look(self, paths: Sequence[str], *, everywhere: bool) -> None:
        """See what the files hold now; a change stops the sweep that runs."""
        self.unlooked.clear()
        code = [path for path in paths if self.sweeper.watched.concerns(path)]
        changed = self.sweeper.watched.look(code, everywhere=everywhere)
        if everywhere or any(self.concerns_repros(path) for path in paths):
            self.read_repros_again()
        if changed and self.polling:
            for path in changed:
                self.debounce.note(time.monotonic(), path)  # it may still be being written
        self.stop_if_edited()

    def stop_if_edited(self) -> None:
        """Supersede the current sweep when the code is no longer what it began with."""
        sweeper = self.sweeper
        if sweeper.current is None or sweeper.watched.snapshot is sweeper.base:
            return
        if sweeper.watched.snapshot.changes_since(sweeper.base):
            sweeper.supersede()

    def read_repros_again(self) -> None:
        """Notice new, edited and deleted repros."""
        before, after = self.sweeper.repros, read_repros(self.paths, self.home, self.sweeper.repros)
        self.sweeper.repros = after
        changed = {name for name in after if name not in before or before[name].digest != after[name].digest}
        for name in sorted(changed):
            what = "repro_edited" if name in before else "repro_added"
            self.announce(
                "repro_damaged" if after[name].damage else what, repro=name, reason=after[name].damage
            )
        for name in sorted(before.keys() - after.keys()):
            self.announce("repro_removed", repro=name)
        self.sweeper.reasons.ask_for(changed)
        if changed or before.keys() != after.keys():
            self.find_sources()

    def find_sources(self) -> None:
        """Find the trees to watch, and watch them."""
        roots = source_roots(self.sweeper.repros.values(), self.settings.sources)
        if self.settings.build:
            roots += [Root(root) for root in repositories_of(repositories_worth_building(roots))]
        self.sweeper.reasons.adopt_roots(dict.fromkeys(roots), self.sweeper.watched.always)
        self.watch_events()

    def watch_events(self) -> None:
        """Have events sent for everything that is watched; poll where that cannot be."""
        if self.settings.poll_s is not None:
            return
        scripts = [Root(str(one), SCRIPTS, deep=False) for one in self.paths]
        why = self.events.watch([*self.sweeper.watched.all_roots(), *scripts])
        if bool(why) != self.polling:
            self.polling = bool(why)
            self.next_look = 0.0
            text = (
                f"polling every {self.look_interval():g} s: {why}"
                if why
                else "events are back: no more polling"
            )
            self.announce("notice", text=text)

    def look_interval(self) -> float:
        """Seconds between looks at everything: often when polling, but never more than a part of the time."""
        wish = (self.settings.poll_s or POLL_S) if self.polling else self.settings.rescan_s
        return max(wish, 10 * self.sweeper.watched.seconds)
