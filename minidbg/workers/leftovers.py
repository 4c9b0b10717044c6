"""Folders of a process that may be killed: their names say whose they are, and the next process to
make one removes those of the dead.

An owner is a process number with the time that it started, on one machine and in one process
namespace: nothing of a living process is removed, nor of one that cannot be seen from here.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import shutil
import tempfile
from pathlib import Path

SAME_START_S = 5.0
"""Two readings of a process's start time differ by less; the clock may have been set in between."""
SURELY_ANOTHER_S = 3600.0
"""Where a living process could lose its folder: a clock that was set moves the start of each."""


@functools.cache
def this_place() -> str:
    """A short text that differs between machines, and between containers on one."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return hashlib.sha256(f"{platform.node()} {namespace}".encode()).hexdigest()[:8]


@functools.lru_cache(maxsize=64)
def started_ms(pid: int) -> int:
    """When process ``pid`` started, milliseconds of the epoch. Raises psutil.Error."""
    import psutil  # late: a judge may be where only torch is, and makes no such folder

    return int(psutil.Process(pid).create_time() * 1000)


def has_ended(pid: int, started_ms: int, same_start_s: float = SAME_START_S) -> bool:
    """Whether the process of this number that started then, here, has ended. Starts that differ by
    less than that are the same."""
    import psutil

    try:
        process = psutil.Process(pid)
        is_zombie = process.status() == psutil.STATUS_ZOMBIE
        return is_zombie or abs(process.create_time() - started_ms / 1000) > same_start_s
    except (psutil.NoSuchProcess, OverflowError):
        return True
    except psutil.Error:
        return False  # it is there, and somebody else's


def make_temporary_folder(kind: str, parent: Path | None = None) -> Path:
    """A new folder ``minidbg-KIND-...`` of this process in ``parent``, or among the temporary
    files; those of dead ones go. Raises OSError."""
    parent = parent or Path(tempfile.gettempdir())
    remove_those_of_the_dead(kind, parent)
    pid = os.getpid()
    prefix = f"minidbg-{kind}-{this_place()}-{pid}-{started_ms(pid)}-"
    return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))


def remove_those_of_the_dead(kind: str, parent: Path) -> None:
    """Remove folders of this kind in ``parent`` whose owners have ended; what cannot go stays."""
    named = rf"minidbg-{kind}-{this_place()}-(\d{{1,10}})-(\d{{1,15}})-[^-]+"
    with contextlib.suppress(OSError):
        for place in list(parent.iterdir()):
            found = re.fullmatch(named, place.name)
            is_dead = found and has_ended(int(found[1]), int(found[2]), SURELY_ANOTHER_S)
            if is_dead and not place.is_symlink():  # a link would lead elsewhere
                shutil.rmtree(place, ignore_errors=True)
