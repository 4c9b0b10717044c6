"""Source that no import reaches, copied out of a script or a session together with all that it uses."""

from __future__ import annotations

import ast
import builtins
import inspect
import os
import textwrap
import types
from collections.abc import Mapping, Sequence
from typing import Any

from minidbg.references.homes import finds_again, is_foreign, loaded_module
from minidbg.references.layout import indented, joined
from minidbg.references.pieces import (
    NO_LITERAL,
    OUTSIDE_WORLD,
    NotSelfContained,
    Piece,
    bound_by,
    is_assignment,
    is_calm,
    is_heavy,
    literal_in_source,
    one_import,
    short_literal,
    without_registration,
)
from minidbg.references.places import place_of
from minidbg.references.statements import Statement, read_statements, statements_of


class Copy:
    """Statements of one module that hold certain names, and everything that these use, transitively.

    Each ``add_`` method raises NotSelfContained and then leaves the copy as it was.
    ``file`` is the ``co_filename`` of a function of a module that has no file.
    """

    def __init__(self, module: str, file: str | None = None) -> None:
        self.module = module
        self.pieces: dict[str, Piece] = {}
        self.missing: set[str] = set()
        """Names that a function looks up and that did not exist yet when the failure came."""
        self.statements = statements_of(module, file)
        self._files = list(dict.fromkeys(found.file for found in self.statements))

    @property
    def namespace(self) -> Mapping[str, Any]:
        """What the module's names stand for now."""
        return vars(loaded_module(self.module))

    @property
    def title(self) -> str:
        """A comment that says where it was copied from."""
        file = getattr(loaded_module(self.module), "__file__", None)
        return f"# Copied from {os.path.basename(file)}." if file else "# Copied from an interactive session."

    def defines(self, name: str) -> bool:
        """Whether a statement gives ``name`` its value; a loop or a ``with`` only lends it."""
        lenders = (ast.For, ast.AsyncFor, ast.With, ast.AsyncWith, ast.While)
        return any(name in found.binds and not isinstance(found.node, lenders) for found in self.statements)

    def add_name(self, name: str) -> None:
        """Copy what the global ``name`` stands for."""
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
        self._add([Piece((2, 0, 0), text)])  # last: it may use all the others

    def add_operators(self, names: Sequence[str], statements: Sequence[Statement]) -> None:
        """Copy the statements that define the operators ``ns::name``.

        They run only where the first of these is not there yet: pytest may load several scripts in one process.
        """
        namespace, _, name = names[0].partition(".")[0].partition("::")
        parts = [self._piece(statement) for statement in statements]
        body = indented(joined([part.text for part in parts], gap=1))
        guard = f"if not hasattr(torch.ops.{namespace}, {name!r}):"
        self._add([Piece(parts[-1].order, f"{guard}\n{body}"), self._import("import torch")])

    def _add(self, first: list[Piece]) -> None:
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

    def _for_name(self, name: str) -> list[Piece]:
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

    def _imports(self, name: str, binders: list[Statement]) -> list[Piece]:
        """The import statements of a name that nothing else binds."""
        lines: dict[str, None] = {}
        for found in binders:
            if not isinstance(found.node, ast.Import | ast.ImportFrom):
                return []
            lines |= {
                one_import(found.node, alias): None for alias in found.node.names if bound_by(alias) == name
            }
        return [self._import(line) for line in lines]

    def _import(self, line: str) -> Piece:
        (statement,) = read_statements(line, "<import>")
        _check_imports(statement)
        return Piece((0, int(any(map(is_foreign, statement.imported))), 0), line)

    def _defined(self, name: str, value: Any, binders: list[Statement]) -> Piece:
        definitions = [found for found in binders if isinstance(found.node, ast.FunctionDef | ast.ClassDef)]
        if definitions and definitions[-1] is binders[-1]:
            return self._piece(_definition_of(value, definitions))
        if len(binders) == 1 and is_assignment(binders[0].node):
            return self._assignment(name, value, binders[0])
        if len(binders) == 1 and isinstance(binders[0].node, ast.If | ast.Try) and is_calm(binders[0].node):
            return self._piece(binders[0])
        return self._value(name, value, binders)

    def _assignment(self, name: str, value: Any, statement: Statement) -> Piece:
        """A constant as the source has it while that is still its value, or as it is now; else a calm call."""
        node: Any = statement.node
        in_source = literal_in_source(node.value)
        literal = short_literal(value)
        # what a list has collected since is the program's doing; it starts as written
        starts_as_written = isinstance(value, list | dict | set) or literal is None or in_source == value
        if in_source is not NO_LITERAL and starts_as_written:
            return self._piece(statement)
        if literal is not None:
            return Piece(self._order(statement), f"{name} = {literal}  # its value when this failed")
        if is_heavy(value):
            raise NotSelfContained(f"{name} is a {type(value).__qualname__}")
        used = statement.needs_now & OUTSIDE_WORLD
        if used:
            raise NotSelfContained(f"{name} was made with {', '.join(sorted(used))}")
        return self._piece(statement)

    def _value(self, name: str, value: Any, binders: list[Statement]) -> Piece:
        """A name without one plain statement (star import, loop, several assignments): by what it stands for."""
        if isinstance(value, types.ModuleType):
            return self._import(f"import {value.__name__} as {name}")
        literal = short_literal(value)
        if literal is not None:
            order = self._order(binders[-1]) if binders else (1, 0, 0)
            return Piece(order, f"{name} = {literal}  # its value when this failed")
        place = place_of(value)
        if place is not None and place.path == place.first and finds_again(place.module):
            renamed = "" if place.path == name else f" as {name}"
            return self._import(f"from {place.module} import {place.path}{renamed}")
        raise NotSelfContained(f"{name} has no single definition that could be copied")

    def _piece(self, statement: Statement) -> Piece:
        _check_imports(statement)
        return Piece(self._order(statement), without_registration(statement))

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
