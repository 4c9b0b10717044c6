"""One thing that was looked at."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any


class State(enum.StrEnum):
    """How it is."""

    FINE = "fine"
    MISSING = "missing"
    """Something works less well, or not at all, without it; the rest does."""
    BROKEN = "broken"
    """minidbg cannot do its work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, what was found, and what to do about it."""

    name: str
    state: State
    found: str
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"name": self.name, "state": str(self.state), "found": self.found, "advice": self.advice}


def fine(name: str, found: str) -> Finding:
    """All is well."""
    return Finding(name, State.FINE, found)


def missing(name: str, found: str, advice: str) -> Finding:
    """Something does not work without it."""
    return Finding(name, State.MISSING, found, advice)


def broken(name: str, found: str, advice: str) -> Finding:
    """Nothing works without it."""
    return Finding(name, State.BROKEN, found, advice)
