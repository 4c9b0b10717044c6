"""Copied source as it stands in a script: at the top level, or inside ``backend()`` where that is safer."""

from __future__ import annotations

import builtins
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
    """``text`` is whole Python statements. A nested one runs inside ``backend()``.

    Nested are those that need a module which may be missing elsewhere, so that its absence is noticed by
    ``backend()``. Their names are global all the same: where a function was defined is part of a signature.
    ``modules`` are foreign modules that functions import when they run.
    """

    text: str = ""
    nested: bool = False
    modules: tuple[str, ...] = ()


def block_of(copy: Copy, known: Iterable[Piece] = ()) -> Block:
    """What ``copy`` holds beyond the ``known`` pieces. Raises NotSelfContained when a name would be missing."""
    old = {piece.text for piece in known}
    pieces = [piece for piece in copy.pieces.values() if piece.text not in old]
    pieces.sort(key=lambda piece: (piece.order, piece.text if piece.is_import else ""))
    if not pieces:
        return Block()
    _check_names(copy)
    foreign = {module for piece in pieces for module in piece.imported if is_foreign(module)}
    at_once = {
        module for piece in pieces if piece.is_import for module in piece.imported if is_foreign(module)
    }
    text = f"{copy.title}\n{joined([piece.text for piece in pieces])}"
    if at_once:
        bound = sorted({name for piece in pieces for name in piece.binds})
        text = f"global {', '.join(bound)}\n{text}"
    compile(text, "<copy>", "exec")
    return Block(text, bool(at_once), tuple(sorted(foreign - at_once)))


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
