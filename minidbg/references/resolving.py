"""From a ``BackendRef`` back to the backend: in this process, or as the text of a script's ``backend()``."""

from __future__ import annotations

import hashlib
import linecache
import sys
import types

import torch

from minidbg.case import BackendRef, CompilerFn
from minidbg.references.by_path import load_by_path
from minidbg.references.layout import indented


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
