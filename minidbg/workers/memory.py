"""How much memory a child may have."""

from __future__ import annotations

import contextlib
import os

CGROUP = "/sys/fs/cgroup"


def memory_limit(at_once: int = 1) -> int | None:
    """Bytes that one of so many children ``at_once`` may hold: ``MINIDBG_MEMORY_BYTES``, or its share of what is free; None where nobody says.

    All together have four fifths of what is free now, to this machine or to this process's cgroup. Of several each has half, since
    few of them are large at the same time.
    """
    given = os.environ.get("MINIDBG_MEMORY_BYTES", "")
    if given.isdecimal():
        return int(given)
    free = []
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/meminfo") as file:
        free += [int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable")]
    with contextlib.suppress(OSError, ValueError):
        free.append(number_in(f"{CGROUP}/memory.max") - number_in(f"{CGROUP}/memory.current"))
    return min(free) // 5 * 4 // min(max(at_once, 1), 2) if free else None


def number_in(path: str) -> int:
    with open(path) as file:
        return int(file.read())
