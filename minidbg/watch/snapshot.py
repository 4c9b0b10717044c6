"""What the watched files hold: the truth that events only hint at.

A snapshot knows each file by size, modification time, change time and the hash of its content. Two snapshots differ where
the hashes do: a file that was only touched, or written again as it was, has not changed. The usual junk and what
``.gitignore`` names is left out, unless a run has loaded it.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import TypeAlias

from pathspec import GitIgnoreSpec

JUNK_FOLDERS = frozenset((
    ".git", ".hg", ".svn", ".jj", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache",
    ".hypothesis", ".tox", ".nox", ".venv", "venv", "node_modules", ".idea", ".vscode",
    ".ipynb_checkpoints", ".minidbg",
))  # fmt: skip
"""Never source code: version control, caches, virtual environments."""

# Bytecode, and what editors make while they save.
JUNK = "*.pyc *.pyo .DS_Store *~ .#* #*# .*.sw? .sw? 4913 *.tmp *.crswap .*.kate-swp .goutputstream-* *___jb_tmp___ *___jb_old___"
JUNK_FILES = re.compile("|".join(map(fnmatch.translate, JUNK.split())))


class Ignore:
    """Whether a path counts, for the folders that are watched.

    ``.gitignore`` files are read from the root of the repository around a watched folder down to the path, and once only;
    a change of one of them is a change like any other, after which another ``Ignore`` is needed.
    """

    def __init__(self, extra: Sequence[str] = ()) -> None:
        self.extra = GitIgnoreSpec.from_lines(extra)
        self.specs = cache(read_gitignore)
        self.repository = cache(repository_of)
        self.is_ignored_itself = cache(self.root_is_ignored)

    def covers(self, path: str, root: str, *, folder: bool) -> bool:
        """Whether ``path``, somewhere below the watched ``root``, is to be left out."""
        name = os.path.basename(path)
        if name in JUNK_FOLDERS or name.endswith(".egg-info") if folder else JUNK_FILES.match(name):
            return True
        end = "/" if folder else ""
        if self.extra and self.extra.match_file(os.path.relpath(path, root) + end):
            return True
        return self.ignored_by_git(path, end) and not self.is_ignored_itself(root)

    def ignored_by_git(self, path: str, end: str) -> bool:
        """What the nearest ``.gitignore`` with an opinion says; git's own order, from the inside out."""
        above = os.path.dirname(path)
        root = self.repository(above)
        while root is not None:
            spec = self.specs(above)
            said = spec.check_file(os.path.relpath(path, above) + end).include if spec is not None else None
            if said is not None:
                return said
            if above == root:
                break
            above = os.path.dirname(above)
        return False

    def root_is_ignored(self, root: str) -> bool:
        """Whether git ignores the watched root as a whole: a package in ``.venv`` or ``build``, watched all the same."""
        repository = self.repository(root)
        if repository is None or root == repository:
            return False
        folder = os.path.isdir(root)
        parts = [
            part for part in (root, *map(str, Path(root).parents)) if part.startswith(repository + os.sep)
        ]
        return any(self.ignored_by_git(part, "/" if folder or part != root else "") for part in parts)

    def covers_any_part(self, path: str, root: str) -> bool:
        """Whether ``path`` or a folder between it and ``root`` is left out."""
        relative = Path(os.path.relpath(path, root))
        parts = [relative, *relative.parents][:-1]
        return any(
            self.covers(os.path.join(root, part), root, folder=place > 0) for place, part in enumerate(parts)
        )


def is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def read_gitignore(folder: str) -> GitIgnoreSpec | None:
    try:
        with open(os.path.join(folder, ".gitignore"), encoding="utf-8", errors="replace") as file:
            return GitIgnoreSpec.from_lines(file)
    except OSError:
        return None


def repository_of(folder: str) -> str | None:
    while not os.path.exists(os.path.join(folder, ".git")):
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above
    return folder


LARGE_BYTES = 32 * 1024 * 1024
"""Files from this size on are known by size and time alone: reading a library of 700 MB would take seconds."""
RACY_NS = 2_000_000_000
"""A file younger than this when it was read may change again without a new time stamp, so it is read again."""


Stamp: TypeAlias = tuple[int, int, int, int]
"""Size, modification time, change time and inode."""


@dataclass(frozen=True, slots=True)
class Entry:
    stamp: Stamp
    digest: str
    racy: bool = False
    """Whether it was so young when it was read that its time stamp proves nothing."""


@dataclass(frozen=True, slots=True)
class Root:
    """A watched folder, or a single file. ``suffixes``: of a folder, only files that end so count (empty: all)."""

    path: str
    suffixes: tuple[str, ...] = ()
    deep: bool = True
    """Whether folders below it are watched too."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The files at one moment, by absolute path. Two are the same when they are the same object."""

    files: Mapping[str, Entry] = field(default_factory=dict)

    def digest(self, paths: Iterable[str] | None = None) -> str:
        total = hashlib.sha1(usedforsecurity=False)
        for path in sorted(self.files if paths is None else self.files.keys() & set(paths)):
            total.update(f"{path}\0{self.files[path].digest}\0".encode())
        return total.hexdigest()

    def changes_since(self, before: Snapshot) -> tuple[str, ...]:
        return changes(before, self) if before is not self else ()


@lru_cache(maxsize=8)
def changes(before: Snapshot, now: Snapshot) -> tuple[str, ...]:
    """See ``Snapshot.changes_since``. Kept, since the daemon asks at every turn of its loop."""
    old, new = before.files, now.files
    edited = {path for path in old.keys() & new.keys() if old[path].digest != new[path].digest}
    return tuple(sorted(edited | (old.keys() ^ new.keys())))


def scan(
    roots: Iterable[Root],
    ignore: Ignore,
    before: Snapshot,
    hinted: Iterable[str] = (),
    *,
    now_ns: int,
    always: Iterable[str] = (),
) -> Snapshot:
    """Look at every file below ``roots``. What looks the same as ``before`` is not read again, unless hinted or racy.

    ``always`` are single files that count even where a rule ignores them. ``now_ns`` is the present time.
    """
    paths = [path for root in roots for path in below(root.path, root, ignore)]
    return Snapshot(looked_at([*paths, *always], before, frozenset(hinted), now_ns))


def update(
    roots: Iterable[Root],
    ignore: Ignore,
    before: Snapshot,
    hinted: Iterable[str],
    *,
    now_ns: int,
    always: Iterable[str] = (),
) -> Snapshot:
    roots, single, hints = tuple(roots), frozenset(always), dict.fromkeys(hinted)
    # What is no file now is or was a folder: what it held before is found again, or gone.
    folders = {hint for hint in hints if hint not in before.files and not os.path.isfile(hint)}
    files = {
        path: entry
        for path, entry in before.files.items()
        if path not in hints and (not folders or folders.isdisjoint(map(str, Path(path).parents)))
    }
    paths = [hint for hint in hints if hint in single]
    for hint in (hint for hint in hints if hint not in single):
        inside = [root for root in roots if is_inside(hint, root.path)]
        paths += [path for root in inside for path in below(hint, root, ignore)]
    return Snapshot(files | looked_at(paths, before, frozenset(paths), now_ns))


def looked_at(
    paths: Iterable[str], before: Snapshot, suspects: Collection[str], now_ns: int
) -> dict[str, Entry]:
    """Those of ``paths`` that are files, each as it is now; ``suspects`` are read even if they look the same as ``before``."""
    found = {
        path: look(path, before.files.get(path), now_ns, read=path in suspects)
        for path in dict.fromkeys(paths)
    }
    return {path: entry for path, entry in found.items() if entry is not None}


def below(path: str, root: Root, ignore: Ignore) -> Iterator[str]:
    """The files that count at or below ``path``, which lies in ``root``."""
    if path != root.path and ignore.covers_any_part(path, root.path):
        return
    if os.path.isdir(path):
        if root.deep or path == root.path:
            yield from walk_folder(path, root, ignore)
    elif (root.deep or root.path in (path, os.path.dirname(path))) and path.endswith(root.suffixes or ""):
        yield path


def walk_folder(folder: str, root: Root, ignore: Ignore) -> Iterator[str]:
    """The files that count below ``folder``. Links to folders are not followed: they may lead in circles."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return  # gone, or not ours to read
    for entry in entries:
        is_folder = entry.is_dir(follow_symlinks=False)
        if not is_folder and root.suffixes and not entry.name.endswith(root.suffixes):
            continue
        if ignore.covers(entry.path, root.path, folder=is_folder):
            continue
        if not is_folder:
            yield entry.path
        elif root.deep:
            yield from walk_folder(entry.path, root, ignore)


def look(path: str, known: Entry | None, now_ns: int, *, read: bool) -> Entry | None:
    """The file as it is now, or None when it is not there. Its content is read only if it may have changed."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return None
        found = stamp_in(status)
        if known is not None and known.stamp == found and not read and not known.racy:
            return known
        if status.st_size >= LARGE_BYTES:
            digest = f"{status.st_size}@{status.st_mtime_ns}"
        else:
            digest = hashlib.sha1(Path(path).read_bytes(), usedforsecurity=False).hexdigest()
    except OSError:
        return None
    return Entry(found, digest, racy=now_ns - max(status.st_mtime_ns, status.st_ctime_ns) < RACY_NS)


def stamp(path: str) -> Stamp | None:
    try:
        return stamp_in(os.stat(path))
    except OSError:
        return None


def stamp_in(status: os.stat_result) -> Stamp:
    """What no write leaves as it was."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
