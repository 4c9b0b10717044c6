"""What is watched, and what of it no sweep has judged yet: source trees, single files that runs load, and the repros.

The files themselves are the truth. Events only hint at paths to look at, and a snapshot holds what was read there.
"""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from minidbg.watch import sources
from minidbg.watch.announce import Announcer
from minidbg.watch.events import Notice, ReproAdded, ReproDamaged, ReproEdited, ReproRemoved
from minidbg.watch.file_events import FileEvents
from minidbg.watch.repros import Repro, read_repros
from minidbg.watch.settings import WatchSettings
from minidbg.watch.snapshot import Ignore, Root, Snapshot, is_inside, scan, stamp, update

POLL_S = 2.0
RESCAN_S = 30.0
"""How often everything is looked at although no event said so."""
CHECK_ROOTS_S = 2.0
QUIET_S = 0.2
LONGEST_BURST_S = 5.0
LULL_S = 0.03
"""A burst of few events is over after so long: an edit that still follows supersedes the sweep that has begun."""
LULL_PATHS = 20
SCRIPTS = (".py", ".safetensors")


@dataclass(slots=True)
class Burst:
    """Hinted paths that arrive together, until it has been quiet for a while. Each question brings its ``now``."""

    small_quiet_s: float = LULL_S
    """How long it must be quiet after a burst of few paths."""
    first: float | None = None
    last: float = 0.0
    paths: dict[str, None] = field(default_factory=dict)
    lost: bool = False
    """Whether events were lost or too many to list: everything must be looked at."""

    LIMIT = 5_000

    def note(self, now: float, path: str | None) -> None:
        self.first = now if self.first is None else self.first
        self.last = now
        if path is None or len(self.paths) >= self.LIMIT:
            self.lost = True
        else:
            self.paths[path] = None

    def deadline(self) -> float | None:
        """When the burst will be over if nothing more arrives; None without a burst."""
        if self.first is None:
            return None
        is_small = not self.lost and len(self.paths) <= LULL_PATHS
        return min(self.last + (self.small_quiet_s if is_small else QUIET_S), self.first + LONGEST_BURST_S)

    def is_due(self, now: float) -> bool:
        deadline = self.deadline()
        return deadline is not None and now >= deadline

    def end(self) -> tuple[tuple[str, ...], bool]:
        """The burst's paths and whether some were lost; the next burst begins empty."""
        found = tuple(self.paths), self.lost
        self.first, self.paths, self.lost = None, {}, False
        return found


class Mark(enum.Enum):
    """A moment at which the code was remembered, to be compared with what it is now."""

    SWEEP = enum.auto()
    """The beginning of the current sweep."""
    SWEPT = enum.auto()
    """The last whole sweep that was completed."""
    BUILD = enum.auto()
    """The beginning of the last build."""
    BUILT = enum.auto()
    """The last build that succeeded; missing when a build failed since."""
    BUILD_FAILED = enum.auto()
    """The last build, which failed."""


@dataclass(slots=True)
class Pending:
    """What waits to be judged or looked at, besides a change of the code."""

    all: bool = False
    """Whether all repros are to run: a person asked, or a sweep was cut short."""
    names: set[str] = field(default_factory=set)
    """Repros that are to run."""
    hints: list[str] = field(default_factory=list)
    """Hinted paths of the burst under way that nobody has looked at yet."""


@dataclass(slots=True)
class Watched:
    """The repros in ``paths``, which are called by their path in ``home``, and the code of their backends."""

    paths: Sequence[Path]
    home: Path
    settings: WatchSettings
    events: FileEvents
    announce: Announcer
    ignore: Ignore = field(init=False)
    burst: Burst = field(init=False)
    polling: bool = field(init=False)
    repros: dict[str, Repro] = field(default_factory=dict)
    roots: tuple[Root, ...] = ()
    always: frozenset[str] = frozenset()
    """Single files that runs have loaded and no root covers: from elsewhere, or ignored by git as build outputs are."""
    snapshot: Snapshot = field(default_factory=Snapshot)
    marks: dict[Mark, Snapshot] = field(default_factory=dict)
    own: frozenset[str] = frozenset()
    """The real paths of the scripts and of the tensors beside them."""
    pending: Pending = field(default_factory=lambda: Pending())
    look_seconds: float = 0.0
    """How long the last look at everything took."""
    next_look: float = 0.0
    next_check: float = 0.0

    def __post_init__(self) -> None:
        self.ignore = Ignore(self.settings.ignore)
        # A build must not begin on a half-saved tree: nothing supersedes what it writes.
        self.burst = Burst(small_quiet_s=QUIET_S if self.settings.build else LULL_S)
        self.polling = self.settings.poll_s is not None

    def start(self) -> None:
        self.repros = read_repros(self.paths, self.home)
        self.find_sources()
        self.look(everywhere=True)

    # What differs from what

    def mark(self, mark: Mark, snapshot: Snapshot | None = None) -> None:
        """Remember the code as it is now, or as it was in ``snapshot``."""
        self.marks[mark] = snapshot or self.snapshot

    def changed_since(self, mark: Mark) -> tuple[str, ...]:
        """The watched files that differ from what they were at ``mark``; none when there is no such mark."""
        return self.snapshot.changes_since(self.marks.get(mark, self.snapshot))

    @property
    def needs_build(self) -> bool:
        """Whether the build's outputs may not be those of the present code: also when that code was judged before."""
        return bool(self.settings.build) and (
            Mark.BUILT not in self.marks or bool(self.changed_since(Mark.BUILT))
        )

    @property
    def known(self) -> bool:
        return Mark.SWEPT in self.marks and not self.changed_since(Mark.SWEPT)

    @property
    def runs_all(self) -> bool:
        return self.pending.all or not self.known

    @property
    def to_run(self) -> set[str]:
        return set(self.repros) if self.runs_all else self.pending.names & self.repros.keys()

    @property
    def wants_sweep(self) -> bool:
        return self.needs_build or self.runs_all or bool(self.to_run)

    @property
    def build_fails(self) -> bool:
        """Whether the code is still what the last build failed on."""
        return Mark.BUILD_FAILED in self.marks and not self.changed_since(Mark.BUILD_FAILED)

    def ask_for(self, names: Iterable[str]) -> None:
        self.pending.names |= set(names)

    def ask_for_all(self) -> None:
        """Run every repro, changed or not, and build again what could not be built."""
        self.pending.all = True
        self.marks.pop(Mark.BUILD_FAILED, None)

    def begin_sweep(self) -> None:
        self.mark(Mark.SWEEP)
        self.pending = Pending(hints=self.pending.hints)

    # Looking

    def deadline(self, now: float) -> float:
        moments = [self.next_look, self.next_check]
        burst = self.burst.deadline()
        if burst is not None:
            moments.append(max(burst, now))
        return min(moments)

    def tick(self, now: float) -> None:
        """Do what is due: renew watches, look at everything once in a while, end a burst."""
        if now >= self.next_check:
            self.next_check = now + CHECK_ROOTS_S
            self.watch_events()
        if now >= self.next_look:
            self.look(everywhere=True)
            self.next_look = time.monotonic() + self.look_interval()
        if self.burst.is_due(now):
            paths, lost = self.burst.end()
            self.look(paths, everywhere=lost)

    def hinted(self, path: str | None) -> None:
        """Add an event's path to the burst, where it may concern code or repros; ``tick`` looks at it when the burst is over."""
        if path is None:
            self.burst.note(time.monotonic(), None)
        elif self.concerns(path) or self.concerns_repros(path):
            self.burst.note(time.monotonic(), path)
            self.pending.hints.append(path)

    def peek(self) -> None:
        """Look at what was hinted, without waiting for the end of the burst: a run's result depends on it."""
        paths = [path for path in self.pending.hints if self.concerns(path)]
        self.pending.hints.clear()
        if paths:
            self.read_files(paths)

    def look(self, paths: Sequence[str] = (), *, everywhere: bool = False) -> None:
        """Read the hinted files into the snapshot, or all files; and the repros, where a hint is about one."""
        self.pending.hints.clear()
        began = time.monotonic()
        changed = self.read_files([path for path in paths if self.concerns(path)], everywhere=everywhere)
        if everywhere or any(self.concerns_repros(path) for path in paths):
            self.read_repros_again()
        if everywhere:
            self.look_seconds = time.monotonic() - began
        if changed and self.polling:
            for path in changed:
                self.burst.note(time.monotonic(), path)  # it may still be being written

    def read_files(self, hints: Iterable[str], *, everywhere: bool = False) -> tuple[str, ...]:
        """Read the hinted paths, or everything; the paths that hold something else than before."""
        before, hints, now_ns = self.snapshot, tuple(hints), time.time_ns()
        everywhere = everywhere or any(os.path.basename(path) == ".gitignore" for path in hints)
        if everywhere:
            self.ignore = Ignore(self.settings.ignore)
        find = scan if everywhere else update
        self.snapshot = find(self.roots, self.ignore, before, hints, now_ns=now_ns, always=self.always)
        return self.snapshot.changes_since(before)

    def concerns(self, path: str) -> bool:
        return path in self.always or any(is_inside(path, root.path) for root in self.roots)

    def concerns_repros(self, path: str) -> bool:
        return any(
            path == str(one)
            or (one.is_dir() and os.path.dirname(path) == str(one) and path.endswith(SCRIPTS))
            for one in self.paths
        )

    def read_edited(self, files: Iterable[str]) -> None:
        """Read those of ``files`` again that are no longer as in the snapshot, told by their time stamps: exact, and without any event."""
        if edited := [path for path in files if stamp(path) != self.snapshot.files[path].stamp]:
            self.read_files(edited)

    # Repros and roots

    def read_repros_again(self) -> None:
        before = self.repros
        after = read_repros(self.paths, self.home, before)
        self.repros = after
        changed = {name for name in after if name not in before or before[name].digest != after[name].digest}
        for name in sorted(changed):
            repro, is_known = after[name], name in before
            if repro.damage:
                self.announce(ReproDamaged(name, repro.damage, by_edit=True))
            else:
                self.announce((ReproEdited if is_known else ReproAdded)(name))
        for name in sorted(before.keys() - after.keys()):
            self.announce(ReproRemoved(name))
        self.ask_for(changed)
        if changed or before.keys() != after.keys():
            self.find_sources()

    def find_sources(self) -> None:
        """Find the source trees of the repros' backends, read them into the snapshot, and have their events sent."""
        sound = [repro.path for repro in self.repros.values() if not repro.damage]
        both = (file for path in sound for file in (path, path.with_suffix(".safetensors")))
        self.own = frozenset(map(os.path.realpath, both))
        roots = sources.source_roots(self.repros.values(), self.settings.sources)
        if self.settings.build:
            roots += [Root(root) for root in sources.repositories_worth_building(roots)]
        if self.roots != (found := tuple(dict.fromkeys(roots))):
            before, self.roots = self.snapshot, found
            self.read_files((), everywhere=True)
            self.take_for_unchanged(before)
        self.watch_events()

    def adopt(self, files: Iterable[str]) -> tuple[str, ...]:
        """Watch also these files, which a run has loaded, where no root covers them; those that are watched then.

        A repro's own files are no code.
        """
        files = frozenset(files)
        unknown = {path for path in files if path not in self.snapshot.files} - self.own
        left_out = sources.left_out_folders(self.home) if unknown else ()  # after most runs nothing is
        if found := set(sources.worth_watching(unknown, self.roots, left_out)):
            before, self.always = self.snapshot, self.always | found
            self.read_files(found)
            self.take_for_unchanged(before)
            self.watch_events()
        return tuple(sorted(path for path in files if path in self.snapshot.files))

    def take_for_unchanged(self, before: Snapshot) -> None:
        """What is watched for the first time since ``before``, or no longer, has not changed."""
        now = self.snapshot.files
        fresh, gone = now.keys() - before.files.keys(), before.files.keys() - now.keys()
        for mark, then in self.marks.items():
            kept = {path: entry for path, entry in then.files.items() if path not in gone}
            self.marks[mark] = Snapshot({**kept, **{path: now[path] for path in fresh}})

    def forget_missing(self) -> None:
        self.always = frozenset(path for path in self.always if path in self.snapshot.files)

    def all_roots(self) -> list[Root]:
        return [*self.roots, *(Root(path) for path in sorted(self.always))]

    def watch_events(self) -> None:
        """Have events sent for everything that is watched; poll where that cannot be. One sweep alone needs neither."""
        if self.settings.poll_s is not None or self.settings.once:
            return
        scripts = [Root(str(one), SCRIPTS, deep=False) for one in self.paths]
        why = self.events.watch([*self.all_roots(), *scripts])
        if bool(why) != self.polling:
            self.polling = bool(why)
            self.next_look = 0.0
            back = "events are back: no more polling"
            self.announce(Notice(f"polling every {self.look_interval():g} s: {why}" if why else back))

    def look_interval(self) -> float:
        """Seconds between looks at everything: often when polling, but never more than a part of the time."""
        wish = (self.settings.poll_s or POLL_S) if self.polling else RESCAN_S
        return max(wish, 10 * self.look_seconds)
