"""From a ``BackendRef`` back to the backend: in this process, or as the text of a script's ``backend()``."""

from __future__ import annotations

import hashlib
import io
import linecache
import sys
import tokenize
import types
from typing import Any

from minidbg.case import BackendRef, CompilerFn
from minidbg.references.by_path import load_by_path


def resolve(ref: BackendRef) -> str | CompilerFn:
    """What ``torch.compile(backend=)`` takes, after the reference's setup has run in this process.

    The folders of ``ref.paths`` join ``sys.path`` only when an import finds no module without them.
    Raises what the setup raises, ModuleNotFoundError above all.
    """
    try:
        return _evaluated(ref)
    except ModuleNotFoundError:
        missing = [folder for folder in ref.paths if folder not in sys.path]
        if not missing:
            raise
        sys.path.extend(missing)
    return _evaluated(ref)


def _evaluated(ref: BackendRef) -> str | CompilerFn:
    namespace: dict[str, Any] = (
        _embedding_module(ref.embedded).__dict__ if ref.embedded else {"__name__": "minidbg_backend"}
    )
    namespace.setdefault("load_by_path", load_by_path)
    for statement in ref.setup:
        exec(compile(statement, "<setup>", "exec"), namespace)
    backend: str | CompilerFn = eval(compile(ref.expression, "<backend>", "eval"), namespace)
    return backend


def _embedding_module(text: str) -> types.ModuleType:
    """The module of embedded source, run once per process: a second run would register its operators again."""
    name = f"minidbg_embedded_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    known = sys.modules.get(name)
    if known is not None:
        return known
    module = types.ModuleType(name)
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
    blank = [""] if ref.setup else []
    body = [*ref.setup, *blank, f"return {_as_written(ref.expression)}"]
    return "def backend():\n" + "\n".join(indented(part) for part in body) + "\n"


def _as_written(expression: str) -> str:
    """A name in double quotes, as the rest of the script has them; other expressions as they are."""
    if expression.startswith("'") and expression.endswith("'") and not set(expression[1:-1]) & set("'\"\\"):
        return f'"{expression[1:-1]}"'
    return expression


def indented(text: str, prefix: str = "    ") -> str:
    """``text`` one level deeper; the inner lines of strings stay as they are, since they are values."""
    inside: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text + "\n").readline):
        if token.type in _STRING_TOKENS:
            inside.update(range(token.start[0] + 1, token.end[0] + 1))
    lines = text.splitlines()
    return "\n".join(
        prefix + line if line.strip() and number not in inside else line
        for number, line in enumerate(lines, 1)
    )


_STRING_TOKENS = {
    tokenize.STRING,
    *(getattr(tokenize, name, -1) for name in ("FSTRING_MIDDLE", "TSTRING_MIDDLE")),
}
