"""Blocks in which Python's collector of cycles does less: graphs of thousands of nodes keep it busier than the work on them."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """A block in which Python's collector of cycles does not run: over thousands of new nodes it takes longer than making them."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def collector_spared_what_is_there() -> Iterator[None]:
    """A block in which the collector of cycles looks only at what is made in it: a large graph and torch itself are many objects."""
    if gc.get_freeze_count():  # somebody else's, who may not want it undone
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
