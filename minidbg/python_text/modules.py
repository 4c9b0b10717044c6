"""Modules as a fresh process sees them: whether an import finds one again, in which folder, and which distribution brings it."""

from __future__ import annotations

import importlib.machinery
import json
import os
import site
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import (
    Distribution,
    PackageNotFoundError,
    PackagePath,
    distribution,
    distributions,
    packages_distributions,
)
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import url2pathname

from minidbg.words import environment

_WITHOUT_ANSWER = (ImportError, AttributeError, ValueError)


def top_level(module: str) -> str:
    """``my_pkg`` of ``my_pkg.sub.mod``."""
    return module.partition(".")[0]


def is_main(module: str) -> bool:
    """Whether ``module`` is the program; a process that multiprocessing has started has its script under two names."""
    return module in ("__main__", "__mp_main__")


def is_foreign(module: str) -> bool:
    """Whether ``module`` comes neither with Python nor with torch nor from us."""
    top = top_level(module)
    return top not in sys.stdlib_module_names and top not in _OURS


_OURS = frozenset({"torch", "functorch", "torchgen", "minidbg", "__main__", "__mp_main__"})


def foreign_modules() -> Iterator[tuple[str, ModuleType]]:
    """The loaded modules that come neither with Python nor with torch nor from us, in order of loading."""
    # A copy is made in one step; while a list of the items is made, the garbage collector may run code that imports.
    for name, module in sys.modules.copy().items():
        if isinstance(module, ModuleType) and is_foreign(name):
            yield name, module


def finds_again(name: str) -> bool:
    """Whether an import of ``name`` on the present ``sys.path`` leads to the file of the loaded module."""
    loaded = sys.modules.get(name)
    if loaded is None or is_main(top_level(name)):
        return False
    parent, _, _ = name.rpartition(".")
    if parent and not finds_again(parent):
        return False
    folders = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    spec = _search(name, folders)
    return spec is not None and _same_place(spec, loaded)


def _search(name: str, folders: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
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
    return tuple(dict.fromkeys(folder for folder in found if not is_installed(folder)))


def _location(top: str) -> tuple[list[str], str | None]:
    loaded = sys.modules.get(top)
    if loaded is not None:
        file = getattr(loaded, "__file__", None)
        return list(getattr(loaded, "__path__", ())), file if isinstance(file, str) else None
    spec = _search(top, None)
    if spec is None:
        return [], None
    return list(spec.submodule_search_locations or ()), spec.origin if spec.has_location else None


def is_installed(folder: str) -> bool:
    """Whether a fresh process of this interpreter imports from ``folder`` without being told."""
    real = os.path.realpath(folder)
    return any(real == place or real.startswith(place + os.sep) for place in _installed_places())


@cache
def _installed_places() -> tuple[str, ...]:
    wanted = ("stdlib", "platstdlib", "purelib", "platlib")
    known = sysconfig.get_paths()
    places = (*(known[key] for key in wanted), *site.getsitepackages(), site.getusersitepackages())
    return tuple(dict.fromkeys(map(os.path.realpath, places)))


GIT_S = 5.0
"""Seconds git may take to tell a commit."""


@dataclass(frozen=True, slots=True)
class Installed:
    """How a module came to this machine. ``paths`` are for modules that are not found by themselves."""

    requirement: str = ""
    remark: str = ""
    paths: tuple[str, ...] = ()


def installed(module: str) -> Installed:
    """What a fresh process needs for the top-level package of a loaded ``module``."""
    found = distribution_of(module)
    folders = folders_of(module)
    if found is None:
        if not folders:
            return Installed()
        home = f"the folder {os.path.basename(folders[0])}{_at_commit(folders[0])}"
        return Installed(
            remark=f"{top_level(module)} is not installed: it was imported from {home}", paths=folders
        )
    origin = _origin(found)
    if _is_editable(origin):
        home = f"{found.name}{_at_commit(_folder(origin))}"
        return Installed(remark=f"{top_level(module)} is an editable install of {home}")
    if origin:
        return Installed(remark=_from_url(found, origin), paths=folders)
    public = public_version(found.version)  # no index knows a local label
    local = "" if public == found.version else f"{found.name} was {found.version} where this failed"
    return Installed(f"{found.name}=={public}", local, folders)


def public_version(version: str) -> str:
    """``2.13.0`` of ``2.13.0+cpu``."""
    return version.partition("+")[0]


def distribution_of(module: str) -> Distribution | None:
    top = top_level(module)
    names = list(dict.fromkeys(_distributions_by_module(tuple(sys.path)).get(top, ())))
    file = getattr(sys.modules.get(module), "__file__", None)
    candidates = [found for found in map(_distribution, names) if found is not None]
    if len(candidates) > 1 and file:  # parts of one namespace package
        candidates.sort(key=lambda found: not _holds(found, file))
    return candidates[0] if candidates else _editable_distribution(module)


@lru_cache(maxsize=2)
def _distributions_by_module(path: tuple[str, ...]) -> dict[str, list[str]]:
    """Top-level module to distribution names; reading all metadata takes a while, so once per ``sys.path``."""
    return dict(packages_distributions())


def _distribution(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _holds(found: Distribution, file: str) -> bool:
    places = (os.path.realpath(str(found.locate_file(part))) for part in found.files or ())
    return os.path.realpath(file) in places


def _editable_distribution(module: str) -> Distribution | None:
    """The editable install through which the top-level package of ``module`` is imported.

    Its metadata may not name the modules; the ``.pth`` file or the finder that makes it importable does.
    """
    folders = folders_of(module)
    for found in distributions() if folders else ():
        parts = found.files or () if _is_editable(_origin(found)) else ()
        if any(_leads_to(part, module, folders) for part in parts):
            return found
    return None


def _leads_to(part: PackagePath, module: str, folders: tuple[str, ...]) -> bool:
    is_finder = part.name.startswith("__editable__") and part.suffix == ".py"
    if part.suffix != ".pth" and not is_finder:
        return False
    try:
        text = part.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    if is_finder:
        return f"'{top_level(module)}'" in text
    lines = {os.path.realpath(line) for line in text.splitlines() if line and not line.startswith("import")}
    return any(os.path.realpath(folder) in lines for folder in folders)


def _origin(found: Distribution) -> dict[str, object]:
    """``direct_url.json`` of an install that came from a folder, a file or a repository; else empty."""
    text = found.read_text("direct_url.json")
    try:
        origin = json.loads(text) if text else {}
    except ValueError:
        return {}
    return origin if isinstance(origin, dict) else {}


def _is_editable(origin: dict[str, object]) -> bool:
    folder = origin.get("dir_info")
    return isinstance(folder, dict) and bool(folder.get("editable"))


def _folder(origin: dict[str, object]) -> str:
    return url2pathname(urlsplit(str(origin.get("url", ""))).path)


def _from_url(found: Distribution, origin: dict[str, object]) -> str:
    """One line for an install that no index can repeat; credentials in the address are left out."""
    address = str(origin.get("url", ""))
    repository = origin.get("vcs_info")
    if isinstance(repository, dict):
        commit = repository.get("commit_id", "")
        at = f"{repository.get('vcs', 'git')}+{_without_credentials(address)}@{commit}"
        return f"{found.name} {found.version} was installed by: pip install '{found.name} @ {at}'"
    if address.startswith("file:"):
        place = _folder(origin)
        name = os.path.basename(os.path.normpath(place))
        return f"{found.name} {found.version} was installed from a file or folder {name}{_at_commit(place)}"
    return f"{found.name} {found.version} was installed from {_without_credentials(unquote(address))}"


def _without_credentials(address: str) -> str:
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))


def _at_commit(folder: str) -> str:
    """``" at commit 1a2b3c4d5e6f"``, with ``-dirty`` when the work tree had changes; nothing outside git."""
    command = ["git", "-C", folder, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=GIT_S, check=False, env=environment.for_tool()
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    commit = answer.stdout.strip()
    return f" at commit {commit}" if answer.returncode == 0 and commit else ""
