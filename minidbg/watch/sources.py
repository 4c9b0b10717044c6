"""Where the watched backends' code lies, found without importing it, and what git says of it."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import importlib
import importlib.util
import os
import re
import site
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from minidbg.core.script_header import HIDDEN
from minidbg.history import Revision
from minidbg.watch.files import JUNK_FOLDERS, digest_of, git_bytes, repository_of
from minidbg.watch.repros import Repro


def repositories_of(paths: Iterable[str]) -> tuple[str, ...]:
    folders = (path if os.path.isdir(path) else os.path.dirname(path) for path in paths)
    return tuple(dict.fromkeys(root for root in map(repository_of, folders) if root is not None))


def revisions(repositories: Iterable[str]) -> Mapping[str, Revision]:
    return {root: revision for root in repositories if (revision := revision_of(root)) is not None}


def revision_of(repository: str) -> Revision | None:
    """Commit, and digest of the difference to it with untracked files. None when git cannot say."""
    commit = git_bytes(repository, "rev-parse", "HEAD")
    if commit is None:
        return None
    change = git_bytes(repository, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv") or b""
    names = git_bytes(repository, "ls-files", "--others", "--exclude-standard", "-z") or b""
    untracked = [name for name in names.split(b"\0") if name]
    if not change and not untracked:
        return Revision(commit.decode().strip())
    total = hashlib.sha1(change, usedforsecurity=False)
    for name in untracked:
        path = os.path.join(repository, os.fsdecode(name))
        total.update(name + b"\0" + str(digest_of(path)).encode())
    return Revision(commit.decode().strip(), total.hexdigest())


TORCH_TREES = ("_inductor", "_dynamo", "_functorch", "_decomp", "_refs", "_higher_order_ops", "fx")
"""The parts of torch that a backend of torch's own is made of."""


def source_roots(repros: Iterable[Repro], extra: Sequence[Path] = ()) -> list[str]:
    """Trees and files with the code of the repros' backends, and the ``extra`` ones; real paths."""
    importlib.invalidate_caches()
    found = {os.path.realpath(path): None for path in extra}
    for repro in repros:
        if not repro.damage:
            paths = repro.spec.backend.paths
            own = [root for name in repro.backend_modules for root in module_roots(name, paths)]
            found.update(dict.fromkeys(own or module_roots("torch", ())))
    return [root for root in found if found.keys().isdisjoint(map(str, Path(root).parents))]


def module_roots(name: str, paths: Sequence[str]) -> list[str]:
    """The trees of a module's top-level one: a package's folders, or a file, as Python itself finds
    them (editable installs, ``.pth`` files); else below ``paths``. Links are followed."""
    name = name.partition(".")[0]  # to look for a part of a package would import it
    spec = find_spec(name) or PathFinder.find_spec(name, [str(path) for path in paths])
    if spec is None:
        return []
    found = [*(spec.submodule_search_locations or [spec.origin or ""])]
    if name == "torch":
        patterns = (*TORCH_TREES, "lib/*.so", "lib/*.dylib")
        matches = (sorted(Path(folder).glob(one)) for folder in found for one in patterns)
        found = [str(path) for match in matches for path in match]
    return [os.path.realpath(one) for one in found if os.path.exists(one)]


def find_spec(name: str) -> ModuleSpec | None:
    """Where Python would import a top-level module from; it is not imported."""
    with contextlib.suppress(ImportError, ValueError, AttributeError):
        return importlib.util.find_spec(name) if name != "__main__" else None
    return None


CODE = re.compile(r"\.(py|so|pyd|dylib)$|\.so\.")
"""What a run loads as code; anything else that it reads is data."""


def worth_watching(files: Iterable[str], roots: Sequence[str], left_out: tuple[str, ...]) -> Iterator[str]:
    """Files a run loaded or read whose change could change a verdict, whatever git says of them:
    code that is not below ``left_out`` (built in place, modules that no header names, other
    packages), and data inside ``roots``."""
    inside = tuple(root.rstrip(os.sep) + os.sep for root in roots)
    for path in files:
        if CODE.search(path):
            wanted = path.startswith((*inside, *site_packages())) or not path.startswith(left_out)
        else:
            wanted = path.startswith(inside) and JUNK_FOLDERS.isdisjoint(path.split(os.sep))
        if wanted and os.path.isfile(path):
            yield path


@lru_cache
def site_packages() -> tuple[str, ...]:
    folders = (*site.getsitepackages(), site.getusersitepackages())
    return tuple(os.path.realpath(folder) + os.sep for folder in folders)


@lru_cache
def left_out_folders(home: Path) -> tuple[str, ...]:
    """Standard library, system, caches. Not the folder for temporary files: people build there."""
    caches = [os.environ.get(name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")]
    own = os.path.join(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")
    caches += [str(Path.home() / ".cache"), own, str(home / HIDDEN)]
    system = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/proc", "/dev"]
    standard = [sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib")]
    standard.append(os.path.join(sys.base_prefix, "lib"))
    return tuple(os.path.realpath(path) + os.sep for path in (*caches, *system, *standard) if path)


def repositories_worth_building(roots: Iterable[str]) -> tuple[str, ...]:
    """The git working trees of those of ``roots`` that are not inside an installation."""
    return repositories_of(root for root in roots if not root.startswith(site_packages()))
