"""From a ``BackendRef`` back to the backend: in this process, or as the text of a script's ``backend()``."""

from __future__ import annotations

import hashlib
import linecache
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from minidbg import _torch
from minidbg.case import BackendRef, CompilerFn
from minidbg.errors import UnknownBackend
from minidbg.references.source_text import indented

if TYPE_CHECKING:
    from types import ModuleType


# Its source text is part of repro scripts, where ModuleType is no name.
def load_by_path(path: str, name: str = "", package: str = "") -> "ModuleType":  # noqa: UP037
    """The module of the script at ``path``, loaded once per process; its ``__main__`` block does not run.

    ``package`` is what its relative imports start from. Its folder joins the end of ``sys.path``.
    Raises ModuleNotFoundError when the file is not here.
    """
    import hashlib
    import importlib.util
    import os
    import re
    import sys

    stem = re.sub(r"\W", "_", os.path.splitext(os.path.basename(path))[0])
    name = name or f"{stem}_{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    main = sys.modules["__main__"]
    if os.path.abspath(getattr(main, "__file__", None) or "") == path:
        return main
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not os.path.isfile(path):
        raise ModuleNotFoundError(f"no script at {path}", name=stem, path=path)
    if os.path.dirname(path) not in sys.path:
        sys.path.append(os.path.dirname(path))
    module = importlib.util.module_from_spec(spec)
    if package:
        importlib.import_module(package)
        module.__package__, module.__spec__ = package, None
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def compiler_fn(
    backend: str | CompilerFn, *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> CompilerFn:
    """``backend`` as ``torch.compile(backend=, options=, mode=)`` would build it: ``(gm, example_inputs)``.

    Inductor by name takes options and mode as config patches; every other backend as keyword arguments, and
    only when given. An object that torch.compile itself has built is taken apart first.
    Raises UnknownBackend, or RuntimeError for an option that inductor does not know.
    """
    inner, inner_options, inner_mode = _torch.as_given_to_compile(backend)
    if isinstance(inner, str) and inner not in (known := _torch.known_backends()):
        raise UnknownBackend(inner, known)
    return _torch.configured_backend(inner, options=options or inner_options, mode=mode or inner_mode)


@dataclass(frozen=True, slots=True)
class Hooks:
    """What torch.compile asks of a backend beside the call; None where the backend does not have it."""

    reset: Callable[[], Any] | None = None
    get_compiler_config: Callable[[], Any] | None = None


def hooks(compiler: CompilerFn) -> Hooks:
    """The hooks of what ``compiler_fn`` returned, of the backend behind its keyword arguments."""
    inner: Any = compiler
    while hasattr(inner, "func") and not hasattr(
        inner, "reset"
    ):  # functools.partial holds the keyword arguments
        inner = inner.func
    return Hooks(getattr(inner, "reset", None), getattr(inner, "get_compiler_config", None))


def resolve(ref: BackendRef) -> str | CompilerFn:
    """What ``torch.compile(backend=)`` takes, after the reference's setup has run in this process.

    The folders of ``ref.paths`` join ``sys.path`` only when an import finds no module without them.
    Raises what the setup raises, ImportError above all.
    """
    try:
        module = _set_up(ref)
    except ImportError:
        missing = [folder for folder in ref.paths if folder not in sys.path]
        if not missing:
            raise
        sys.path.extend(missing)
        module = _set_up(ref)
    backend: str | CompilerFn = eval(compile(ref.expression, "<backend>", "eval"), module.__dict__)
    return backend


def _set_up(ref: BackendRef) -> types.ModuleType:
    """A module in which copied source and setup have run, once per process: operators are defined only once.

    Its name is one that signatures take for a script's.
    """
    _, statements = _statements(ref)
    text = "\n\n".join(part for part in (ref.embedded, *statements) if part)
    name = f"minidbg_backend_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    known = sys.modules.get(name)
    if known is not None:
        return known
    module = types.ModuleType(name)
    module.__dict__.update(load_by_path=load_by_path, torch=torch)  # what a script has above its backend()
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    sys.modules[name] = module
    try:
        exec(compile(text, file, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def backend_function(ref: BackendRef) -> str:
    """Source text of ``def backend()`` for the script: the setup, then what torch.compile takes.

    ``ref.embedded`` stands above it at the top level of the script, with ``load_by_path`` where ``ref.files``
    is not empty.
    """
    names, statements = _statements(ref)
    blank = [""] if statements else []
    body = [*names, *statements, *blank, f"return {_as_written(ref.expression)}"]
    return "def backend():\n" + "\n".join(indented(part) for part in body) + "\n"


def _statements(ref: BackendRef) -> tuple[list[str], list[str]]:
    """One ``global`` statement, if any is needed, and the setup without those of its blocks.

    Python wants it before any other use of the names in a function.
    """
    names: dict[str, None] = {}
    statements = []
    for text in ref.setup:
        first, _, rest = text.partition("\n")
        if rest and first.startswith("global "):
            names |= dict.fromkeys(first.removeprefix("global ").split(", "))
        statements.append(rest if rest and first.startswith("global ") else text)
    return ([f"global {', '.join(names)}"] if names else []), statements


def _as_written(expression: str) -> str:
    """A name in double quotes, as the rest of the script has them; other expressions as they are."""
    if expression.startswith("'") and expression.endswith("'") and not set(expression[1:-1]) & set("'\"\\"):
        return f'"{expression[1:-1]}"'
    return expression
