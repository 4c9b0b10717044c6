"""What git says of the watched sources: their commit, their uncommitted change, and whether git is at work in them.

Nothing here takes git's locks or refreshes its index: a daemon that did would get in a person's way.
"""

from __future__ import annotations

import enum
import hashlib
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from minidbg.history import Revision
from minidbg.watch.ignore import repository_of

GIT_SECONDS = 20.0
LOCKS = ("index.lock", "HEAD.lock")
UNDER_WAY = ("rebase-merge", "rebase-apply", "MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "sequencer")


class GitWork(enum.Enum):
    """Whether git may be in the middle of changing the files of a repository."""

    NONE = enum.auto()
    LOCKED = enum.auto()
    """A checkout, commit or reset is writing right now."""
    STEPPING = enum.auto()
    """A rebase, merge or cherry-pick is between two steps; it may also be waiting for a person."""


def repositories_of(paths: Iterable[str]) -> tuple[str, ...]:
    """The roots of the git working trees that hold ``paths``, each once."""
    found = (repository_of(path if os.path.isdir(path) else os.path.dirname(path)) for path in paths)
    return tuple(dict.fromkeys(root for root in found if root is not None))


def git_folder(repository: str) -> Path:
    """Where git keeps the state of this working tree: ``.git``, or what that file points to (worktree, submodule)."""
    inner = Path(repository, ".git")
    try:
        text = inner.read_text() if inner.is_file() else ""
    except OSError:
        return inner
    return Path(repository, text.removeprefix("gitdir:").strip()) if text.startswith("gitdir:") else inner


def git_work(repositories: Iterable[str]) -> GitWork:
    """The busiest state among the repositories."""
    folders = [git_folder(repository) for repository in repositories]
    if any((folder / name).exists() for folder in folders for name in LOCKS):
        return GitWork.LOCKED
    if any((folder / name).exists() for folder in folders for name in UNDER_WAY):
        return GitWork.STEPPING
    return GitWork.NONE


def revisions(repositories: Iterable[str]) -> Mapping[str, Revision]:
    """The revision of each repository that has a commit."""
    found = ((root, revision_of(root)) for root in repositories)
    return {root: revision for root, revision in found if revision is not None}


def revision_of(repository: str) -> Revision | None:
    """Commit, and a digest of the difference to it, untracked files included. None when git cannot say."""
    commit = git(repository, "rev-parse", "HEAD")
    if commit is None:
        return None
    change = git(repository, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv") or b""
    names = git(repository, "ls-files", "--others", "--exclude-standard", "-z") or b""
    untracked = [name for name in names.split(b"\0") if name]
    if not change and not untracked:
        return Revision(commit.decode().strip())
    total = hashlib.sha1(change, usedforsecurity=False)
    for name in untracked:
        total.update(name + b"\0" + content_of(os.path.join(os.fsencode(repository), name)))
    return Revision(commit.decode().strip(), total.hexdigest())


def content_of(path: bytes) -> bytes:
    """A file's bytes; of a large one, its size."""
    try:
        if os.path.getsize(path) > 1 << 20:
            return str(os.path.getsize(path)).encode()
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def git(repository: str, *arguments: str) -> bytes | None:
    """What git prints, or None when it fails, takes too long or is not installed."""
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", repository, *arguments],
            capture_output=True,
            timeout=GIT_SECONDS,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
