"""How a fresh process gets a backend back."""

from minidbg.references.finding import find
from minidbg.references.literals import NotALiteral, read_literal, write_literal
from minidbg.references.operators import with_operators
from minidbg.references.renaming import avoid_names
from minidbg.references.resolving import Hooks, backend_function, compiler_fn, hooks, load_by_path, resolve

__all__ = [
    "find",
    "with_operators",
    "read_literal",
    "resolve",
    "backend_function",
    "avoid_names",
    "compiler_fn",
    "hooks",
    "Hooks",
    "load_by_path",
    "write_literal",
    "NotALiteral",
]
