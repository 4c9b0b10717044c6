"""``find``: from what was wrapped, and what the user says of it, to how a fresh process gets it back."""

from __future__ import annotations

import ast
import functools
import inspect
import operator
import pkgutil
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

from minidbg import torch_internals
from minidbg.backends.locations import NEEDS, entry_point, import_for, location_of, registering_module
from minidbg.backends.ref_builder import NotReferable, RefBuilder, expression_for
from minidbg.python_text.modules import finds_again, is_foreign
from minidbg.python_text.source_text import read_statements
from minidbg.words.errors import BackendUnreachable, NothingLeadsThere, UnknownBackend
from minidbg.words.literals import NotALiteral, write_literal
from minidbg.words.run_spec import BackendRef, CompilerFn

_WRITE = 'write "pkg.mod:name", "pkg.mod:make(level=2)" with literal arguments, or a registered name'


def as_statements(setup: str | Sequence[str] | None) -> tuple[str, ...]:
    """``setup`` as a tuple of texts, each of which compiles. Raises BackendUnreachable when one does not."""
    statements = (setup,) if isinstance(setup, str) else tuple(setup or ())
    for statement in statements:
        try:
            compile(statement, "<setup>", "exec")
        except (SyntaxError, ValueError) as error:
            raise BackendUnreachable(f"setup={statement!r} is not Python: {error}") from None
    return statements


def given_reference(
    reference: str, backend: str | CompilerFn, statements: Sequence[str], builder: RefBuilder
) -> tuple[str, str]:
    """Name and expression that ``reference`` stands for. Raises BackendUnreachable when it cannot be right."""
    module, colon, rest = reference.partition(":")
    if not colon:
        if not reference.strip() or any(char in reference for char in "()"):
            raise BackendUnreachable(f"reference={reference!r} names no backend; {_WRITE}")
        return reference, repr(reference)
    path, call = _parsed(reference, module, rest)
    found = _looked_up(reference, module, path, statements)
    name = builder.import_from(module, path.partition(".")[0])
    if not call and found is not None and found is not backend and _is_factory(found):
        call = "()"
    return f"{module}.{path}", name + path.removeprefix(path.partition(".")[0]) + call


def _parsed(reference: str, module: str, rest: str) -> tuple[str, str]:
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
    try:
        return pkgutil.resolve_name(f"{module}:{path}")
    except (ImportError, AttributeError) as error:
        if statements:
            return None
        raise BackendUnreachable(f"reference={reference!r} leads nowhere here: {error}") from error


def _is_factory(found: Any) -> bool:
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
    inner, inner_options, inner_mode = torch_internals.as_given_to_compile(backend)
    options, mode = options or inner_options or {}, mode or inner_mode
    statements = as_statements(setup)
    builder = RefBuilder()
    for statement in statements:
        builder.setup[statement] = None
        for found in read_statements(statement, "<setup>"):
            for module in filter(is_foreign, found.imported):
                builder.uses(module)
    name, expression = _expression(inner, statements, reference, builder)
    check_options(options, name)
    return builder.reference(name, expression, options, mode)


def _expression(
    backend: str | CompilerFn, statements: Sequence[str], reference: str | None, builder: RefBuilder
) -> tuple[str, str]:
    if reference is not None:
        return given_reference(reference, backend, statements, builder)
    if isinstance(backend, str):
        return backend, _registered(backend, statements, builder)
    if names := torch_internals.names_of_backend(backend):
        return names[0], _registered(names[0], statements, builder)
    try:
        expression = expression_for(backend, builder)
    except NotReferable as error:
        raise unreachable(backend, error, f"the backend {name_of(backend)}") from error
    return name_of(backend), expression


def is_nameless(backend: object) -> bool:
    """Whether its kind is all that ``backend`` says of itself, and that kind is none of the user's own."""
    is_named = isinstance(backend, types.MethodType | types.FunctionType | type | functools.partial)
    return not is_named and not is_foreign(type(backend).__module__)


def innermost(backend: Any) -> Any:
    # by its kind: a mock has every attribute, and ``func`` of that has too
    while isinstance(backend, functools.partial):
        backend = backend.func
    return backend


def name_of(backend: CompilerFn) -> str:
    """What a person calls it: ``my_pkg.mod.my_backend``, ``my_pkg.Compiler``, ``aot_autograd(fw_compiler=my_compiler)``."""
    location = location_of(backend) if is_nameless(backend) else None
    if location is not None:
        return f"{location.module}.{location.path}".removeprefix("__main__.")
    inner = innermost(backend)
    compiler = (torch_internals.aot_autograd_arguments(inner) or {}).get("fw_compiler")
    if compiler is not None:
        return f"aot_autograd(fw_compiler={name_of(compiler)})"
    owner = inner if isinstance(inner, types.MethodType | types.FunctionType | type) else type(inner)
    module = "" if owner.__module__ in ("__main__", None) else owner.__module__ + "."
    return f"{module}{owner.__qualname__}".replace("<locals>.", "").replace("<lambda>", "lambda")


def _registered(name: str, statements: Sequence[str], builder: RefBuilder) -> str:
    """The expression for a registered name, mostly the name itself after the import that registers it."""
    compiler_fn = _look_up(name, statements)
    declared = entry_point(name)
    if declared is not None and _is_loaded_from(declared.module, compiler_fn, declared.attr):
        builder.import_module(declared.module, f'entry point "{name}"')
        return repr(name)
    defined = getattr(compiler_fn, "__module__", None) or ""
    module = registering_module(name, defined)
    if module is not None and module.partition(".")[0] == "torch":
        builder.uses("torch")
        if name in NEEDS:
            builder.import_module(NEEDS[name], f'"{name}" is built on it')
        return repr(name)
    if module is not None and finds_again(module):
        builder.import_module(import_for(module), f'registers "{name}"')
        return repr(name)
    return _by_itself(name, compiler_fn, defined, statements, builder)


def _by_itself(
    name: str, compiler_fn: CompilerFn, defined: str, statements: Sequence[str], builder: RefBuilder
) -> str:
    """Nothing says which import registers ``name``: the function itself then, or the user's setup."""
    if statements:
        return repr(name)
    try:
        return expression_for(compiler_fn, builder)
    except NotReferable as error:
        if is_foreign(defined) and finds_again(defined):
            builder.import_module(defined, f'defines "{name}"')
            return repr(name)
        raise unreachable(compiler_fn, error, f"the backend {name!r}") from error


def _look_up(name: str, statements: Sequence[str]) -> CompilerFn:
    if name not in torch_internals.known_backends():
        for statement in statements:  # it registers the name that was asked for
            code = compile(statement, "<setup>", "exec", dont_inherit=True)
            exec(code, {"__name__": "minidbg_setup"})
    if name not in (known := torch_internals.known_backends()):
        raise UnknownBackend(name, known)
    return torch_internals.registered_backend(name)


def _is_loaded_from(module: str, compiler_fn: object, attribute: str) -> bool:
    try:
        return operator.attrgetter(attribute)(sys.modules[module]) is compiler_fn
    except (KeyError, AttributeError):
        return False


def unreachable(backend: object, error: NotReferable, what: str) -> NothingLeadsThere:
    return NothingLeadsThere(
        f"{what} cannot be found again by a fresh process: {error}. "
        f"Give it a global name in a module that can be imported, or say how to get it: "
        f'minidbg.wrap(backend, setup="import my_pkg", reference="{suggested(backend)}")'
    )


def suggested(backend: Any) -> str:
    inner = innermost(backend)
    module = getattr(inner, "__module__", None) or type(inner).__module__
    path = getattr(inner, "__qualname__", None)
    if not is_foreign(module):
        return "my_pkg.mod:factory"
    if path is None:
        return f"{module}:{type(inner).__qualname__}(...)"
    factory, local, _ = path.rpartition(".<locals>.")
    return f"{module}:{factory}(...)" if local else "my_pkg.mod:factory"


def check_options(options: Mapping[str, Any], name: str) -> None:
    """Raise BackendUnreachable for an option of the backend called ``name`` that is no literal."""
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
