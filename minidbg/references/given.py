"""What the user says about a backend: ``setup`` statements and a ``reference``."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Sequence
from typing import Any

from minidbg.case import CompilerFn
from minidbg.errors import BackendUnreachable
from minidbg.references.statements import read_statements
from minidbg.references.trail import Trail

_WRITE = 'write "pkg.mod:name", "pkg.mod:make(level=2)" with literal arguments, or a registered name'


def as_statements(setup: str | Sequence[str] | None) -> tuple[str, ...]:
    """``setup`` as a tuple of texts, each of which compiles. Raises BackendUnreachable when one does not."""
    if setup is None:
        return ()
    statements = (setup,) if isinstance(setup, str) else tuple(setup)
    for statement in statements:
        try:
            compile(statement, "<setup>", "exec")
        except (SyntaxError, ValueError) as error:
            raise BackendUnreachable(f"setup={statement!r} is not Python: {error}") from None
    return statements


def imported_by(statement: str) -> tuple[str, ...]:
    """The modules that a text imports at its top level."""
    return tuple(name for found in read_statements(statement, "<setup>") for name in found.imported)


def run_setup(statements: Sequence[str]) -> None:
    """Run the user's setup in this process: it registers the name that was asked for."""
    for statement in statements:
        exec(compile(statement, "<setup>", "exec"), {"__name__": "minidbg_setup"})


def given_reference(
    reference: str, backend: str | CompilerFn, statements: Sequence[str], trail: Trail
) -> tuple[str, str]:
    """Name and expression that ``reference`` stands for. Raises BackendUnreachable when it cannot be right."""
    module, colon, rest = reference.partition(":")
    if not colon:
        if not reference.strip() or any(char in reference for char in "()"):
            raise BackendUnreachable(f"reference={reference!r} names no backend; {_WRITE}")
        return reference, repr(reference)
    path, call = _parsed(reference, module, rest)
    found = _looked_up(reference, module, path, statements)
    name = trail.import_from(module, path.partition(".")[0])
    if not call and found is not None and found is not backend and _is_factory(found):
        call = "()"
    return f"{module}.{path}", name + path.removeprefix(path.partition(".")[0]) + call


def _parsed(reference: str, module: str, rest: str) -> tuple[str, str]:
    """The dotted path and the call, ``""`` or ``"(level=2)"``, of the part after the colon."""
    try:
        tree = ast.parse(rest.strip(), mode="eval").body
        call = ""
        if isinstance(tree, ast.Call):
            for value in (*tree.args, *(keyword.value for keyword in tree.keywords)):
                ast.literal_eval(value)
            function = ast.unparse(tree.func)
            call = ast.unparse(tree).removeprefix(function)
            tree = tree.func
        path = ast.unparse(tree)
    except (SyntaxError, ValueError) as error:
        raise BackendUnreachable(f"reference={reference!r} cannot be read ({error}); {_WRITE}") from None
    if not all(part.isidentifier() for part in (*module.split("."), *path.split("."))):
        raise BackendUnreachable(f"reference={reference!r} cannot be read; {_WRITE}")
    return path, call


def _looked_up(reference: str, module: str, path: str, statements: Sequence[str]) -> Any:
    """What ``module:path`` is here; None when only the user's setup makes it importable."""
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        if statements:
            return None
        raise BackendUnreachable(f"reference={reference!r} leads nowhere here: {error}") from error
    return found


def _is_factory(found: Any) -> bool:
    """Whether ``found`` can be called with nothing but not with a graph and its inputs."""
    try:
        signature = inspect.signature(found)
        signature.bind()
    except (TypeError, ValueError):
        return False
    try:
        signature.bind(None, None)
    except TypeError:
        return True
    return False
