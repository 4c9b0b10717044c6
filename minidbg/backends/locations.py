"""Where an object lives; and its module as a fresh process sees it: whether an import finds it
again, in which folder, and which distribution brings it."""

from __future__ import annotations

import ast
import importlib.machinery
import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import distribution, packages_distributions
from types import ModuleType
from typing import Any

from minidbg.backends.statements import statements_of

MAIN_MODULES = ("__main__", "__mp_main__")
"""Names of the program; a process started by multiprocessing has its script under two names."""
_OURS = frozenset({"torch", "functorch", "torchgen", "minidbg", *MAIN_MODULES})


def top_level(module: str) -> str:
    """``my_pkg`` of ``my_pkg.sub.mod``."""
    return module.partition(".")[0]


def is_foreign(module: str) -> bool:
    """Whether ``module`` comes neither with Python nor with torch nor from us."""
    top = top_level(module)
    return top not in sys.stdlib_module_names and top not in _OURS


def foreign_modules() -> Iterator[tuple[str, ModuleType]]:
    """The loaded modules that come neither with Python nor torch nor us, in order of loading."""
    # A copy is one step; while items are listed, the garbage collector may run code that imports.
    for name, module in sys.modules.copy().items():
        if isinstance(module, ModuleType) and is_foreign(name):
            yield name, module


def finds_again(name: str) -> bool:
    """Whether importing ``name`` on the present ``sys.path`` leads to the loaded module's file."""
    loaded, parent = sys.modules.get(name), name.rpartition(".")[0]
    if loaded is None or name in MAIN_MODULES or (parent and not finds_again(parent)):
        return False
    spec = _search(name, parent)
    file: str | None = getattr(loaded, "__file__", None)
    if spec is None or file is None or not spec.has_location or spec.origin is None:
        # built in, frozen, or a namespace package: the name is all there is
        return spec is not None and (file is None or not spec.has_location)
    return os.path.realpath(spec.origin) == os.path.realpath(file)


def _search(name: str, parent: str = "") -> importlib.machinery.ModuleSpec | None:
    """What importing an unloaded ``name`` finds; ``importlib.util.find_spec`` does not ask that."""
    folders = getattr(sys.modules.get(parent), "__path__", None)
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, folders)
        except (ImportError, AttributeError, ValueError):
            continue
        if spec is not None:
            return spec
    return None


def requirement_of(module: str) -> tuple[str, str, tuple[str, ...]]:
    """What brings a loaded ``module``: a requirement that an index knows, or else a remark; and
    folders that are not on every ``sys.path``."""
    top, folders = top_level(module), folders_of(module)
    names = list(dict.fromkeys(_distributions_by_module(tuple(sys.path)).get(top, ())))
    if len(names) == 1 and not (brings := distribution(names[0])).read_text("direct_url.json"):
        # no index knows a local label
        return f"{brings.name}=={brings.version.partition('+')[0]}", "", folders
    if len(names) > 1:
        return "", f"{top} was installed by one of {', '.join(names)}", folders
    if not folders and not names:
        return "", "", ()
    home = f"the folder {os.path.basename(folders[0])}" if folders else "a folder or an archive"
    return "", f"{top} is on no index: it was imported from {home}", folders


def folders_of(module: str) -> tuple[str, ...]:
    """Folders from which the top-level package of ``module`` is imported, except installed ones."""
    top = top_level(module)
    found: object = sys.modules.get(top) or _search(top)  # what a setup imports is not loaded yet
    inside = getattr(found, "__path__", None) or getattr(found, "submodule_search_locations", None)
    file = getattr(found, "__file__", None) or getattr(found, "origin", None)
    places = list(inside or ()) or ([file] if isinstance(file, str) else [])
    folders = (os.path.dirname(os.path.abspath(place)) for place in places)
    return tuple(dict.fromkeys(folder for folder in folders if not is_installed(folder)))


def is_installed(folder: str) -> bool:
    """Whether a fresh process of this interpreter imports from ``folder`` without being told."""
    real = os.path.realpath(folder)
    return any(real == place or real.startswith(place + os.sep) for place in _installed_places())


@cache
def _installed_places() -> tuple[str, ...]:
    own = [sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple(map(os.path.realpath, (*own, *site.getsitepackages(), site.getusersitepackages())))


@lru_cache(maxsize=2)
def _distributions_by_module(path: tuple[str, ...]) -> dict[str, list[str]]:
    """Top-level module to distribution names; reading metadata is slow: once per ``sys.path``."""
    return dict(packages_distributions())


# --- the place of an object in them ---


@dataclass(frozen=True, slots=True)
class Location:
    """``path`` inside ``module``: ``my_backend``, ``Compiler.build``, ``BACKENDS['fast']``."""

    module: str
    path: str

    @property
    def first(self) -> str:
        return self.path.partition(".")[0].partition("[")[0]


def location_of(value: Any) -> Location | None:
    """A location leading to ``value`` itself, in a module other than ours; None when there is none.

    A function or class says where it was defined; others are looked for by identity: a global name,
    an attribute of a class, an entry of a global dict. Of several that one counts which reads best.
    """
    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(module, str) and isinstance(path, str) and "<" not in path:
        found: Any = sys.modules.get(module)
        for part in path.split("."):
            # not getattr: a class would bind its functions, and a lazy module may import
            found = vars(found).get(part) if hasattr(found, "__dict__") else None
            found = found.__func__ if isinstance(found, staticmethod) else found
        if found is value:
            return Location("__main__" if module in MAIN_MODULES else module, path)
    ranked = [(rank, one) for one in _locations(value) if (rank := _awkwardness(one)) is not None]
    return min(ranked, key=lambda pair: pair[0])[1] if ranked else None


def _locations(value: object) -> Iterator[Location]:
    for name, module in sys.modules.copy().items():
        if not isinstance(module, ModuleType) or top_level(name) in ("minidbg", "__mp_main__"):
            continue
        # No function of ours is called for each of some 100,000 names: at an unlucky depth of the
        # stack, a call allocates a chunk for its frame (Python 3.11), and this took a second of
        # each compile with a local backend.
        for key, found in vars(module).copy().items():
            if type(key) is not str or key.startswith("__"):
                continue
            # type(found), not isinstance: lazy objects answer __class__ with an import or a warning
            if found is value:
                parts = [""]
            elif issubclass(type(found), type) and found.__module__ == name:
                parts = [f".{part}" for part, one in list(vars(found).items()) if one is value]
            elif type(found) is dict:
                # copied in one step: a collection at this moment may take entries out
                entries = found.copy().items()
                parts = [f"[{part!r}]" for part, x in entries if x is value and type(part) is str]
            else:
                continue
            # ``_`` and ``_1`` hold the last answers of an interactive session
            if parts and key.strip("_").isidentifier():
                yield from (Location(name, key + part) for part in parts)


def _awkwardness(location: Location) -> tuple[bool, bool, int, int] | None:
    """What readers would rather not see: scripts, borrowed names, table entries, long module names.

    None where the running program, not the module's source, set its value: no import does so again.
    """
    first, module, _, key = location.first, location.module, *location.path.partition("[")[1:]
    statements = statements_of(module)  # none of what is compiled or has no source: it is trusted
    binders = [found.node for found in statements if first in found.binds]
    if key:
        parts = (part for node in binders for part in ast.walk(node))
        is_made = any(isinstance(x, ast.Constant) and f"{x.value!r}]" == key for x in parts)
    else:
        is_made = bool(binders) or any("import *" in found.text for found in statements)
    if statements and not is_made:
        return None
    is_borrowed = any(isinstance(node, ast.Import | ast.ImportFrom) for node in binders)
    return module in MAIN_MODULES, is_borrowed, location.path.count("["), len(module)
