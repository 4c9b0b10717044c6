"""Text that is run as a module of its own."""

from __future__ import annotations

import linecache
import sys
import types
from typing import Any


def run_as_module(name: str, text: str, **known: Any) -> dict[str, Any]:
    """The globals of a new module in which ``text`` has run; dynamo looks for it by its name, tracebacks for its lines."""
    module = sys.modules[name] = types.ModuleType(name)
    namespace = vars(module)
    namespace.update(known, __name__=name)
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    try:
        exec(compile(text, file, "exec", dont_inherit=True), namespace)  # not our annotations as text
    except BaseException:
        del sys.modules[name]
        raise
    return namespace
