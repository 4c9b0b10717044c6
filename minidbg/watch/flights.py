"""When to look for flight records of processes that died: seldom, and only where records lie."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from minidbg.watch.repros import HIDDEN

FOLDER = "flight"
UNTOUCHED_S = 10.0
"""A record that keeps its name for so long belongs to a process that is dead, idle, or long at one step.

``minidbg run`` sees to its own dead within a second or two; until then the record is its own.
"""
ASK_AGAIN_S = 60.0


@dataclass(slots=True)
class Flights:
    """The records in a repro folder, by name; a record gets another name with each step of its process."""

    folder: Path
    first_seen: dict[str, float] = field(default_factory=dict)
    asked: float = float("-inf")

    def due(self, now: float) -> bool:
        """Whether somebody should find out if the process of a record has died. ``now`` in seconds of any clock."""
        names = {path.name for path in (self.folder / HIDDEN / FOLDER).glob("*.py")}
        self.first_seen = {name: self.first_seen.get(name, now) for name in names}
        if now - self.asked < ASK_AGAIN_S or all(
            now - since < UNTOUCHED_S for since in self.first_seen.values()
        ):
            return False
        self.asked = now
        return True
