"""Where an object lives."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from minidbg.backends.modules import MAIN_MODULES, top_level
from minidbg.backends.statements import statements_of


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
