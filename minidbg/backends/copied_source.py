"""Source that no import reaches, copied out of a script or a session together with all that it uses."""

from __future__ import annotations

import ast
import builtins
import inspect
import os
import sys
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from minidbg.backends.locations import is_registration, location_of
from minidbg.python_text.modules import finds_again, is_foreign
from minidbg.python_text.source_text import (
    Statement,
    indented,
    joined,
    read_statements,
    statements_of,
)
from minidbg.words.literals import NotALiteral, write_literal

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
class CopiedStatement:
    order: tuple[int, int, int]
    text: str

    @property
    def binds(self) -> frozenset[str]:
        return _names(self.text)[0]

    @property
    def needs(self) -> frozenset[str]:
        return _names(self.text)[1]

    @property
    def needs_now(self) -> frozenset[str]:
        return _names(self.text)[2]

    @property
    def imported(self) -> frozenset[str]:
        return frozenset(name for found in read_statements(self.text, "<copy>") for name in found.imported)

    @property
    def is_import(self) -> bool:
        return self.order[0] == 0


@lru_cache(maxsize=512)
def _names(text: str) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    found = read_statements(text, "<copy>")
    binds = frozenset(name for part in found for name in part.binds)
    now = frozenset(name for part in found for name in part.needs_now)
    return binds, now.union(*(part.needs_later | part.rebinds for part in found)), now


def literal_in_source(node: ast.expr | None) -> Any:
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
    inside: Any = value.values() if isinstance(value, dict) else value
    items = inside if isinstance(value, dict | list | tuple | set) else ()
    return any(isinstance(item, _HEAVY) for item in (value, *items))


def is_assignment(node: ast.stmt) -> bool:
    if isinstance(node, ast.AnnAssign):
        return isinstance(node.target, ast.Name) and node.value is not None
    return isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets)


def is_calm(node: ast.AST) -> bool:
    """Whether an ``if`` or ``try`` holds nothing but imports, definitions and assignments."""
    inside = list(ast.iter_child_nodes(node))
    blocks = [child for child in inside if isinstance(child, ast.If | ast.Try | ast.ExceptHandler)]
    others = (child for child in inside if isinstance(child, ast.stmt) and child not in blocks)
    return all(map(is_calm, blocks)) and all(isinstance(child, _CALM) for child in others)


def single_imports(text: str) -> Iterator[tuple[str, str]]:
    """Each name that the import statements of ``text`` bind, with an import statement for it alone."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import):
            yield from ((bound_by(alias), ast.unparse(ast.Import([alias]))) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield bound_by(alias), ast.unparse(ast.ImportFrom(node.module, [alias], node.level))


def bound_by(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def without_registration(statement: Statement) -> str:
    """A definition without its ``@register_backend``: registering a name twice in one process is an error."""
    decorators = getattr(statement.node, "decorator_list", [])
    if not any(map(is_registration, decorators)):
        return statement.text
    (again,) = ast.parse(statement.text).body
    unwanted = [found for found in getattr(again, "decorator_list", []) if is_registration(found)]
    gone = {number for found in unwanted for number in range(found.lineno, (found.end_lineno or 0) + 1)}
    lines = enumerate(statement.text.splitlines(), 1)
    return "\n".join(line for number, line in lines if number not in gone)


class Copy:
    """Statements of one module that hold certain names, and everything that these use, transitively.

    Each ``add_`` method raises NotSelfContained and then leaves the copy as it was.
    ``file`` is the ``co_filename`` of a function of a module that has no file.
    """

    def __init__(self, module: str, file: str | None = None) -> None:
        self.module = module
        self.pieces: dict[str, CopiedStatement] = {}
        self.missing: set[str] = set()
        """Names that a function looks up and that did not exist yet when the failure came."""
        self.statements = statements_of(module, file)
        self._files = list(dict.fromkeys(found.file for found in self.statements))

    @property
    def namespace(self) -> Mapping[str, Any]:
        return vars(sys.modules[self.module])

    @property
    def title(self) -> str:
        file = getattr(sys.modules[self.module], "__file__", None)
        return f"# Copied from {os.path.basename(file)}." if file else "# Copied from an interactive session."

    def defines(self, name: str) -> bool:
        """Whether a statement gives ``name`` its value; a loop or a ``with`` only lends it."""
        lenders = (ast.For, ast.AsyncFor, ast.With, ast.AsyncWith, ast.While)
        return any(name in found.binds and not isinstance(found.node, lenders) for found in self.statements)

    def add_name(self, name: str) -> None:
        self._add(self._for_name(name))

    def add_function(self, function: types.FunctionType) -> None:
        """Copy a function that no global name holds; it must use none of the local names around it.

        The functions around it are kept as shells that return it: where a function was defined is part of a
        failure's signature.
        """
        try:
            text = textwrap.dedent(inspect.getsource(function))
            (statement,) = read_statements(text, function.__code__.co_filename)
        except (OSError, TypeError, SyntaxError, ValueError):
            raise NotSelfContained(f"nobody kept the source of {function.__qualname__}") from None
        if function.__name__ not in statement.binds:
            raise NotSelfContained(f"{function.__qualname__} has no name of its own")
        _check_imports(statement)
        text = without_registration(statement)
        for part in reversed([part for part in function.__qualname__.split(".")[:-1] if part != "<locals>"]):
            shell = ast.parse(text).body[0]
            text = f"def {part}():\n{indented(text)}\n    return {getattr(shell, 'name', '')}"
        self._add([CopiedStatement((2, 0, 0), text)])  # last: it may use all the others

    def add_operators(self, names: Sequence[str], statements: Sequence[Statement]) -> None:
        """Copy the statements that define the operators ``ns::name``.

        They run only where the first of these is not there yet: pytest may load several scripts in one process.
        """
        namespace, _, name = names[0].partition(".")[0].partition("::")
        parts = [self._piece(statement) for statement in statements]
        body = indented(joined([part.text for part in parts], gap=1))
        guard = f"if not hasattr(torch.ops.{namespace}, {name!r}):"
        self._add([CopiedStatement(parts[-1].order, f"{guard}\n{body}"), self._import("import torch")])

    def _add(self, first: list[CopiedStatement]) -> None:
        """Take ``first`` and all that it needs, or nothing."""
        known, waiting = dict(self.pieces), list(first)
        bound = {name for piece in known.values() for name in piece.binds}
        while waiting:
            piece = waiting.pop()
            if piece.text in known:
                continue
            known[piece.text] = piece
            bound |= piece.binds
            for name in sorted(piece.needs - bound):
                if not hasattr(builtins, name) or name in self.namespace:
                    waiting += self._for_name(name)
        self.pieces = known

    def _for_name(self, name: str) -> list[CopiedStatement]:
        """The pieces that bind ``name`` to what it stands for now."""
        if name == "__name__":
            return []
        if name.startswith("__"):
            raise NotSelfContained(f"it uses {name}")
        if name not in self.namespace:
            self.missing.add(name)
            return []
        if finds_again(self.module):
            return [self._import(f"from {self.module} import {name}")]
        value = self.namespace[name]
        binders = [found for found in self.statements if name in found.binds]
        return self._imports(name, binders) or [self._defined(name, value, binders)]

    def _imports(self, name: str, binders: list[Statement]) -> list[CopiedStatement]:
        if not all(isinstance(found.node, ast.Import | ast.ImportFrom) for found in binders):
            return []
        lines = (line for found in binders for bound, line in single_imports(found.text) if bound == name)
        return [self._import(line) for line in dict.fromkeys(lines)]

    def _import(self, line: str) -> CopiedStatement:
        (statement,) = read_statements(line, "<import>")
        _check_imports(statement)
        return CopiedStatement((0, int(any(map(is_foreign, statement.imported))), 0), line)

    def _defined(self, name: str, value: Any, binders: list[Statement]) -> CopiedStatement:
        definitions = [found for found in binders if isinstance(found.node, ast.FunctionDef | ast.ClassDef)]
        if definitions and definitions[-1] is binders[-1]:
            return self._piece(_definition_of(value, definitions))
        if len(binders) == 1 and is_assignment(binders[0].node):
            return self._assignment(name, value, binders[0])
        if len(binders) == 1 and isinstance(binders[0].node, ast.If | ast.Try) and is_calm(binders[0].node):
            return self._piece(binders[0])
        return self._value(name, value, binders)

    def _assignment(self, name: str, value: Any, statement: Statement) -> CopiedStatement:
        """A constant as the source has it while that is still its value, or as it is now; else a calm call."""
        node: Any = statement.node
        in_source = literal_in_source(node.value)
        literal = short_literal(value)
        # what a list has collected since is the program's doing; it starts as written
        starts_as_written = isinstance(value, list | dict | set) or literal is None or in_source == value
        if in_source is not NO_LITERAL and starts_as_written:
            return self._piece(statement)
        if literal is not None:
            return self._value(name, value, [statement])
        if is_heavy(value):
            raise NotSelfContained(f"{name} is a {type(value).__qualname__}")
        used = statement.needs_now & OUTSIDE_WORLD
        if used:
            raise NotSelfContained(f"{name} was made with {', '.join(sorted(used))}")
        return self._piece(statement)

    def _value(self, name: str, value: Any, binders: list[Statement]) -> CopiedStatement:
        """A name without one plain statement (star import, loop, several assignments): by what it stands for."""
        if isinstance(value, types.ModuleType):
            return self._import(f"import {value.__name__} as {name}")
        literal = short_literal(value)
        if literal is not None:
            order = self._order(binders[-1]) if binders else (1, 0, 0)
            return CopiedStatement(order, f"{name} = {literal}  # its value when this failed")
        location = location_of(value)
        if location is not None and location.path == location.first and finds_again(location.module):
            renamed = "" if location.path == name else f" as {name}"
            return self._import(f"from {location.module} import {location.path}{renamed}")
        raise NotSelfContained(f"{name} has no single definition that could be copied")

    def _piece(self, statement: Statement) -> CopiedStatement:
        _check_imports(statement)
        return CopiedStatement(self._order(statement), without_registration(statement))

    def _order(self, statement: Statement) -> tuple[int, int, int]:
        known = statement.file in self._files
        return (1, self._files.index(statement.file) if known else len(self._files), statement.line)


def _check_imports(statement: Statement) -> None:
    for module in statement.imported:
        if module.startswith("."):
            raise NotSelfContained(f"it imports {module}, relative to its package")
        if module.partition(".")[0] == "minidbg":
            raise NotSelfContained("it uses minidbg itself")


def _definition_of(value: Any, definitions: list[Statement]) -> Statement:
    """The statement that made ``value``, where a name was defined more than once; else the last."""
    code = getattr(inspect.unwrap(value) if callable(value) else value, "__code__", None)
    for found in reversed(definitions):
        if code is not None and found.line == code.co_firstlineno and found.file == code.co_filename:
            return found
    return definitions[-1]
