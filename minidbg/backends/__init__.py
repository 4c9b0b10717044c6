"""How a fresh process gets a backend back."""

from minidbg.backends.finding import find, name_of
from minidbg.backends.operators import with_operators
from minidbg.backends.pickled import is_pickled, to_fill_in, to_keep
from minidbg.backends.resolving import (
    avoid_names,
    backend_function,
    compiler_fn,
    hook,
    load_by_path,
    named,
    resolve,
)
from minidbg.python_text.source_text import run_as_module
from minidbg.words.literals import NotALiteral, read_literal, write_literal

__all__ = [
    "find",
    "name_of",
    "to_fill_in",
    "to_keep",
    "is_pickled",
    "with_operators",
    "read_literal",
    "resolve",
    "run_as_module",
    "backend_function",
    "avoid_names",
    "compiler_fn",
    "hook",
    "load_by_path",
    "named",
    "write_literal",
    "NotALiteral",
]
