"""Modules as a fresh process sees them: whether an import finds them again, and in which folder."""

from __future__ import annotations

import importlib.machinery
import os
import site
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

_WITHOUT_ANSWER = (ImportError, AttributeError, ValueError)


def top_level(module: str) -> str:
    """``my_pkg`` of ``my_pkg.sub.mod``."""
    return module.partition(".")[0]


def is_foreign(module: str) -> bool:
    """Whether ``module`` comes neither with Python nor with torch nor from us."""
    top = top_level(module)
    return top not in sys.stdlib_module_names and top not in _OURS


_OURS = frozenset({"torch", "functorch", "torchgen", "minidbg", "__main__", "__mp_main__"})


def foreign_modules() -> Iterator[tuple[str, ModuleType]]:
    """The loaded modules that come neither with Python nor with torch nor from us, in order of loading."""
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and is_foreign(name):
            yield name, module


def loaded_module(name: str) -> ModuleType:
    """The loaded module ``name``."""
    return sys.modules[name]


def finds_again(name: str) -> bool:
    """Whether an import of ``name`` on the present ``sys.path`` leads to the file of the loaded module."""
    loaded = sys.modules.get(name)
    if loaded is None or top_level(name) in ("__main__", "__mp_main__"):
        return False
    parent, _, _ = name.rpartition(".")
    if parent and not finds_again(parent):
        return False
    folders = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    spec = _search(name, folders)
    return spec is not None and _same_place(spec, loaded)


def _search(name: str, folders: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
    """What the finders answer now. ``importlib.util.find_spec`` would only repeat what is loaded."""
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, folders)
        except _WITHOUT_ANSWER:
            continue
        if spec is not None:
            return spec
    return None


def _same_place(spec: importlib.machinery.ModuleSpec, loaded: ModuleType) -> bool:
    file: str | None = getattr(loaded, "__file__", None)
    if file is None or not spec.has_location or spec.origin is None:
        # built in, frozen, or a namespace package: the name is all there is
        return file is None or not spec.has_location
    return os.path.realpath(spec.origin) == os.path.realpath(file)


def file_of(module: str) -> Path | None:
    """The existing source file of a loaded module."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if not isinstance(file, str) or not file.endswith((".py", ".pyw")) or not os.path.isfile(file):
        return None
    return Path(os.path.abspath(file))


def source_of(module: str) -> str | None:
    """The source text of a loaded module, also out of a zip file; None when there is none."""
    loaded = sys.modules.get(module)
    loader = getattr(loaded, "__loader__", None)
    get_source = getattr(loader, "get_source", None)
    if get_source is None or loaded is None:
        return None
    try:
        text = get_source(getattr(getattr(loaded, "__spec__", None), "name", module))
    except (ImportError, OSError, SyntaxError, UnicodeDecodeError):
        return None
    return text if isinstance(text, str) else None


def folders_of(module: str) -> tuple[str, ...]:
    """The folders from which the top-level package of ``module`` is imported, installed ones left out."""
    inside, file = _location(top_level(module))
    found = [os.path.dirname(os.path.abspath(folder)) for folder in inside]
    if not found and file is not None:
        found = [os.path.dirname(os.path.abspath(file))]
    return tuple(dict.fromkeys(folder for folder in found if not _is_installed(folder)))


def _location(top: str) -> tuple[list[str], str | None]:
    """The folders of a package and the file of a module, whether it is loaded or could be."""
    loaded = sys.modules.get(top)
    if loaded is not None:
        file = getattr(loaded, "__file__", None)
        return list(getattr(loaded, "__path__", ())), file if isinstance(file, str) else None
    spec = _search(top, None)
    if spec is None:
        return [], None
    return list(spec.submodule_search_locations or ()), spec.origin if spec.has_location else None


def _is_installed(folder: str) -> bool:
    """Whether a fresh process of this interpreter imports from ``folder`` without being told."""
    real = os.path.realpath(folder)
    return any(real == place or real.startswith(place + os.sep) for place in _installed_places())


@cache
def _installed_places() -> tuple[str, ...]:
    wanted = ("stdlib", "platstdlib", "purelib", "platlib")
    places = [path for key, path in sysconfig.get_paths().items() if key in wanted]
    places += [*site.getsitepackages(), site.getusersitepackages()]
    return tuple(dict.fromkeys(os.path.realpath(place) for place in places))
