"""Builds a ``BackendRef``: imports, copied source and surroundings, collected on the way to one expression."""

from __future__ import annotations

import builtins
import contextlib
import copy
import keyword
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from minidbg.case import BackendRef
from minidbg.references.copied_source import CopiedStatement, Copy, NotSelfContained
from minidbg.references.locations import plugins_of_code
from minidbg.references.modules import installed, is_foreign, top_level
from minidbg.references.source_text import joined, read_statements


@dataclass(frozen=True, slots=True)
class CopiedBlock:
    """Copied source in two parts, each whole Python statements.

    ``above`` stands at the top level of the script. ``inside`` runs in ``backend()``: the imports of modules that
    may be missing elsewhere, so that their absence is noticed there, and all the rest too where it uses them at
    once. Names are global in both: where a function was defined is part of a failure's signature.
    ``modules`` are further foreign modules, which functions import when they run.
    """

    above: str = ""
    inside: str = ""
    modules: tuple[str, ...] = ()


def block_of(copy: Copy, known: Iterable[CopiedStatement] = ()) -> CopiedBlock:
    """What ``copy`` holds beyond the ``known`` pieces. Raises NotSelfContained when a name would be missing."""
    old = {piece.text for piece in known}
    pieces = [piece for piece in copy.pieces.values() if piece.text not in old]
    pieces.sort(key=lambda piece: (piece.order, piece.text if piece.is_import else ""))
    _check_names(copy)
    foreign = [piece for piece in pieces if piece.is_import and any(map(is_foreign, piece.imported))]
    if _runs_at_once(copy, {name for piece in foreign for name in piece.binds}):
        above, inside = [], pieces
    else:
        above, inside = [piece for piece in pieces if piece not in foreign], foreign
    later = {module for piece in pieces if not piece.is_import for module in piece.imported}
    # one that is not loaded was never imported: its absence is no reason to stop
    further = {module for module in later if is_foreign(module) and module in sys.modules}
    block = CopiedBlock(
        joined([piece.text for piece in above]), _inside(copy, inside), tuple(sorted(further))
    )
    compile(f"{block.above}\n{block.inside}", "<copy>", "exec")
    return block


def _inside(copy: Copy, pieces: list[CopiedStatement]) -> str:
    if not pieces:
        return ""
    title = [] if all(piece.is_import for piece in pieces) else [copy.title]
    bound = sorted({name for piece in pieces for name in piece.binds})
    return "\n".join([f"global {', '.join(bound)}", *title, joined([piece.text for piece in pieces])])


def _runs_at_once(copy: Copy, foreign: set[str]) -> bool:
    """Whether a statement, when it runs, may look up one of the ``foreign`` names: itself or by what it calls."""
    needs: dict[str, set[str]] = {}
    for piece in copy.pieces.values():
        for name in piece.binds:
            needs.setdefault(name, set()).update(piece.needs)
    waiting = {name for piece in copy.pieces.values() for name in piece.needs_now}
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in foreign:
            return True
        seen.add(name)
        waiting |= needs.get(name, set()) - seen
    return False


def copied_into(ref: BackendRef) -> list[CopiedStatement]:
    """The statements that are copied into ``ref`` already."""
    texts = [ref.embedded, *(text for text in ref.setup if "\n" in text)]
    return [
        CopiedStatement((1, 0, found.line), found.text)
        for text in texts
        for found in read_statements(text, "<copy>")
    ]


def _check_names(copy: Copy) -> None:
    """Every name that the copy looks up is bound in it, comes with Python, or was missing before."""
    bound = {name for piece in copy.pieces.values() for name in piece.binds}
    needed = {name for piece in copy.pieces.values() for name in piece.needs}
    absent = {
        name for name in needed - bound - copy.missing if not hasattr(builtins, name) and name != "__name__"
    }
    if absent:
        raise NotSelfContained(f"{', '.join(sorted(absent))} would be missing")


class RefBuilder:
    """Imports and their surroundings, each once and in order, while the parts of a backend are being found.

    Names are given out so that two objects of one name from two modules stay apart.
    """

    def __init__(self, start: BackendRef | None = None) -> None:
        self.setup: dict[str, None] = dict.fromkeys(start.setup if start else ())
        self._embedded: str = start.embedded if start else ""
        self._known: list[CopiedStatement] = copied_into(start) if start else []
        self.copies: dict[str, Copy] = {}
        self.files: dict[str, None] = dict.fromkeys(start.files if start else ())
        self.paths: dict[str, None] = dict.fromkeys(start.paths if start else ())
        self.requirements: dict[str, None] = dict.fromkeys(start.requirements if start else ())
        self.remarks: dict[str, None] = dict.fromkeys(start.remarks if start else ())
        self.modules: dict[str, None] = dict.fromkeys(start.modules if start else ())
        self.plugins: dict[str, None] = {}
        self._sources: dict[str, None] = {}
        self._names: dict[str, tuple[str, str]] = {}

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """A block after whose exception the builder is as it was before."""
        saved = {name: copy.copy(value) for name, value in vars(self).items()}
        copies = {module: dict(found.pieces) for module, found in self.copies.items()}
        try:
            yield
        except BaseException:
            vars(self).update(saved)
            for module, pieces in copies.items():
                self.copies[module].pieces = pieces
            raise

    def name_for(self, module: str, name: str) -> str:
        """A name in the script for ``name`` of ``module``: the same each time, no other object's."""
        wanted, number = name, 1
        while self._names.setdefault(wanted, (module, name)) != (module, name):
            number += 1
            wanted = f"{name}_{number}"
        return wanted

    def import_from(self, module: str, name: str) -> str:
        """``from module import name``; what it is called in the script."""
        known = self.name_for(module, name)
        renamed = f" as {known}" if known != name else ""
        self.setup[f"from {module} import {name}{renamed}"] = None
        self.uses(module)
        return known

    def import_module(self, module: str, why: str = "") -> None:
        """``import module  # why``, unless that module is imported already."""
        plain = f"import {module}"
        if not any(line == plain or line.startswith(plain + " ") for line in self.setup):
            self.setup[f"{plain}  # {why}" if why else plain] = None
        self.uses(module)

    def copy_of(self, module: str, file: str | None = None) -> Copy:
        """The source that is being copied out of a module which no import finds."""
        return self.copies.setdefault(module, Copy(module, file))

    def load_file(self, path: str, why: str, *, name: str = "", package: str = "") -> str:
        """``known = load_by_path(path)``; what the module is called in the script."""
        base = os.path.basename(path)
        plain = re.sub(r"\W", "_", os.path.splitext(base)[0])
        known = self.name_for("", f"_{plain}" if plain[:1].isdigit() or keyword.iskeyword(plain) else plain)
        further = "".join(
            f", {key}={value!r}" for key, value in (("name", name), ("package", package)) if value
        )
        self.setup[f"{known} = load_by_path({path!r}{further})"] = None
        self.files[path] = None
        self.paths[os.path.dirname(path)] = None
        self.remarks[f"{base} is loaded by its path, without its `__main__` block, since {why}"] = None
        return known

    def uses(self, module: str) -> None:
        """``module`` is part of the backend: what it needs to be installed, and what there is to watch."""
        top = top_level(module)
        self._sources[module] = None
        if top == "torch" or is_foreign(module):
            self.modules[top] = None
        if is_foreign(module):
            self.requires(module)

    def requires(self, module: str) -> None:
        """Note what a fresh process needs in order to import ``module``."""
        found = installed(module)
        if found.requirement:
            self.requirements[found.requirement] = None
        if found.remark:
            self.remarks[found.remark] = None
        self.paths |= dict.fromkeys(found.paths)

    def reference(
        self, name: str, expression: str, options: Mapping[str, Any], mode: str | None
    ) -> BackendRef:
        """All of it as one value. Raises NotSelfContained when copied source would miss a name."""
        embedded = self._place_copies()
        self.plugins |= dict.fromkeys(plugins_of_code((*self._sources, *self.copies)))
        for plugin in self.plugins:
            self.requires(plugin)
        first = [f"import {plugin}" for plugin in self.plugins if f"import {plugin}" not in self.setup]
        return BackendRef(
            name=name,
            expression=expression,
            setup=(*first, *self.setup),
            embedded=embedded,
            files=tuple(self.files),
            paths=tuple(self.paths),
            options=dict(options),
            mode=mode,
            requirements=tuple(self.requirements),
            remarks=tuple(self.remarks),
            modules=tuple(self.modules),
        )

    def _place_copies(self) -> str:
        """Put copied source where it belongs, with what it needs; the text for the top level of the script."""
        texts = [self._embedded] if self._embedded else []
        for copied in self.copies.values():
            block = block_of(copied, self._known)
            for module in block.modules:
                self.import_module(module, "for a function of the copied source")
            for piece in copied.pieces.values():
                for module in filter(is_foreign, piece.imported):
                    self.requires(module)
            if block.inside:
                self.setup[block.inside] = None
            if block.above:
                texts.append(block.above)
        return "\n\n".join(texts)
