"""A backend to which neither an expression nor source leads: pickled for the children of its
process, and left to a person in scripts.

Only the live object is the backend then (a closure, an object with state). cloudpickle writes it
into a file for the forkserver's children, whose reference says ``unpickled(path)``. A script that
stays says ``...`` and what is to be filled in.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from minidbg import torch_internals
from minidbg.backends.locations import finds_again, is_foreign, is_installed
from minidbg.backends.reference import (
    RefBuilder,
    as_statements,
    backend_name,
    check_option_values,
    described,
    innermost,
)
from minidbg.core.errors import BackendUnreachable
from minidbg.core.files import for_its_owner
from minidbg.core.foreign import message_of
from minidbg.core.run_spec import BackendRef, CompilerFn
from minidbg.core.text import in_one_line

LIMIT_BYTES = 256 << 20
IMPORT = "from minidbg.backends.pickled import unpickled"
"""The statement in the setup of a backend that was pickled."""


def missing_backend(
    backend: str | CompilerFn,
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    setup: str | Sequence[str] | None = None,
) -> BackendRef:
    """The reference of a backend that a person is to put into the script. Raises BackendUnreachable
    for options that are not literals."""
    inner, inner_options, inner_mode = torch_internals.as_given_to_compile(backend)
    options, live = options or inner_options or {}, live_object(backend)
    name = inner if isinstance(inner, str) else backend_name(live)
    check_option_values(options, name)
    # the folders of ``sys.path`` that are neither Python's own nor hold what is installed
    folders = (os.path.abspath(entry) for entry in sys.path if os.path.isdir(entry or "."))
    others = ("site-packages", "dist-packages")
    own = (folder for folder in folders if os.path.basename(folder) not in others)
    start = BackendRef(
        name,
        "...",
        as_statements(setup),
        paths=tuple(dict.fromkeys(folder for folder in own if not is_installed(folder))),
        missing_backend=in_one_line(described(live)),
    )
    builder = RefBuilder(start)
    module = getattr(innermost(live), "__module__", None) or type(live).__module__
    if is_foreign(module) and finds_again(module):
        builder.uses(module)
    return builder.reference(name, start.expression, options, mode or inner_mode)


def live_object(backend: str | CompilerFn) -> Any:
    """What ``backend`` is, without the options that torch.compile has put around it: of a name what
    is registered under it."""
    inner, _, _ = torch_internals.as_given_to_compile(backend)
    return torch_internals.registered_backend(inner) if isinstance(inner, str) else inner


# ---- to the children of this process, and to nobody else -----------------------------------------


def pickle_into(path: Path, backend: str | CompilerFn) -> None:
    """Pickle the live object into a new file that this user alone may read. Raises
    BackendUnreachable that says why it cannot be."""
    import cloudpickle  # late: few programs come here

    try:
        with open(path, "xb", opener=for_its_owner) as file:
            cloudpickle.dump(live_object(backend), Limited(file))
    except Exception as error:  # whatever the program's own objects raise when they are pickled
        path.unlink(missing_ok=True)
        raise BackendUnreachable(
            f"it cannot be pickled: {type(error).__name__}: {message_of(error)}"
        ) from error


class Limited:
    def __init__(self, file: BinaryIO) -> None:
        self.file, self.left = file, LIMIT_BYTES

    def write(self, data: Any) -> int:
        self.left -= memoryview(data).nbytes
        if self.left < 0:
            raise OverflowError(f"it takes more than {LIMIT_BYTES:,} bytes")
        return self.file.write(data)


def at(path: Path, reference: BackendRef) -> BackendRef:
    """``reference`` of a backend to fill in, for processes that find it pickled at ``path``."""
    expression = f"unpickled({str(path)!r})"
    return replace(reference, setup=(*reference.setup, IMPORT), expression=expression)


def unpickled(path: str) -> Any:
    """The file's object. Raises BackendUnreachable: an error here is no answer about a case."""
    try:
        with open(path, "rb") as file:
            return pickle.load(file)
    except Exception as error:  # whatever the program's own objects raise when they are made again
        why = f"{type(error).__name__}: {message_of(error)}"
        raise BackendUnreachable(f"it cannot be unpickled in another process: {why}") from error


def is_pickled(reference: BackendRef) -> bool:
    """Whether the backend is in a file of the forkserver's, gone once the failure is answered."""
    return IMPORT in reference.setup


def to_keep(reference: BackendRef) -> BackendRef:
    """``reference`` as a script that stays has it: without what was pickled."""
    if not is_pickled(reference):
        return reference
    setup = tuple(statement for statement in reference.setup if statement != IMPORT)
    return replace(reference, setup=setup, expression="...")
