"""What the watched files hold, and when to look at them.

An event of the operating system says "look", no more; a look is always a whole scan, and there is one every few seconds without
any event: so nothing is lost where no events come, where some were dropped, or where a folder was replaced. A snapshot knows
each file by the hash of its content: a file that was only touched, or written again as it was, has not changed.
"""

from __future__ import annotations

import fnmatch
import hashlib
import logging
import os
import re
import stat
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from watchdog import events
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver
from watchdog.utils.event_debouncer import EventDebouncer

from minidbg.words import environment

GIT_SECONDS = 20.0
JUNK_FOLDERS = frozenset((
    ".git", ".hg", ".svn", ".jj", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache",
    ".hypothesis", ".tox", ".nox", ".venv", "venv", "node_modules", ".idea", ".vscode",
    ".ipynb_checkpoints", ".minidbg",
))  # fmt: skip
"""Never source code: version control, caches, virtual environments."""

# Bytecode, and what editors make while they save.
JUNK = "*.pyc *.pyo .DS_Store *~ .#* #*# .*.sw? .sw? 4913 *.tmp *.crswap .*.kate-swp .goutputstream-* *___jb_tmp___ *___jb_old___"
JUNK_FILES = re.compile("|".join(map(fnmatch.translate, JUNK.split())))

LARGE_BYTES = 32 * 1024 * 1024
"""Files from this size on are known by size and time alone: reading a library of 700 MB would take seconds."""
RACY_NS = 2_000_000_000
"""A file younger than this when it was read may change again without a new time stamp, so it is read again."""

Stamp: TypeAlias = tuple[int, int, int, int]
"""Size, modification time, change time and inode: what no write leaves as it was."""


@dataclass(frozen=True, slots=True)
class Entry:
    stamp: Stamp
    digest: str
    racy: bool = False
    """Whether it was so young when it was read that its time stamp proves nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The files at one moment, by absolute path."""

    files: Mapping[str, Entry] = field(default_factory=dict)
    roots: tuple[str, ...] = ()
    """The folders and single files that were looked at."""
    loaded: Mapping[str, Entry] = field(default_factory=dict)
    """Single files that runs have loaded and no root covers, as they were at first: from elsewhere, or ignored by git as build outputs are."""

    def digest(self, paths: Iterable[str] | None = None) -> str:
        total = hashlib.sha1(usedforsecurity=False)
        for path in sorted(self.files if paths is None else self.files.keys() & set(paths)):
            total.update(f"{path}\0{self.files[path].digest}\0".encode())
        return total.hexdigest()

    def covers(self, path: str) -> bool:
        return path in self.loaded or any(is_inside(path, root) for root in self.roots)

    def changes_since(self, before: Snapshot) -> tuple[str, ...]:
        return changes(before, self) if before is not self else ()

    def with_loaded(self, paths: Iterable[str]) -> Snapshot:
        """These files are watched from now on."""
        now = {path: entry for path in paths if (entry := look(path, None)) is not None}
        return Snapshot({**self.files, **now}, self.roots, {**now, **self.loaded})


@lru_cache(maxsize=8)
def changes(before: Snapshot, now: Snapshot) -> tuple[str, ...]:
    """The files that differ. What only one of the two watches has not changed, but for what was loaded since: that was as it was at first."""
    first = {path: entry for path, entry in now.loaded.items() if path not in before.loaded}
    old, new = {**first, **before.files}, now.files
    edited = [path for path in old.keys() & new.keys() if old[path].digest != new[path].digest]
    both = old.keys() ^ new.keys()
    came_or_went = [path for path in both if (before if path in new else now).covers(path)]
    return tuple(sorted(edited + came_or_went))


def scan(roots: Iterable[str], before: Snapshot, ignore: Sequence[str] = ()) -> Snapshot:
    """Look at every file below ``roots``, and at those that runs have loaded. What looks the same as ``before`` is not read again."""
    roots = tuple(roots)
    paths = dict.fromkeys([*below(roots, ignore), *before.loaded])
    entries = {path: look(path, before.files.get(path)) for path in paths}
    files = {path: entry for path, entry in entries.items() if entry is not None}
    if files and files == before.files and roots == before.roots:
        return before
    return Snapshot(files, roots, before.loaded)


def below(roots: Iterable[str], ignore: Sequence[str] = ()) -> Iterator[str]:
    """The files of the roots that are no junk: what git lists of them, and of those that git knows nothing of all that is there."""
    by_repository: dict[str | None, list[str]] = {}
    for root in roots:
        by_repository.setdefault(repository_of(root) if os.path.isdir(root) else None, []).append(root)
    for repository, inside in by_repository.items():
        names = (
            git(repository, "ls-files", "-coz", "--exclude-standard", "--", *inside) if repository else b""
        )
        listed = [
            os.path.join(repository or "", name) for name in os.fsdecode(names or b"").split("\0") if name
        ]
        for root in inside:
            for path in [path for path in listed if is_inside(path, root)] or walk(root):
                if os.path.exists(os.path.join(path, ".git")) and not os.path.islink(path):
                    yield from below([path.rstrip(os.sep)], ignore)
                elif path == root or is_wanted(os.path.relpath(path, root), ignore):
                    yield path


def walk(root: str) -> Iterator[str]:
    """Links to folders are not followed: they may lead in circles."""
    if not os.path.isdir(root):
        yield root
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - JUNK_FOLDERS)
        yield from (os.path.join(folder, name) for name in sorted(names))


def is_wanted(name: str, ignore: Sequence[str]) -> bool:
    """Whether the file ``name``, relative to its root, counts. ``ignore``: patterns for it, or for a part of it."""
    *folders, file = name.split(os.sep)
    if not JUNK_FOLDERS.isdisjoint(folders) or JUNK_FILES.match(file) or ".egg-info/" in f"{name}/":
        return False
    return not any(
        fnmatch.fnmatch(part, pattern.strip("/")) for pattern in ignore for part in (name, *folders, file)
    )


def look(path: str, known: Entry | None) -> Entry | None:
    """The file as it is now, or None when it is not there. Its content is read only if it may have changed."""
    now_ns = time.time_ns()
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return None
        found = stamp_in(status)
        if known is not None and known.stamp == found and not known.racy:
            return known
        if status.st_size >= LARGE_BYTES:
            digest = f"{status.st_size}@{status.st_mtime_ns}"
        else:
            digest = hashlib.sha1(Path(path).read_bytes(), usedforsecurity=False).hexdigest()
    except OSError:
        return None
    return Entry(found, digest, racy=now_ns - max(status.st_mtime_ns, status.st_ctime_ns) < RACY_NS)


def are_stale(paths: Iterable[str], then: Snapshot, now: Snapshot) -> bool:
    """Whether one of these files no longer holds what it held then, by a look at the files themselves. ``now`` knows what was loaded since."""
    for path in paths:
        known = then.files.get(path) or now.loaded.get(path)
        if known is not None and stamp(path) != known.stamp:
            entry = look(path, None)
            if entry is None or entry.digest != known.digest:
                return True
    return False


def stamp(path: str) -> Stamp | None:
    try:
        return stamp_in(os.stat(path))
    except OSError:
        return None


def stamp_in(status: os.stat_result) -> Stamp:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def repository_of(folder: str) -> str | None:
    while not os.path.exists(os.path.join(folder, ".git")):
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above
    return folder


def git(repository: str, *arguments: str) -> bytes | None:
    """What git prints; None when it cannot say."""
    try:
        done = run_git(repository, *arguments, seconds=GIT_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def run_git(folder: str, *arguments: str, seconds: float | None = None) -> subprocess.CompletedProcess[bytes]:
    """The end of a git that speaks English and takes no lock that it can do without: that would get in a person's way."""
    return subprocess.run(
        ["git", "--no-optional-locks", "--literal-pathspecs", "-C", folder, *arguments], capture_output=True, check=False,
        timeout=seconds, stdin=subprocess.DEVNULL, env=environment.for_tool(environment.IN_ENGLISH),
    )  # fmt: skip


# Events

WRITES: list[type[events.FileSystemEvent]] = [
    events.FileCreatedEvent, events.FileModifiedEvent, events.FileClosedEvent, events.FileMovedEvent,
    events.FileDeletedEvent, events.DirCreatedEvent, events.DirMovedEvent, events.DirDeletedEvent,
]  # fmt: skip
"""Opening and reading are left out: our own runs do that, and would cause the next sweep."""


class FileEvents(events.FileSystemEventHandler):
    """Calls ``changed``, in a thread of watchdog's, when something has been written and it has been quiet for ``quiet_s``. Tests have scripted ones."""

    def __init__(self, changed: Callable[[], None], quiet_s: float) -> None:
        self.debouncer = EventDebouncer(quiet_s, lambda events: changed())
        self.observer: BaseObserver | None = None
        self.folders: dict[str, tuple[bool, int]] = {}
        """That are watched: whether with all below, and the inode, since a watch stays with a folder that was moved away."""

    def watch(self, roots: Iterable[str], shallow: Iterable[str]) -> None:
        """Watch exactly these roots, and the files of ``shallow`` folders. Raises OSError at a limit of the system."""
        deep = {root for root in roots if os.path.isdir(root)}
        wanted = {one if os.path.isdir(one) else os.path.dirname(one) for one in (*roots, *shallow)}
        folders = {
            one: (one in deep, os.stat(one).st_ino)
            for one in sorted(wanted)
            if os.path.isdir(one) and deep.isdisjoint(map(str, Path(one).parents))
        }
        if folders == self.folders:
            return
        if self.observer is None:
            logging.getLogger("watchdog").propagate = False  # its warnings would go through the matrix
            logging.getLogger("watchdog").addHandler(logging.NullHandler())
            self.observer = Observer()
            self.observer.start()
            self.debouncer.start()
        self.observer.unschedule_all()
        self.folders = folders
        for folder, (is_deep, _) in folders.items():
            self.observer.schedule(self, folder, recursive=is_deep, event_filter=WRITES)

    def on_any_event(self, event: events.FileSystemEvent) -> None:
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
