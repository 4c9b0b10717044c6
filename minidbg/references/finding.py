"""``find``: from what was wrapped to how a fresh process gets it back."""

from __future__ import annotations

import functools
import operator
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

from minidbg import _torch
from minidbg.case import BackendRef, CompilerFn
from minidbg.errors import BackendUnreachable, UnknownBackend
from minidbg.references.given import as_statements, given_reference, imported_by, run_setup
from minidbg.references.homes import finds_again, is_foreign
from minidbg.references.literals import NotALiteral, write_literal
from minidbg.references.locating import NoWay, expression_for
from minidbg.references.places import place_of
from minidbg.references.registered import NEEDS, entry_point, import_for, registering_module
from minidbg.references.trail import Trail


def find(
    backend: str | CompilerFn,
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    setup: str | Sequence[str] | None = None,
    reference: str | None = None,
) -> BackendRef:
    """How a fresh process gets ``backend`` back, with its ``options`` and ``mode``.

    ``setup`` (statements) and ``reference`` (``"pkg.mod:name"``, ``"pkg.mod:make(level=2)"`` or a registered
    name) are the user's word and win over what would be found.

    Raises UnknownBackend for a name that nobody registered, BackendUnreachable where nothing importable leads
    to the backend or an option is no literal; its message says what to pass instead.
    """
    inner, inner_options, inner_mode = _torch.as_given_to_compile(backend)
    options, mode = options or inner_options or {}, mode or inner_mode
    statements = as_statements(setup)
    trail = Trail()
    for statement in statements:
        trail.setup[statement] = None
        for module in filter(is_foreign, imported_by(statement)):
            trail.uses(module)
    name, expression = _expression(inner, statements, reference, trail)
    _check_options(options, name)
    return trail.reference(name, expression, options, mode)


def _expression(
    backend: str | CompilerFn, statements: Sequence[str], reference: str | None, trail: Trail
) -> tuple[str, str]:
    """A name for people and the expression."""
    if reference is not None:
        return given_reference(reference, backend, statements, trail)
    if isinstance(backend, str):
        return backend, _registered(backend, statements, trail)
    names = _torch.names_of_backend(backend)
    if names:
        return names[0], _registered(names[0], statements, trail)
    expression = _located(backend, trail)
    place = place_of(backend) if is_nameless(backend) else None
    return f"{place.module}.{place.path}" if place else name_of(backend), expression


def is_nameless(backend: object) -> bool:
    """Whether ``name_of`` could only say what kind of object it is, and that kind is none of the user's own."""
    kind = type(backend)
    return not is_foreign(kind.__module__) and not isinstance(
        backend, types.MethodType | types.FunctionType | type | functools.partial
    )


def name_of(backend: CompilerFn) -> str:
    """What a person calls it: ``my_pkg.mod.my_backend``, ``my_pkg.Compiler``."""
    inner: Any = backend
    while hasattr(inner, "func"):  # functools.partial
        inner = inner.func
    owner = inner if isinstance(inner, types.MethodType | types.FunctionType | type) else type(inner)
    module = "" if owner.__module__ == "__main__" else owner.__module__ + "."
    return f"{module}{owner.__qualname__}".replace("<locals>.", "").replace("<lambda>", "lambda")


def _registered(name: str, statements: Sequence[str], trail: Trail) -> str:
    """The expression for a registered name, mostly the name itself after the import that registers it."""
    compiler_fn = _look_up(name, statements)
    declared = entry_point(name)
    if declared is not None and _is_loaded_from(declared.module, compiler_fn, declared.attr):
        trail.import_module(declared.module, f'entry point "{name}"')
        return repr(name)
    defined = getattr(compiler_fn, "__module__", None) or ""
    module = registering_module(name, defined)
    if module is not None and module.partition(".")[0] == "torch":
        trail.uses("torch")
        if name in NEEDS:
            trail.import_module(NEEDS[name], f'"{name}" is built on it')
        return repr(name)
    if module is not None and finds_again(module):
        trail.import_module(import_for(module), f'registers "{name}"')
        return repr(name)
    return _by_itself(name, compiler_fn, defined, statements, trail)


def _by_itself(
    name: str, compiler_fn: CompilerFn, defined: str, statements: Sequence[str], trail: Trail
) -> str:
    """Nothing says which import registers ``name``: the function itself then, or the user's setup."""
    if statements:
        return repr(name)
    try:
        return expression_for(compiler_fn, trail)
    except NoWay as error:
        if is_foreign(defined) and finds_again(defined):
            trail.import_module(defined, f'defines "{name}"')
            return repr(name)
        raise unreachable(compiler_fn, error, f"the backend {name!r}") from error


def _look_up(name: str, statements: Sequence[str]) -> CompilerFn:
    """The function behind ``name``; the user's setup is run when nobody has registered it yet."""
    if name not in _torch.known_backends() and statements:
        run_setup(statements)
    known = _torch.known_backends()
    if name not in known:
        raise UnknownBackend(name, known)
    return _torch.registered_backend(name)


def _is_loaded_from(module: str, compiler_fn: object, attribute: str) -> bool:
    try:
        return operator.attrgetter(attribute)(sys.modules[module]) is compiler_fn
    except (KeyError, AttributeError):
        return False


def _located(backend: CompilerFn, trail: Trail) -> str:
    try:
        return expression_for(backend, trail)
    except NoWay as error:
        raise unreachable(backend, error, f"the backend {name_of(backend)}") from error


def unreachable(backend: object, error: NoWay, what: str) -> BackendUnreachable:
    """The refusal: what cannot be found again, why, and the exact words that would help."""
    return BackendUnreachable(
        f"{what} cannot be found again by a fresh process: {error.why}. "
        f"Give it a global name in a module that can be imported, or say how to get it: "
        f'minidbg.wrap(backend, setup="import my_pkg", reference="{suggested(backend)}")'
    )


def suggested(backend: Any) -> str:
    """A reference string as the user might write it, from what is known about the backend."""
    inner = backend
    while hasattr(inner, "func"):
        inner = inner.func
    module = getattr(inner, "__module__", None) or type(inner).__module__
    path = getattr(inner, "__qualname__", None)
    if not is_foreign(module):
        return "my_pkg.mod:factory"
    if path is None:
        return f"{module}:{type(inner).__qualname__}(...)"
    factory, local, _ = path.rpartition(".<locals>.")
    return f"{module}:{factory}(...)" if local else "my_pkg.mod:factory"


def _check_options(options: Mapping[str, Any], name: str) -> None:
    for option, value in options.items():
        try:
            write_literal(value, f"[{option!r}]")
        except NotALiteral as error:
            raise BackendUnreachable(
                f"options{error.path} of backend {name} is no literal but a "
                f"{type(error.value).__module__}.{type(error.value).__qualname__}, so no script can hold it. "
                f"Write a function that returns the backend with this option set, and pass "
                f'minidbg.wrap(backend, setup="import my_pkg", reference="my_pkg.mod:factory()") without it'
            ) from None
