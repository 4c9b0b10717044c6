"""From a ``BackendRef`` back to the backend, in this process or as a line of a script."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import linecache
import sys
import types
from collections.abc import Mapping
from typing import Any

import torch

from minidbg import torch_internals
from minidbg.backends.reference import NEEDS
from minidbg.backends.statements import ANNOTATIONS
from minidbg.core.errors import UnknownBackend
from minidbg.core.run_spec import BackendRef, CompilerFn


def named(backend: str) -> str | CompilerFn:
    """What a command line means by ``backend``: a registered name, or ``module:expression``.

    A name that nobody has registered is looked for again after the import of the package of that
    name, which registers it in most cases; ``package:name`` is a name that another package
    registers, and any other name comes back as it is. Raises ImportError and what the expression
    raises.
    """
    module, colon, name = backend.partition(":")
    if not colon:
        package = NEEDS.get(backend, backend)
        if (
            backend not in torch_internals.known_backends()
            and package.isidentifier()
            and importlib.util.find_spec(package)
        ):
            importlib.import_module(package)
        return backend
    imported = importlib.import_module(module)
    try:
        found: CompilerFn = eval(name, vars(imported))
    except (NameError, AttributeError):
        if name not in torch_internals.known_backends():
            raise
        return name
    return found


def compiler_fn(
    backend: str | CompilerFn, *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> CompilerFn:
    """``backend`` as ``torch.compile(backend=, options=, mode=)`` has it: ``(gm, example_inputs)``.

    Inductor by name takes options and mode as config patches; every other backend as keyword
    arguments, and only when given. An object that torch.compile itself has built is taken apart
    first. Raises UnknownBackend, or RuntimeError for an option that inductor does not know.
    """
    inner, inner_options, inner_mode = torch_internals.as_given_to_compile(backend)
    if isinstance(inner, str) and inner not in (known := torch_internals.known_backends()):
        raise UnknownBackend(inner, known)
    return torch_internals.configured_backend(
        inner, options=options or inner_options, mode=mode or inner_mode
    )


def hook(compiler: CompilerFn, name: str) -> Any:
    """What torch.compile asks of a backend beside the call, of the one behind its keyword
    arguments; None where it has none."""
    inner: Any = compiler
    # functools.partial holds the keyword arguments
    while isinstance(inner, functools.partial) and not hasattr(inner, name):
        inner = inner.func
    return getattr(inner, name, None)


def resolve(ref: BackendRef) -> str | CompilerFn:
    """What ``torch.compile(backend=)`` takes, after the reference's setup and definitions run here.

    ``ref.paths`` go last in ``sys.path``. Raises what the setup raises, ImportError above all.
    """
    made: str | CompilerFn = eval(compile(ref.expression, "<backend>", "eval"), namespace_of(ref))
    return made


def namespace_of(ref: BackendRef) -> dict[str, Any]:
    """The globals of a module in which setup and copied source have run, once per process:
    operators are defined only once.

    The module's name is one that signatures take for a script's.
    """
    sys.path.extend(folder for folder in ref.paths if folder not in sys.path)
    # annotations as text, as in a script: they may name imports for a type checker alone
    text = "\n\n".join([ANNOTATIONS, *ref.setup, ref.embedded])
    name = f"minidbg_backend_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    loaded = sys.modules.get(name)
    return vars(loaded) if loaded is not None else run_as_module(name, text, torch=torch)


def run_as_module(name: str, text: str, /, **known: Any) -> dict[str, Any]:
    """The globals of a new module in which ``text`` has run; dynamo looks for it by its name,
    tracebacks for its lines."""
    module = sys.modules[name] = types.ModuleType(name)
    namespace = vars(module)
    namespace.update(known, __name__=name)
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    try:
        exec(compile(text, file, "exec", dont_inherit=True), namespace)  # without our __future__
    except BaseException:
        del sys.modules[name]
        raise
    return namespace


def assignment(ref: BackendRef) -> str:
    """``backend = EXPR`` as a script has it; nothing where a copied definition has that name."""
    if ref.expression == "backend":
        return ""
    text = ref.expression
    if text.startswith("'") and text.endswith("'") and not set(text[1:-1]) & set("'\"\\"):
        text = f'"{text[1:-1]}"'
    return f"backend = {text}" + (
        f"  # fill in: {ref.missing_backend}" if ref.lacks_backend and ref.missing_backend else ""
    )
