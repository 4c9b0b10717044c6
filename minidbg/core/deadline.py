"""``Deadline``: the moment by which an answer is due, handed down to everybody who waits for something on the way.

Seconds that each of several waits may take add up to more than anybody asked for. A moment does not.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Protocol


class Clock(Protocol):
    """Seconds that only grow. Whoever measures or waits is handed one."""

    def __call__(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Deadline:
    at: float = math.inf
    """In the seconds of ``clock``. Those of ``time.monotonic`` are the same in each process of a machine."""
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
