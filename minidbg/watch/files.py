"""What the watched files hold. A snapshot knows each by the hash of its content: a file that was
only touched, or written again as it was, has not changed.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import stat
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from minidbg.core import environment

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
"""Files from this size on are known by size and time alone: reading 700 MB would take seconds."""
RACY_NS = 2_000_000_000
"""A file younger than this when read may change with no new time stamp, so it is read again."""

Snapshot: TypeAlias = dict[str, str]
"""The files at one moment, by absolute path: a digest of what each held."""


def scan(roots: Iterable[str], ignore: Sequence[str] = ()) -> Snapshot:
    digests = {path: digest_of(path) for root in roots for path in below(root, ignore)}
    return {path: digest for path, digest in digests.items() if digest is not None}


def changes(before: Snapshot, now: Snapshot) -> list[str]:
    return sorted({path for path, _ in before.items() ^ now.items()})


def are_stale(paths: Iterable[str], then: Snapshot) -> bool:
    """Whether one of these files no longer holds what it held then, by a look at the files."""
    return any(path in then and digest_of(path) != then[path] for path in paths)


def digest_of_all(snapshot: Snapshot, paths: Iterable[str] | None = None) -> str:
    total = hashlib.sha1(usedforsecurity=False)
    for path in sorted(snapshot if paths is None else snapshot.keys() & set(paths)):
        total.update(os.fsencode(f"{path}\0{snapshot[path]}\0"))
    return total.hexdigest()


def digest_of(path: str) -> str | None:
    """Of what the file holds now, read only when it may have changed; None where there is none."""
    try:
        status, now_ns = os.stat(path), time.time_ns()
        if not stat.S_ISREG(status.st_mode):
            return None
        if status.st_size >= LARGE_BYTES:
            return f"{status.st_size}@{status.st_mtime_ns}"
        is_racy = now_ns - max(status.st_mtime_ns, status.st_ctime_ns) < RACY_NS
        read = read_digest.__wrapped__ if is_racy else read_digest
        return read(path, (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino))
    except OSError:
        return None


@lru_cache(maxsize=1 << 17)
def read_digest(path: str, known_by: tuple[int, ...]) -> str:
    """``known_by`` is what no write leaves as it was. Raises OSError, which is not remembered."""
    return hashlib.sha1(Path(path).read_bytes(), usedforsecurity=False).hexdigest()


def below(root: str, ignore: Sequence[str] = ()) -> Iterator[str]:
    """The files of a root that are no junk: what git lists there; where it lists nothing, all."""
    in_git = os.path.isdir(root) and repository_of(root) is not None
    names = git_bytes(root, "ls-files", "-coz", "--exclude-standard") if in_git else None
    listed = [os.path.join(root, name) for name in os.fsdecode(names or b"").split("\0") if name]
    for path in listed or walk_files(root):
        if os.path.exists(os.path.join(path, ".git")) and not os.path.islink(path):
            yield from below(path.rstrip(os.sep), ignore)
        elif path == root or is_wanted(os.path.relpath(path, root), ignore):
            yield path


def walk_files(root: str) -> Iterator[str]:
    """Links to folders are not followed: they may lead in circles."""
    if not os.path.isdir(root):
        yield root
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - JUNK_FOLDERS)
        yield from (os.path.join(folder, name) for name in sorted(names))


def is_wanted(name: str, ignore: Sequence[str]) -> bool:
    """Whether file ``name``, relative to its root, counts. ``ignore``: patterns for it or parts."""
    *folders, file = name.split(os.sep)
    if not JUNK_FOLDERS.isdisjoint(folders) or JUNK_FILES.match(file) or ".egg-info/" in f"{name}/":
        return False
    parts = (name, *folders, file)
    return not any(fnmatch.fnmatch(part, glob.strip("/")) for glob in ignore for part in parts)


def repository_of(folder: str) -> str | None:
    above = map(str, Path(folder, ".git").parents)
    return next((place for place in above if os.path.exists(os.path.join(place, ".git"))), None)


def git_bytes(repository: str, *arguments: str) -> bytes | None:
    """What git prints; None when it cannot say."""
    try:
        done = run_git(repository, *arguments, seconds=GIT_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def run_git(folder: str, *arguments: str, seconds: float | None = None) -> subprocess.CompletedProcess[bytes]:
    """The end of a git that speaks English and takes no optional lock: it is in a person's way."""
    return subprocess.run(
        ["git", "--no-optional-locks", "--literal-pathspecs", "-C", folder, *arguments],
        capture_output=True, check=False, timeout=seconds, stdin=subprocess.DEVNULL,
        env=environment.for_tool(environment.IN_ENGLISH),
    )  # fmt: skip
