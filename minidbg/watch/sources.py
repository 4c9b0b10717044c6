"""Where the code of the watched backends lies: the trees to watch, found without importing any of it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import site
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from minidbg.watch.repros import Repro
from minidbg.watch.snapshot import Root

TORCH_TREES = ("_inductor", "_dynamo", "_functorch", "_decomp", "_refs", "_higher_order_ops", "fx")
"""The parts of torch that a backend of torch's own is made of."""


def source_roots(repros: Iterable[Repro], extra: Sequence[Path] = ()) -> list[Root]:
    """The trees and files that hold the code of the repros' backends, and the ``extra`` ones; real paths."""
    importlib.invalidate_caches()
    found: dict[Root, None] = {Root(os.path.realpath(path)): None for path in extra}
    for repro in repros:
        if repro.damage:
            continue
        texts = repro.texts
        roots = [Root(os.path.realpath(path)) for path in texts["files"]]
        for module in repro.modules:
            roots += module_roots(module, texts["paths"])
        found.update(dict.fromkeys(roots or module_roots("torch", ())))
    return [root for root in found if not any(covers(other, root) for other in found if other != root)]


def covers(outer: Root, inner: Root) -> bool:
    """Whether everything of ``inner`` is watched with ``outer``."""
    return outer.deep and not outer.suffixes and inner.path.startswith(outer.path.rstrip(os.sep) + os.sep)


def module_roots(name: str, paths: Sequence[str]) -> list[Root]:
    """The trees of a top-level module: a package's folders, a module's file; links followed, so edits are seen.

    Editable installs are found by their import hooks or ``.pth`` files, as Python itself finds them. ``paths`` are
    looked in when that finds nothing.
    """
    spec = find_spec(name) or PathFinder.find_spec(name, [str(path) for path in paths])
    if spec is None:
        return []
    folders = list(spec.submodule_search_locations or ())
    if name == "torch":
        trees = [
            Root(os.path.join(folder, tree), suffixes=(".py",)) for folder in folders for tree in TORCH_TREES
        ]
        libraries = [
            Root(os.path.join(folder, "lib"), suffixes=(".so", ".dylib"), deep=False) for folder in folders
        ]
        return [Root(os.path.realpath(root.path), root.suffixes, root.deep) for root in (*trees, *libraries)]
    if folders:
        return [Root(os.path.realpath(folder)) for folder in folders]
    return [Root(os.path.realpath(spec.origin))] if spec.origin and os.path.exists(spec.origin) else []


def find_spec(name: str) -> ModuleSpec | None:
    """Where Python would import a top-level module from; it is not imported."""
    if name == "__main__":
        return None
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None


def worth_watching(files: Iterable[str], roots: Sequence[Root]) -> Iterator[str]:
    """Of the files that a run had loaded, those outside ``roots`` whose change could change a verdict.

    Compiled extensions in a build folder, modules that no header names, other installed packages; not the standard
    library, and not what compilers write into caches and temporary folders.
    """
    inside = tuple(root.path.rstrip(os.sep) + os.sep for root in roots if root.deep)
    single = {root.path for root in roots}
    left_out = left_out_folders()
    for path in files:
        in_packages = path.startswith(site_packages())
        if path in single or path.startswith(inside) or (path.startswith(left_out) and not in_packages):
            continue
        if os.path.isfile(path):
            yield path


def site_packages() -> tuple[str, ...]:
    """The folders that packages are installed in, each with a separator at its end."""
    return tuple(
        os.path.realpath(folder) + os.sep for folder in (*site.getsitepackages(), site.getusersitepackages())
    )


def left_out_folders() -> tuple[str, ...]:
    """The standard library, system libraries, and every place for temporary files and caches."""
    caches = [
        os.environ.get("TORCHINDUCTOR_CACHE_DIR"),
        os.environ.get("TRITON_CACHE_DIR"),
        tempfile.gettempdir(),
    ]
    system = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/proc", "/dev", str(Path.home() / ".cache")]
    standard = [sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib")]
    bases = [
        os.path.realpath(path)
        for path in (*caches, *system, *standard, os.path.join(sys.base_prefix, "lib"))
        if path
    ]
    return tuple(path + os.sep for path in bases)


def repositories_worth_building(roots: Iterable[Root]) -> list[str]:
    """The folders of ``roots`` that are not inside an installation."""
    return [root.path for root in roots if not root.path.startswith(site_packages())]
