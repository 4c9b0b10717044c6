"""A backend to which nothing leads, on its way to the forkserver's children: pickled into a file of the forkserver's folder."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator

from minidbg import workers
from minidbg.asking.packing import used
from minidbg.backends import pickled
from minidbg.fx.case import Case

NUMBERS = itertools.count()


@contextlib.contextmanager
def pickled_for_children(case: Case, *, limit_bytes: int = pickled.LIMIT_BYTES) -> Iterator[Case]:
    """A block with ``case`` as children of the forkserver may have it: its live backend in a file, where a person would have to fill it in.

    Each child that loads the case unpickles it, and the server never does. Any other case is as it was. Raises BackendUnreachable
    for what cannot be pickled, and OSError where no server can be started.
    """
    if not case.backend.fill_in or case.compiler is None:
        yield case
        return
    path = workers.start_server().folder / f"backend_{next(NUMBERS)}.pickle"
    with used(path):  # a question that wants room leaves it there
        try:
            pickled.pickle_into(path, case.compiler, limit_bytes=limit_bytes)
            yield case.with_spec(backend=pickled.at(path, case.backend))
        finally:
            path.unlink(missing_ok=True)
