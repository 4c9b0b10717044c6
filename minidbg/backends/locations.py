"""Where an object lives."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from minidbg.backends.modules import is_main, top_level
from minidbg.backends.statements import statements_of


@dataclass(frozen=True, slots=True)
class Location:
    """``path`` inside ``module``: ``my_backend``, ``Compiler.build``, ``BACKENDS['fast']``."""

    module: str
    path: str

    @property
    def first(self) -> str:
        return self.path.partition(".")[0].partition("[")[0]


def location_of(value: object) -> Location | None:
    """A location that leads to ``value`` itself, in a module other than ours; None when there is none.

    A function or class says where it was defined; any other object is looked for by identity: a global name,
    an attribute of a class, an entry of a global dict.
    """
    return _by_own_name(value) or _by_identity(value)


def _by_own_name(value: Any) -> Location | None:
    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(path, str) or "<" in path:
        return None
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        # not getattr: a class would bind its functions, and a lazy module may import
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
        found = found.__func__ if isinstance(found, staticmethod) else found
    return Location("__main__" if is_main(module) else module, path) if found is value else None


def _by_identity(value: object) -> Location | None:
    locations = [location for location in _locations(value) if _is_made_by_import(location)]
    return min(locations, key=_awkwardness) if locations else None


def _awkwardness(location: Location) -> tuple[bool, bool, int, int]:
    """What a reader would rather not see: scripts, borrowed names, table entries, long module names."""
    return (is_main(location.module), _is_borrowed(location), location.path.count("["), len(location.module))


def _locations(value: object) -> Iterator[Location]:
    for name, module in sys.modules.copy().items():
        if isinstance(module, ModuleType) and top_level(name) != "minidbg" and name != "__mp_main__":
            for path in _paths_in(name, module, value):
                yield Location(name, path)


def _paths_in(name: str, module: ModuleType, value: object) -> Iterator[str]:
    # No function of ours is called for each of some 100,000 names: at an unlucky depth of the stack, a call allocates a
    # chunk for its frame (Python 3.11), and this took a second of each compile with a local backend.
    for key, found in vars(module).copy().items():
        if type(key) is not str or key.startswith("__"):
            continue
        # type(found) and not isinstance: lazy objects answer __class__ with an import or a warning
        if found is value:
            inner = [""]
        elif issubclass(type(found), type) and found.__module__ == name:
            parts = [part for part, one in list(vars(found).items()) if one is value]
            inner = [f".{part}" for part in parts if _is_usable(part)]
        elif type(found) is dict:
            # copied in one step: a collection at this moment may take entries out
            parts = [part for part, one in found.copy().items() if one is value]
            inner = [f"[{part!r}]" for part in parts if type(part) is str]
        else:
            continue
        if inner and _is_usable(key):
            yield from (key + one for one in inner)


def _is_usable(name: object) -> bool:
    """Whether a script may say it; ``_`` and ``_1`` hold the last answers of an interactive session."""
    return (
        isinstance(name, str)
        and name.isidentifier()
        and not name.startswith("__")
        and not name.strip("_").isdigit()
        and name != "_"
    )


def _is_made_by_import(location: Location) -> bool:
    """Whether the module's own source gives the location its value, and not the program while it runs."""
    statements = statements_of(location.module)
    if not statements:
        return True  # compiled, or nobody kept the source: trust it
    binders = [found.node for found in statements if location.first in found.binds]
    if "[" not in location.path:
        return bool(binders) or any("import *" in found.text for found in statements)
    _, _, key = location.path.partition("[")
    tables = [node.value for node in binders if isinstance(node, ast.Assign | ast.AnnAssign)]
    keys = [part for table in tables if isinstance(table, ast.Dict) for part in table.keys]
    return any(isinstance(part, ast.Constant) and f"{part.value!r}]" == key for part in keys)


def _is_borrowed(location: Location) -> bool:
    """Whether the module only imported the name, so that its home is another one."""
    binders = (found.node for found in statements_of(location.module) if location.first in found.binds)
    return any(isinstance(node, ast.Import | ast.ImportFrom) for node in binders)
