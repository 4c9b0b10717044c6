"""The watched code as the daemon keeps it: roots, the latest snapshot, and bytecode folders that go with it."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import site
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from minidbg.watch.ignore import Ignore, is_inside
from minidbg.watch.snapshot import Root, Snapshot, scan, update

CLOCK_GRAIN_S = 0.01
"""The kernel's time stamps may lag behind its clock by a tick."""


class Watched:
    """What is watched, and what it held when last looked at."""

    def __init__(self, ignore: Ignore) -> None:
        self.ignore = ignore
        self.roots: tuple[Root, ...] = ()
        self.always: frozenset[str] = frozenset()
        """Single files that runs have loaded from elsewhere."""
        self.snapshot = Snapshot()
        self.seconds = 0.0
        """How long the last look at everything took."""

    def set_roots(self, roots: Sequence[Root], always: Iterable[str] = ()) -> bool:
        """Watch these; whether that is something new."""
        wanted = tuple(roots), frozenset(always)
        if wanted == (self.roots, self.always):
            return False
        self.roots, self.always = wanted
        return True

    def all_roots(self) -> list[Root]:
        """Everything that needs events."""
        return [*self.roots, *(Root(path) for path in sorted(self.always))]

    def concerns(self, path: str) -> bool:
        """Whether a hint for ``path`` is worth a look."""
        return path in self.always or any(is_inside(path, root.path) for root in self.roots)

    def look(self, hints: Iterable[str] = (), *, everywhere: bool = False) -> tuple[str, ...]:
        """Look at the hinted paths, or at everything; the paths that hold something else than before."""
        before, hints = self.snapshot, tuple(hints)
        if any(os.path.basename(path) == ".gitignore" for path in hints):
            everywhere = True
        if everywhere:
            self.ignore.forget()
            began = time.monotonic()
            self.snapshot = scan(
                self.roots, self.ignore, before, now_ns=time.time_ns(), hinted=hints, always=self.always
            )
            self.seconds = time.monotonic() - began
        else:
            self.snapshot = update(
                self.roots, self.ignore, before, hints, now_ns=time.time_ns(), always=self.always
            )
        return self.snapshot.changes_since(before)

    def edited(self, files: Iterable[str]) -> list[str]:
        """Those of ``files`` whose time stamps are no longer those of the snapshot: exact, and without any event."""
        found = []
        for path in files:
            entry = self.snapshot.files.get(path)
            if entry is None:
                continue
            try:
                status = os.stat(path)
                now = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
            except OSError:
                now = (-1, 0, 0, 0)
            if now != (entry.size, entry.mtime_ns, entry.ctime_ns, entry.inode):
                found.append(path)
        return found

    def written_since(self, files: Iterable[str], moment: float) -> bool:
        """Whether one of ``files`` was written at or after ``moment``, by the kernel's own clock."""
        limit = (moment - CLOCK_GRAIN_S) * 1e9
        for path in files:
            with contextlib.suppress(OSError):
                if os.stat(path).st_ctime_ns >= limit:
                    return True
        return False

    def loaded(self, files: Iterable[str]) -> tuple[str, ...]:
        """Those of ``files`` that are watched."""
        return tuple(sorted(path for path in set(files) if path in self.snapshot.files))


def installed_digest(torch: str) -> str:
    """A digest of what else decides a verdict: torch's version, and the names and versions of installed packages."""
    names = {torch}
    for folder in site.getsitepackages():
        with contextlib.suppress(OSError):
            names.update(
                name for name in os.listdir(folder) if name.endswith((".dist-info", ".pth", ".egg-link"))
            )
    return hashlib.sha1("\n".join(sorted(names)).encode(), usedforsecurity=False).hexdigest()


class Bytecode:
    """A folder for ``sys.pycache_prefix`` per snapshot, so that no run sees bytecode of code that has changed.

    A new folder keeps the bytecode of everything that is not watched: other packages need not be compiled again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.number = 0

    def seed(self, sources: Iterable[str], roots: Iterable[Root]) -> None:
        """Take over the bytecode that other packages have already: compiling torch anew takes ten seconds."""
        current = self.newest() or self.folder / "seed"
        watched = [root.path for root in roots]
        for source in sources:
            if not source.endswith(".py") or any(is_inside(source, root) for root in watched):
                continue
            cached = Path(importlib.util.cache_from_source(source))
            target = current / os.path.dirname(source).lstrip(os.sep) / cached.name
            if cached.exists() and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                link_or_copy(cached, target)

    def newest(self) -> Path | None:
        """The folder in use, None before the first."""
        return max(self.folder.iterdir(), key=lambda path: path.stat().st_mtime_ns, default=None)

    def renew(self, roots: Iterable[Root]) -> Path:
        """A folder without bytecode of the files below ``roots``."""
        before = self.newest()
        self.number += 1
        current = self.folder / f"{os.getpid()}-{self.number}"
        if before is not None:
            before.replace(current)
        current.mkdir(exist_ok=True)
        os.utime(current)
        for old in self.folder.iterdir():
            if old != current:
                shutil.rmtree(old, ignore_errors=True)
        for root in roots:
            below = current / root.path.lstrip(os.sep)
            shutil.rmtree(below, ignore_errors=True)
            for single in below.parent.glob(f"{below.stem}.*.pyc"):
                single.unlink(missing_ok=True)
        return current


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name, or a copy where links do not reach; a file that cannot be had is left out."""
    try:
        os.link(source, target)
    except OSError:
        with contextlib.suppress(OSError):
            shutil.copyfile(source, target)
