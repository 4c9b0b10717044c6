"""How a fresh process gets a backend back."""

from minidbg.backends.operators import with_operators
from minidbg.backends.pickled import is_pickled, to_fill_in, to_keep
from minidbg.backends.reference import find, name_of
from minidbg.backends.resolving import (
    assignment,
    compiler_fn,
    hook,
    named,
    namespace_of,
    resolve,
    run_as_module,
)

__all__ = [
    "assignment",
    "compiler_fn",
    "find",
    "hook",
    "is_pickled",
    "name_of",
    "named",
    "namespace_of",
    "resolve",
    "run_as_module",
    "to_fill_in",
    "to_keep",
    "with_operators",
]
