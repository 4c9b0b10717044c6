"""Who reduces a capture, so that nobody else does: a claim is a lock beside it, which the kernel takes back when its process dies.

The place of the reduction does not show it. It is made later, by a process that imports torch first, and of a crash it has another name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from minidbg.words.files import is_file
from minidbg.words.script_header import HIDDEN

CAPTURES = (HIDDEN, "captures")
"""The folders that a capture lies in. A repro is no capture, and gets no file beside it."""
ASKED_S = 0.1
"""Who asks whether there is a claim holds the lock for less than this."""


@contextlib.contextmanager
def claimed(capture: Path) -> Iterator[None]:
    """A block in which ``minidbg watch`` leaves the capture alone; a second claim is as good as the first."""
    path = lock_of(capture)
    if capture.parts[-3:-1] != CAPTURES:
        yield
        return
    lock = FileLock(path)
    with contextlib.suppress(OSError, NotImplementedError, Timeout):
        lock.acquire(timeout=ASKED_S)
    try:
        yield
    finally:
        if lock.is_locked:
            path.unlink(missing_ok=True)  # first: who waits for nothing cannot get hold of the old one
        lock.release()


def is_claimed(capture: Path) -> bool:
    """Whether a process holds a claim on the capture."""
    path = lock_of(capture)
    if not is_file(path):
        return False
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    except (OSError, NotImplementedError):
        return False
    lock.release()
    return False


def lock_of(capture: Path) -> Path:
    """The file that is locked."""
    return capture.with_suffix(".lock")
