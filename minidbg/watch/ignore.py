"""Which files below a watched folder do not count: the usual junk, and what ``.gitignore`` says."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from pathspec import GitIgnoreSpec

JUNK_FOLDERS = frozenset(
    (
        *(
            ".git",
            ".hg",
            ".svn",
            ".jj",
            "__pycache__",
            ".mypy_cache",
            ".pytest_cache",
            ".ruff_cache",
            ".hypothesis",
        ),
        *(
            ".tox",
            ".nox",
            ".venv",
            "venv",
            "node_modules",
            ".idea",
            ".vscode",
            ".ipynb_checkpoints",
            ".minidbg",
        ),
    )
)
"""Never source code: version control, caches, virtual environments."""

JUNK_FILES = re.compile(
    "|".join(
        fnmatch.translate(pattern)
        for pattern in (
            *("*.pyc", "*.pyo", ".DS_Store"),
            # what editors make while they save
            *("*~", ".#*", "#*#", ".*.sw?", ".sw?", "4913", "*.tmp", "*.crswap", ".*.kate-swp"),
            *(".goutputstream-*", "*___jb_tmp___", "*___jb_old___"),
        )
    )
)


class Ignore:
    """Whether a path counts, for the folders that are watched.

    ``.gitignore`` files are read from the root of the repository around a watched folder down to the path; a change of
    one of them is a change like any other, after which ``forget`` must be called.
    """

    def __init__(self, extra: Sequence[str] = ()) -> None:
        self.extra = GitIgnoreSpec.from_lines(extra)
        self.specs = cache(read_gitignore)
        self.repository = cache(repository_of)
        self.is_ignored_itself = cache(self.root_is_ignored)

    def forget(self) -> None:
        """Look for repositories and read the ``.gitignore`` files again."""
        self.repository.cache_clear()
        self.specs.cache_clear()
        self.is_ignored_itself.cache_clear()

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
        for above in self.parents_in_repository(os.path.dirname(path)):
            spec = self.specs(above)
            if spec is None:
                continue
            said = spec.check_file(os.path.relpath(path, above) + end).include
            if said is not None:
                return said
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

    def parents_in_repository(self, folder: str) -> Iterator[str]:
        """``folder`` and the folders above it, up to the root of its repository; none outside a repository."""
        root = self.repository(folder)
        while root is not None and is_inside(folder, root):
            yield folder
            folder = os.path.dirname(folder)

    def covers_any_part(self, path: str, root: str) -> bool:
        """Whether ``path`` or a folder between it and ``root`` is left out."""
        relative = Path(os.path.relpath(path, root))
        parts = [relative, *relative.parents][:-1]
        return any(
            self.covers(os.path.join(root, part), root, folder=place > 0) for place, part in enumerate(parts)
        )


def is_inside(path: str, folder: str) -> bool:
    """Whether ``path`` is ``folder`` or below it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def read_gitignore(folder: str) -> GitIgnoreSpec | None:
    """The rules of ``folder/.gitignore``, or None without one."""
    try:
        with open(os.path.join(folder, ".gitignore"), encoding="utf-8", errors="replace") as file:
            return GitIgnoreSpec.from_lines(file)
    except OSError:
        return None


def repository_of(folder: str) -> str | None:
    """The root of the git working tree that holds ``folder``."""
    while not os.path.exists(os.path.join(folder, ".git")):
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above
    return folder
