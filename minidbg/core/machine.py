"""What the machine has and what of it is free. Whoever decides by that how many children there are,
and how much each may have, is handed one. And ``Deadline``: the moment by which an answer is due,
handed down to everybody who waits for something on the way, since seconds that each of several
waits may take add up to more than anybody asked for."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeAlias


class Machine(Protocol):
    def processors(self) -> int: ...
    def load(self) -> float:
        """Processes that want a processor; 0 where the system does not say."""

    def memory_free(self) -> int | None:
        """Bytes, of this machine or of this process's cgroup; None where nobody says."""

    def disk_free(self, folder: Path) -> int: ...


@dataclass(frozen=True, slots=True)
class ThisMachine:
    cgroup: Path = Path("/sys/fs/cgroup")

    def processors(self) -> int:
        return os.cpu_count() or 1

    def load(self) -> float:
        with contextlib.suppress(OSError):
            return os.getloadavg()[0]
        return 0.0

    def memory_free(self) -> int | None:
        free = []
        with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/meminfo") as file:
            free += [int(row.split()[1]) * 1024 for row in file if row.startswith("MemAvailable")]
        with contextlib.suppress(OSError, ValueError):
            files = (self.cgroup / f"memory.{name}" for name in ("max", "current"))
            most, now = (int(file.read_text()) for file in files)
            free.append(most - now)
        return min(free, default=None)

    def disk_free(self, folder: Path) -> int:
        return shutil.disk_usage(folder).free


HERE: Machine = ThisMachine()
MOST_BUSY = 10.0


def memory_limit(at_once: int = 1, machine: Machine = HERE) -> int | None:
    """Bytes that one of so many children ``at_once`` may hold: ``MINIDBG_MEMORY_BYTES``, or its
    share of what is free; None where nobody says.

    All together have four fifths of what is free now. Of several each has half, since few of them
    are large at the same time.
    """
    given = os.environ.get("MINIDBG_MEMORY_BYTES", "")
    if given.isdecimal():
        return int(given)
    free = machine.memory_free()
    return free // 5 * 4 // min(max(at_once, 1), 2) if free is not None else None


def busyness(machine: Machine = HERE) -> float:
    """How many times as long as usual anything takes here now, from 1 to ``MOST_BUSY``.

    A limit too short for a busy machine would turn a slow start of an interpreter into a verdict.
    """
    return min(MOST_BUSY, max(1.0, machine.load() / machine.processors()))


Clock: TypeAlias = Callable[[], float]
"""Seconds that only grow. Whoever measures or waits is handed one."""


@dataclass(frozen=True, slots=True)
class Deadline:
    at: float = math.inf
    """In the seconds of ``clock``; ``time.monotonic`` is the same in each process of a machine."""
    clock: Clock = time.monotonic

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(time.monotonic() + seconds)

    def left(self, at_most: float = math.inf) -> float:
        """Seconds until then, never negative, and never more than ``at_most``."""
        return max(0.0, min(at_most, self.at - self.clock()))

    @property
    def is_over(self) -> bool:
        return self.clock() >= self.at

    def earlier(self, seconds: float) -> Deadline:
        return replace(self, at=self.at - seconds)


NEVER = Deadline()
