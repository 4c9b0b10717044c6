"""Single statements that are copied out of a source: their names, their constants, what may be copied."""

from __future__ import annotations

import ast
import types
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from minidbg.references.literals import NotALiteral, write_literal
from minidbg.references.registered import is_registration
from minidbg.references.statements import Statement, read_statements

LITERAL_CHARS = 4000
"""A longer constant is no constant but data."""

OUTSIDE_WORLD = frozenset(
    {"open", "input", "exec", "eval", "globals", "locals", "sys", "argparse", "__file__"}
)
"""What a copied assignment must not look at: it would see another program's files and arguments."""

_HEAVY = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, types.GeneratorType)

_CALM = (
    *(ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
    *(ast.Assign, ast.AnnAssign, ast.Pass, ast.Raise),
)
"""What may stand inside an ``if`` or ``try`` that is copied whole."""

NO_LITERAL = object()


class NotSelfContained(Exception):
    """Something cannot be copied; the text is a clause: ``weights is a Tensor``."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One copied statement. ``order`` sorts it: imports first, then as in the source."""

    order: tuple[int, int, int]
    text: str

    @property
    def binds(self) -> frozenset[str]:
        """Names that exist after it ran."""
        return _names(self.text)[0]

    @property
    def needs(self) -> frozenset[str]:
        """Global names that it looks up, at once or later."""
        return _names(self.text)[1]

    @property
    def needs_now(self) -> frozenset[str]:
        """Those that it looks up while it runs."""
        return _names(self.text)[2]

    @property
    def imported(self) -> frozenset[str]:
        """Modules that its import statements name, at any depth."""
        return frozenset(name for found in read_statements(self.text, "<copy>") for name in found.imported)

    @property
    def is_import(self) -> bool:
        """Whether it is an import statement and nothing else."""
        return self.order[0] == 0


@lru_cache(maxsize=512)
def _names(text: str) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Names that a text binds, that it needs, and of these the ones that it needs at once."""
    found = read_statements(text, "<copy>")
    binds = frozenset(name for part in found for name in part.binds)
    now = frozenset(name for part in found for name in part.needs_now)
    return binds, now.union(*(part.needs_later | part.rebinds for part in found)), now


def literal_in_source(node: ast.expr | None) -> Any:
    """The value of a literal expression, or NO_LITERAL."""
    try:
        return ast.literal_eval(node) if node is not None else NO_LITERAL
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return NO_LITERAL


def short_literal(value: object) -> str | None:
    """The text of a literal of a size that a person would read, or None."""
    try:
        text = write_literal(value)
    except (NotALiteral, RecursionError):
        return None
    return text if len(text) <= LITERAL_CHARS else None


def is_heavy(value: object) -> bool:
    """Whether a value is, or holds, what only the whole program makes: tensors, models, optimizers."""
    items = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple | set) else ()
    )
    return isinstance(value, _HEAVY) or any(isinstance(item, _HEAVY) for item in items)


def is_assignment(node: ast.stmt) -> bool:
    """Whether a statement gives one value to plain names."""
    if isinstance(node, ast.AnnAssign):
        return isinstance(node.target, ast.Name) and node.value is not None
    return isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets)


def is_calm(node: ast.AST) -> bool:
    """Whether an ``if`` or ``try`` holds nothing but imports, definitions and assignments."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If | ast.Try | ast.ExceptHandler):
            if not is_calm(child):
                return False
        elif isinstance(child, ast.stmt) and not isinstance(child, _CALM):
            return False
    return True


def one_import(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    """An import statement for one of its names only."""
    if isinstance(node, ast.ImportFrom):
        return ast.unparse(ast.ImportFrom(node.module, [alias], node.level))
    return ast.unparse(ast.Import([alias]))


def bound_by(alias: ast.alias) -> str:
    """The name that an import gives to the script."""
    return alias.asname or alias.name.partition(".")[0]


def without_registration(statement: Statement) -> str:
    """A definition without its ``@register_backend``: registering a name twice in one process is an error."""
    decorators = getattr(statement.node, "decorator_list", [])
    if not any(map(is_registration, decorators)):
        return statement.text
    (again,) = ast.parse(statement.text).body
    unwanted = [found for found in getattr(again, "decorator_list", []) if is_registration(found)]
    lines = {number for found in unwanted for number in range(found.lineno, (found.end_lineno or 0) + 1)}
    return "\n".join(
        line for number, line in enumerate(statement.text.splitlines(), 1) if number not in lines
    )
