"""From what was wrapped and the user's word to how a fresh process gets it: ``find_reference``.

In this order: the user's word, a registered name, a location that an import reaches, its parts put
together anew, a copy of its source; or the reason why not.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import itertools
import os
import pkgutil
import re
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Any

from minidbg import torch_internals
from minidbg.backends import locations
from minidbg.backends.definitions import Copy, NotSelfContained
from minidbg.backends.locations import MAIN_MODULES, finds_again, is_foreign, location_of, top_level
from minidbg.backends.statements import read_statements, source_of
from minidbg.core.errors import BackendUnreachable, NothingLeadsThere, UnknownBackend
from minidbg.core.literals import NotALiteral, write_literal
from minidbg.core.run_spec import BackendRef, CompilerFn

WRITE = 'write "pkg.mod:name", "pkg.mod:make(level=2)" with literal arguments, or a registered name'
GROUP = "torch_dynamo_backends"
"""The entry point group in which torch looks for backends."""
NEEDS = {
    "openxla": "torch_xla",
    "openxla_eval": "torch_xla",
    "tvm": "tvm",
    "onnxrt": "onnxruntime",
    "tensorrt": "torch_tensorrt",
}
"""Backends of torch that import another package when they are first called."""
REGISTERS = re.compile(r"^@?[\w.]*register_\w*backend\b", re.MULTILINE)
"""A registration at the top level of a module; nobody need have called one in a function."""


class NotReferable(Exception):
    """No fresh process gets it back; the text is a clause: ``it is a closure over level``."""


class RefBuilder:
    """Imports and their surroundings, each once in order, while the parts of a backend are found.

    Names are given out so that two objects of one name from two modules stay apart.
    """

    def __init__(self, start: BackendRef) -> None:
        self._start = start
        self.setup: dict[str, None] = dict.fromkeys(start.setup)
        self.copied: Copy | None = None
        """What comes from ``__main__``."""
        self.remarks: dict[str, None] = dict.fromkeys(start.remarks)
        self._used: dict[str, None] = {}
        self._names: dict[str, tuple[str, str]] = {}

    def import_from(self, module: str, name: str) -> str:
        known, number = name, 1
        while self._names.setdefault(known, (module, name)) != (module, name):
            number += 1
            known = f"{name}_{number}"
        renamed = f" as {known}" if known != name else ""
        self.setup[f"from {module} import {name}{renamed}"] = None
        self.uses(module)
        return known

    def import_module(self, module: str, why: str = "") -> None:
        plain = f"import {module}"
        if not any(line == plain or line.startswith(plain + " ") for line in self.setup):
            self.setup[f"{plain}  # {why}" if why else plain] = None
        self.uses(module)

    def copy_of_main(self, file: str | None = None) -> Copy:
        self.copied = self.copied or Copy(file)
        return self.copied

    def uses(self, module: str) -> None:
        """``module`` is part of the backend: what it needs installed and what there is to watch."""
        if is_foreign(module) or top_level(module) == "torch":
            self._used[module] = None

    def reference(
        self, name: str, expression: str, options: Mapping[str, Any], mode: str | None
    ) -> BackendRef:
        embedded = self._copied_text()  # first: it may add imports
        needed = [locations.requirement_of(module) for module in self._used if is_foreign(module)]
        requirements, remarks, folders = zip(*needed, strict=True) if needed else ((), (), ())
        start = self._start
        return replace(
            start,
            name=name,
            expression=expression,
            embedded=embedded,
            setup=tuple(self.setup),
            paths=tuple(dict.fromkeys([*start.paths, *itertools.chain(*folders)])),
            options=dict(options),
            mode=mode,
            requirements=tuple(dict.fromkeys(filter(None, [*start.requirements, *requirements]))),
            remarks=tuple(dict.fromkeys(filter(None, [*self.remarks, *remarks]))),
            modules=tuple(dict.fromkeys([*start.modules, *map(top_level, self._used)])),
        )

    def _copied_text(self) -> str:
        before = self._start.embedded
        if self.copied is None:
            return before
        for module in sorted(filter(is_foreign, self.copied.imported(by_imports=False))):
            if module in sys.modules:  # else it was never imported, and may be absent
                self.import_module(module, "for a function of the copied source")
        for module in sorted(filter(is_foreign, self.copied.imported(by_imports=True))):
            self.uses(module)
        text = self.copied.text({found.text for found in read_statements(before, "<copy>")})
        return "\n\n\n".join(filter(None, [before, text]))


# --- one object ---


def expression_for(value: Any, builder: RefBuilder) -> str:
    """The expression for ``value``; what it needs goes on ``builder``, even on NotReferable."""
    location = location_of(value)
    if location is not None and finds_again(location.module):
        name = builder.import_from(location.module, location.first)
        return name + location.path.removeprefix(location.first)
    try:
        return _rebuilt(value, builder)
    except NotReferable as error:
        why = error
    try:
        expression = _embedded_text(value, location, builder)
    except NotSelfContained as error:
        raise NotReferable(f"its source cannot be copied: {error}") from error
    if not expression:
        raise why
    return expression


def _rebuilt(value: Any, builder: RefBuilder) -> str:
    if isinstance(value, types.MethodType):
        return f"{expression_for(value.__self__, builder)}.{value.__func__.__name__}"
    if isinstance(value, functools.partial):
        builder.setup["import functools"] = None
        function = expression_for(value.func, builder)
        return _call("functools.partial", value.args, value.keywords, builder, first=function)
    arguments = torch_internals.aot_autograd_arguments(value)
    if arguments is None:
        raise NotReferable(f"no global name holds it, {described(value)}")
    builder.setup["from torch._dynamo.backends.common import aot_autograd"] = None
    return _call("aot_autograd", (), arguments, builder)


def _embedded_text(value: Any, location: locations.Location | None, builder: RefBuilder) -> str:
    """The expression for a program's global or function in one that uses no locals; else empty."""
    module = getattr(value, "__module__", "") if location is None else location.module
    if module not in MAIN_MODULES:
        return ""
    copied = builder.copy_of_main(getattr(getattr(value, "__code__", None), "co_filename", None))
    if location is not None and copied.defines(location.first):
        copied.add_name(location.first)
        return location.path
    if (
        not isinstance(value, types.FunctionType)
        or value.__code__.co_freevars
        or value.__name__ == "<lambda>"
    ):
        return ""
    copied.add_function(value)
    path = [part for part in value.__qualname__.split(".") if part != "<locals>"]
    return path[0] + "()" * (len(path) - 1)


def _call(
    function: str,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    builder: RefBuilder,
    first: str | None = None,
) -> str:
    """``function(first, *arguments, **keywords)``, each argument a literal or a located object."""
    parts = [first] if first is not None else []
    parts += [_argument_text(value, index, builder) for index, value in enumerate(arguments)]
    named = [(name, _argument_text(value, name, builder)) for name, value in keywords.items()]
    if all(name.isidentifier() for name, _ in named):
        parts += [f"{name}={text}" for name, text in named]
    else:
        parts.append("**{" + ", ".join(f"{name!r}: {text}" for name, text in named) + "}")
    return f"{function}({', '.join(parts)})"


def _argument_text(value: object, place: int | str, builder: RefBuilder) -> str:
    try:
        return write_literal(value)
    except NotALiteral as error:
        if not callable(value):
            raise NotReferable(f"argument {place!r} is not a literal: {error}") from None
    try:
        return expression_for(value, builder)
    except NotReferable as error:
        raise NotReferable(f"argument {place!r} cannot be found again: {error}") from None


# --- a backend ---


def find_reference(
    backend: str | CompilerFn,
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    setup: str | Sequence[str] | None = None,
    reference: str | None = None,
) -> BackendRef:
    """How a fresh process gets ``backend`` back, with its ``options`` and ``mode``.

    ``setup`` (statements) and ``reference`` (``"pkg.mod:name"``, ``"pkg.mod:make(level=2)"`` or a
    registered name) are the user's word and win over what would be found.

    Raises UnknownBackend for an unregistered name, BackendUnreachable when nothing importable leads
    to the backend or an option is not a literal; its message says what to pass instead.
    """
    inner, inner_options, inner_mode = torch_internals.as_given_to_compile(backend)
    options, mode = options or inner_options or {}, mode or inner_mode
    statements = as_statements(setup)
    builder = RefBuilder(BackendRef("", "", setup=statements))
    parts = (read_statements(text, "<setup>") for text in statements)
    for statement in itertools.chain(*parts):
        for module in filter(is_foreign, statement.imported):
            builder.uses(module)
    name, expression = _expression(inner, statements, reference, builder)
    check_option_values(options, name)
    return builder.reference(name, expression, options, mode)


def as_statements(setup: str | Sequence[str] | None) -> tuple[str, ...]:
    """``setup`` as a tuple of texts that compile. Raises BackendUnreachable when one does not."""
    statements = (setup,) if isinstance(setup, str) else tuple(setup or ())
    for statement in statements:
        try:
            compile(statement, "<setup>", "exec")
        except (SyntaxError, ValueError) as error:
            raise BackendUnreachable(f"setup={statement!r} is not Python: {error}") from None
    return statements


def _expression(
    inner: str | CompilerFn, setup: Sequence[str], reference: str | None, builder: RefBuilder
) -> tuple[str, str]:
    if reference is not None:
        return given_reference(reference, setup, builder)
    names = [inner] if isinstance(inner, str) else torch_internals.names_of_backend(inner)
    name = names[0] if names else backend_name(inner)  # type: ignore[arg-type]  # no text
    try:
        return name, _registered(name, setup, builder) if names else expression_for(inner, builder)
    except NotReferable as error:
        raise NothingLeadsThere(
            f"the backend {repr(name) if names else name} cannot be found again by a fresh process:"
            f" {error}. Give it a global name in a module that can be imported, or say how to "
            'get it: minidbg.wrap(backend, setup="import my_pkg", reference="my_pkg.mod:factory()")'
        ) from error


def given_reference(reference: str, setup: Sequence[str], builder: RefBuilder) -> tuple[str, str]:
    """Name and expression of ``reference``. Raises BackendUnreachable when it cannot be right."""
    what = f"reference={reference!r}"
    if ":" not in reference:
        if not reference.strip() or any(char in reference for char in "()"):
            raise BackendUnreachable(f"{what} names no backend; {WRITE}")
        return reference, repr(reference)
    parts = re.fullmatch(r"((?:\w+\.)*\w+):((?:\w+\.)*\w+)(\(.*\))?", reference.strip(), re.DOTALL)
    module, path, call = parts.groups(default="") if parts else ("", "", "(")
    try:
        made = ast.parse(f"call{call}", mode="eval").body
        for value in (*made.args, *made.keywords) if isinstance(made, ast.Call) else ():
            ast.literal_eval(value.value if isinstance(value, ast.keyword) else value)
        call = ast.unparse(made).removeprefix("call")
    except (SyntaxError, ValueError) as error:
        raise BackendUnreachable(f"{what} cannot be read ({error}); {WRITE}") from None
    try:
        pkgutil.resolve_name(f"{module}:{path}")
    except (ImportError, AttributeError) as error:
        if not setup:
            raise BackendUnreachable(f"{what} cannot be imported here: {error}") from error
    first = path.partition(".")[0]
    name = builder.import_from(module, first)
    return f"{module}.{path}", name + path.removeprefix(first) + call


def _registered(name: str, setup: Sequence[str], builder: RefBuilder) -> str:
    """For a registered name: that name after the import that registers it, or else the function."""
    compiler_fn = _look_up(name, setup)
    declared = next(iter(entry_points(group=GROUP, name=name)), None)
    if declared is not None:
        builder.import_module(declared.module, f'entry point "{name}"')
        return repr(name)
    defined = getattr(made_by(compiler_fn), "__module__", None) or ""
    if top_level(defined) == "torch":
        builder.uses("torch")
        if name in NEEDS:
            builder.import_module(NEEDS[name], f'"{name}" is built on it')
        return repr(name)
    if is_foreign(defined) and finds_again(defined):
        # an import of a.b.c runs a and a.b as well
        for module in itertools.accumulate(defined.split("."), "{}.{}".format):
            if name in (text := source_of(module)) and REGISTERS.search(text):
                builder.import_module(module, f'registers "{name}"')
                return repr(name)
    if setup:
        return repr(name)
    try:
        return expression_for(compiler_fn, builder)
    except NotReferable:
        if not (is_foreign(defined) and finds_again(defined)):
            raise
        builder.import_module(defined, f'defines "{name}"')
        return repr(name)


def _look_up(name: str, setup: Sequence[str]) -> CompilerFn:
    if name not in torch_internals.known_backends():
        for statement in setup:  # it registers the name that was asked for
            code = compile(statement, "<setup>", "exec", dont_inherit=True)
            exec(code, {"__name__": "minidbg_setup"})
    if name not in (known := torch_internals.known_backends()):
        raise UnknownBackend(name, known)
    return torch_internals.registered_backend(name)


def made_by(backend: Any) -> Any:
    """The function under what torch and Python put around one: partials, ``aot_autograd``."""
    inner = innermost(backend)
    compiler = (torch_internals.aot_autograd_arguments(inner) or {}).get("fw_compiler")
    return inner if compiler is None else made_by(compiler)


# --- what a person is told ---


def innermost(backend: Any) -> Any:
    # by its kind: a mock has every attribute, and ``func`` of that has too
    while isinstance(backend, functools.partial):
        backend = backend.func
    return backend


def backend_name(backend: CompilerFn) -> str:
    """What a person calls it: ``my_pkg.mod.my_backend``, ``my_pkg.Compiler``,
    ``aot_autograd(fw_compiler=my_compiler)``."""
    inner = innermost(backend)
    is_named = isinstance(inner, types.MethodType | types.FunctionType | type)
    owner = inner if is_named else type(inner)
    if not is_named and not is_foreign(owner.__module__) and (found := location_of(backend)):
        return f"{found.module}.{found.path}".removeprefix("__main__.")
    compiler = (torch_internals.aot_autograd_arguments(inner) or {}).get("fw_compiler")
    if compiler is not None:
        return f"aot_autograd(fw_compiler={backend_name(compiler)})"
    module = "" if owner.__module__ in ("__main__", None) else owner.__module__ + "."
    return f"{module}{owner.__qualname__}".replace("<locals>.", "").replace("<lambda>", "lambda")


def described(backend: Any) -> str:
    """The kind of object and where it was defined, as far as known: ``a closure of train.py:4``."""
    if isinstance(backend, functools.partial):
        return f"a functools.partial of {described(backend.func)}"
    if isinstance(backend, types.MethodType):
        return f"the method {backend.__func__.__name__} of {described(backend.__self__)}"
    compiler = (torch_internals.aot_autograd_arguments(backend) or {}).get("fw_compiler")
    if compiler is not None:
        return f"aot_autograd over {described(compiler)}"
    if isinstance(backend, types.FunctionType):
        code, is_lambda = backend.__code__, backend.__name__ == "<lambda>"
        kind = "closure" if code.co_freevars else "lambda" if is_lambda else "function"
        return f"a {kind} of {os.path.basename(code.co_filename)}:{code.co_firstlineno}"
    owner = type(backend)
    where = owner.__module__
    with contextlib.suppress(OSError, TypeError):
        file = inspect.getsourcefile(owner) or inspect.getfile(owner)
        where = f"{os.path.basename(file)}:{inspect.findsource(owner)[1] + 1}"
    return f"an object of the class {owner.__qualname__} of {where}"


def check_option_values(options: Mapping[str, Any], name: str) -> None:
    """Raise BackendUnreachable for an option of backend ``name`` that is not a literal."""
    try:
        write_literal(dict(options), "options")
    except NotALiteral as error:
        raise BackendUnreachable(
            f"{error.path} of backend {name} is not a literal but a {type(error.value).__module__}."
            f"{type(error.value).__qualname__}, so no script can hold it. Write a function that "
            f"returns the backend with this option set, and pass minidbg.wrap(backend, "
            f'setup="import my_pkg", reference="my_pkg.mod:factory()") without it'
        ) from None
