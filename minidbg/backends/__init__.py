"""How a fresh process gets a backend back."""

from minidbg.backends.operators import with_operators as with_operators
from minidbg.backends.pickled import (
    is_pickled as is_pickled,
    missing_backend as missing_backend,
    to_keep as to_keep,
)
from minidbg.backends.reference import find_reference as find_reference, backend_name as backend_name
from minidbg.backends.resolving import (
    assignment as assignment,
    compiler_fn as compiler_fn,
    hook as hook,
    named as named,
    namespace_of as namespace_of,
    resolve as resolve,
    run_as_module as run_as_module,
)
