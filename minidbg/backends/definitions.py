"""Definitions that no import reaches, copied out of a script or session with all that they use."""

from __future__ import annotations

import ast
import builtins
import importlib.util
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Iterator, Sequence, Set
from typing import Any, NamedTuple

import torch

from minidbg.backends.locations import finds_again, is_foreign, location_of
from minidbg.backends.statements import Statement, indented, joined, read_statements, statements_of
from minidbg.core.literals import NotALiteral, write_literal

LITERAL_CHARS = 4000
"""A longer constant is no constant but data."""

OUTSIDE_WORLD = frozenset(
    {"open", "input", "exec", "eval", "globals", "locals", "sys", "argparse", "__file__"}
)
"""What a copied assignment must not look at: it would see another program's files and arguments."""

OF_SCRIPTS = frozenset(
    {"Repro", "graph", "inputs", "stored", "test_repro", "_run", "_check", "_compiled", "_sharing"}
)
"""Names that a script has for itself; nothing of the user's is renamed."""

_HEAVY = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, types.GeneratorType)


class NotSelfContained(Exception):
    """Something cannot be copied; the text is a clause: ``weights is a Tensor``."""


class SourcePiece(NamedTuple):
    order: tuple[int, int, int]
    """Imports of Python and torch, other imports, then as in the source: file and line."""
    statement: Statement


class Copy:
    """Statements of the program that hold certain names, and all that these use, transitively.

    Each ``add_`` method raises NotSelfContained and then leaves the copy as it was.
    ``file`` is the ``co_filename`` of a function of a program that has no file.
    """

    def __init__(self, file: str | None) -> None:
        self.namespace = vars(sys.modules["__main__"])
        self.pieces: dict[str, SourcePiece] = {}
        """By their text."""
        self.statements = statements_of("__main__", file)
        self._files = list(dict.fromkeys(found.file for found in self.statements))

    def text(self, known: Set[str] = frozenset()) -> str:
        """All that was copied, less statements with a ``known`` text and every script's imports."""
        omitted = {*known, "import torch"}
        pieces = [piece for text, piece in self.pieces.items() if text not in omitted]
        pieces.sort(key=lambda piece: (piece.order, "" if piece.order[0] else piece.statement.text))
        return joined([piece.statement.text for piece in pieces])

    def imported(self, *, by_imports: bool) -> set[str]:
        """The modules that its import statements name, or its functions when they run."""
        pieces = (piece for piece in self.pieces.values() if (piece.order[0] == 0) is by_imports)
        return {module for piece in pieces for module in piece.statement.imported}

    def defines(self, name: str) -> bool:
        """Whether a statement gives ``name`` its value; a loop or a ``with`` only lends it."""
        binders = (binder.node for binder in self.statements if name in binder.binds)
        return not all(isinstance(node, ast.For | ast.With | ast.While) for node in binders)

    def add_name(self, name: str) -> None:
        self._add(self._for_name(name), also=name)

    def add_function(self, function: types.FunctionType) -> None:
        """Copy a function that no global name holds; it must use none of the local names around it.

        The functions around it are kept as shells that return it: where a function was defined is
        part of a failure's signature.
        """
        try:
            text = textwrap.dedent(inspect.getsource(function))
            (statement,) = read_statements(text, function.__code__.co_filename)
        except (OSError, TypeError, SyntaxError, ValueError):
            raise NotSelfContained(f"nobody kept the source of {function.__qualname__}") from None
        if function.__name__ not in statement.binds:
            raise NotSelfContained(f"{function.__qualname__} has no name of its own")
        text, name = self._piece(statement).statement.text, function.__name__
        for part in reversed(function.__qualname__.replace(".<locals>", "").split(".")[:-1]):
            text, name = f"def {part}():\n{indented(text)}\n    return {name}", part
        self.add_statement(text)

    def add_statement(self, text: str) -> None:
        """Take a statement of ours, after all others: it may use them."""
        (statement,) = read_statements(text, "<copy>")
        self._add([SourcePiece((2, len(self.pieces), 0), statement)])

    def add_operators(self, name: str, statements: Sequence[Statement], *, extends: bool) -> None:
        """Copy the statements that define the operator ``ns::name`` and others, or that only add to
        what a module defines.

        They run only where that is not there yet: pytest may load several scripts in one process.
        """
        namespace, _, name = name.partition(".")[0].partition("::")
        parts = [self._piece(statement) for statement in statements]
        texts, owner, mark = [part.statement.text for part in parts], f"torch.ops.{namespace}", name
        if extends:
            owner, mark = f"{owner}.{name}", "extended"
            texts.append(f"{owner}.{mark} = True")
        text = f"if not hasattr({owner}, {mark!r}):\n{indented(joined(texts, gap=1))}"
        (guarded,) = read_statements(text, "<copy>")
        self._add([SourcePiece(parts[-1].order, guarded), self._import("import torch")])

    def _add(self, first: list[SourcePiece], also: str = "") -> None:
        """Take ``first`` and all that it needs, or nothing; ``also`` is the name of what is to be
        the script's ``backend``."""
        known, waiting = dict(self.pieces), list(first)
        bound = {name for piece in known.values() for name in piece.statement.binds}
        while waiting:
            piece = waiting.pop()
            if piece.statement.text in known:
                continue
            known[piece.statement.text] = piece
            bound |= piece.statement.binds
            for name in sorted(piece.statement.needs - bound):
                if not hasattr(builtins, name) or name in self.namespace:
                    waiting += self._for_name(name)
        needed = {name for piece in known.values() for name in piece.statement.needs}
        if clashing := sorted(bound & OF_SCRIPTS | bound & needed & {"backend"} - {also}):
            raise NotSelfContained(f"a script has a {clashing[0]} of its own")
        self.pieces = known

    def _for_name(self, name: str) -> list[SourcePiece]:
        """Pieces that bind ``name`` to what it stands for now; none if it does not exist yet."""
        if name.startswith("__"):
            raise NotSelfContained(f"it uses {name}")
        if name not in self.namespace:
            return []
        value = self.namespace[name]
        binders = [found for found in self.statements if name in found.binds]
        return self._imports(name, binders) or [self._defined(name, value, binders)]

    def _imports(self, name: str, binders: list[Statement]) -> list[SourcePiece]:
        if not all(isinstance(found.node, ast.Import | ast.ImportFrom) for found in binders):
            return []
        package = self.namespace.get("__package__") or ""
        pairs = (pair for binder in binders for pair in single_imports(binder.node, package))
        lines = dict.fromkeys(line for bound, line in pairs if bound == name)
        return [self._import(line) for line in lines]

    def _import(self, line: str) -> SourcePiece:
        (statement,) = read_statements(line, "<import>")
        _check_imports(statement)
        return SourcePiece((0, int(any(map(is_foreign, statement.imported))), 0), statement)

    def _defined(self, name: str, value: Any, binders: list[Statement]) -> SourcePiece:
        if binders and isinstance(binders[-1].node, ast.FunctionDef | ast.ClassDef):
            return self._piece(binders[-1])  # the last of several is what the name stands for
        source = assigned_value(binders[0].node) if len(binders) == 1 else None
        if source is None:
            return self._value(name, value, binders)
        try:
            is_written, written = True, ast.literal_eval(source)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            is_written, written = False, None
        literal = short_literal(value)
        # what a list has collected since is the program's doing; it starts as written
        if literal is not None and not (
            is_written and (isinstance(value, list | dict | set) or written == value)
        ):
            return self._value(name, value, binders)
        if not is_written and is_heavy(value):
            raise NotSelfContained(f"{name} is a {type(value).__qualname__}")
        if not is_written and (used := binders[0].needs & OUTSIDE_WORLD):
            raise NotSelfContained(f"{name} was made with {', '.join(sorted(used))}")
        return self._piece(binders[0])

    def _value(self, name: str, value: Any, binders: list[Statement]) -> SourcePiece:
        """A name without one plain statement (star import, loop, reassignment): by its value."""
        if isinstance(value, types.ModuleType):
            return self._import(f"import {value.__name__} as {name}")
        if (literal := short_literal(value)) is not None:
            text = f"{name} = {literal}  # its value when this failed"
            (statement,) = read_statements(text, "<copy>")
            return SourcePiece(self._order(binders[-1]) if binders else (1, 0, 0), statement)
        location = location_of(value)
        if location and location.path == location.first and finds_again(location.module):
            renamed = "" if location.path == name else f" as {name}"
            return self._import(f"from {location.module} import {location.path}{renamed}")
        raise NotSelfContained(f"{name} has no single definition that could be copied")

    def _piece(self, statement: Statement) -> SourcePiece:
        _check_imports(statement)
        (copied,) = read_statements(without_registration(statement), statement.file)
        return SourcePiece(self._order(statement), copied)

    def _order(self, statement: Statement) -> tuple[int, int, int]:
        known = statement.file in self._files
        return (1, self._files.index(statement.file) if known else len(self._files), statement.line)


def short_literal(value: object) -> str | None:
    """The text of a literal of a size that a person would read, or None."""
    try:
        text = write_literal(value)
    except (NotALiteral, RecursionError):
        return None
    return text if len(text) <= LITERAL_CHARS else None


def is_heavy(value: object) -> bool:
    """Whether a value is, or holds, what only the whole program makes: tensor, model, optimizer."""
    inside: Any = value.values() if isinstance(value, dict) else value
    items = inside if isinstance(value, dict | list | tuple | set) else ()
    return any(isinstance(item, _HEAVY) for item in (value, *items))


def assigned_value(node: ast.stmt) -> ast.expr | None:
    """What a statement gives to names; None for one that does anything else."""
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return None
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return node.value if all(isinstance(target, ast.Name) for target in targets) else None


def single_imports(node: ast.stmt, package: str) -> Iterator[tuple[str, str]]:
    """Each name that an import in a module of ``package`` binds, with a statement for it alone."""
    for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
        single: ast.stmt = ast.Import([alias])
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            if node.level and package:
                module = importlib.util.resolve_name(module, package)
            single = ast.ImportFrom(module, [alias], 0)
        yield alias.asname or alias.name.partition(".")[0], ast.unparse(single)


def without_registration(statement: Statement) -> str:
    """A definition without its ``@register_backend``: one process may not register a name twice."""
    (again,) = ast.parse(statement.text).body
    marks: list[ast.expr] = getattr(again, "decorator_list", [])
    registers = re.compile(r"[\w.]*\bregister_\w*backend\b")
    unwanted = [mark for mark in marks if registers.match(ast.unparse(mark))]
    gone = {line for mark in unwanted for line in range(mark.lineno, (mark.end_lineno or 0) + 1)}
    lines = enumerate(statement.text.splitlines(), 1)
    return "\n".join(line for number, line in lines if number not in gone)


def _check_imports(statement: Statement) -> None:
    for module in statement.imported:
        if module.startswith("."):
            raise NotSelfContained(f"it imports {module}, relative to its package")
        if module.partition(".")[0] == "minidbg":
            raise NotSelfContained("it uses minidbg itself")
