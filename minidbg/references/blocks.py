"""Copied source as it stands in a script: at the top level, or inside ``backend()`` where that is safer."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from minidbg.case import BackendRef
from minidbg.references.embedding import Copy
from minidbg.references.homes import is_foreign
from minidbg.references.layout import joined
from minidbg.references.pieces import NotSelfContained, Piece
from minidbg.references.statements import read_statements


@dataclass(frozen=True, slots=True)
class Block:
    """Copied source in two parts, each whole Python statements.

    ``above`` stands at the top level of the script. ``inside`` runs in ``backend()``: the imports of modules that
    may be missing elsewhere, so that their absence is noticed there, and all the rest too where it uses them at
    once. Names are global in both: where a function was defined is part of a failure's signature.
    ``modules`` are further foreign modules, which functions import when they run.
    """

    above: str = ""
    inside: str = ""
    modules: tuple[str, ...] = ()


def block_of(copy: Copy, known: Iterable[Piece] = ()) -> Block:
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
    block = Block(joined([piece.text for piece in above]), _inside(copy, inside), tuple(sorted(further)))
    compile(f"{block.above}\n{block.inside}", "<copy>", "exec")
    return block


def _inside(copy: Copy, pieces: list[Piece]) -> str:
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


def pieces_of(ref: BackendRef) -> list[Piece]:
    """The statements that are copied into ``ref`` already."""
    texts = [ref.embedded, *(text for text in ref.setup if "\n" in text)]
    return [
        Piece((1, 0, found.line), found.text) for text in texts for found in read_statements(text, "<copy>")
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
