"""What a reduction may spend, and what became of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minidbg.failure import Verdict
from minidbg.printable import display_path


@dataclass(frozen=True, slots=True)
class Limits:
    """What a reduction may spend. The verification of its result comes on top."""

    seconds: float = 300.0
    max_calls: int | None = None
    call_seconds: float = 60.0
    """Time limit of one oracle call."""
    memory_bytes: int | None = None
    jobs: int = 1
    """Oracle calls at the same time. The result does not depend on it."""


UNLIMITED = Limits(seconds=math.inf)


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a case: the verified repro, or why there is none."""

    path: Path | None
    """The verified repro at the top of the folder; None when no form of the case failed in a fresh interpreter."""
    nodes_before: int
    nodes_after: int
    oracle_calls: int
    """Calls in all, those of an interrupted reduction that this one went on from included."""
    seconds: float
    certified: bool
    verdict: Verdict
    """Of the last run in a fresh interpreter."""
    notes: tuple[str, ...] = ()
    also_found: int = 0
    """Other failures met on the way."""
    known_before: bool = False
    """Whether an earlier reduction found it, and its repro was only run again."""

    @property
    def line(self) -> str:
        """The result in one line, for stderr and for the exception's note."""
        counts = f"{self.nodes_before} -> {self.nodes_after} nodes, "
        if self.known_before and self.path is not None:
            return f"{counts}found before, and its repro still fails; run: python {display_path(self.path)}"
        counts += f"{self.oracle_calls} oracle calls, {self.seconds:.1f} s"
        if self.path is None:
            return (
                f"{counts}; no verified repro ({self.verdict}): {'; '.join(self.notes) or 'no reason known'}"
            )
        extra = "" if self.certified else " (not certified as minimal)"
        others = {0: "", 1: " (also found another failure)"}.get(
            self.also_found, f" (also found {self.also_found} others)"
        )
        return f"{counts}{extra}{others}; run: python {display_path(self.path)}"

    def to_json(self) -> dict[str, Any]:
        """Plain values; ``from_json`` reads them back."""
        return {
            "path": str(self.path) if self.path else None,
            "nodes_before": self.nodes_before,
            "nodes_after": self.nodes_after,
            "oracle_calls": self.oracle_calls,
            "seconds": round(self.seconds, 3),
            "certified": self.certified,
            "verdict": str(self.verdict),
            "notes": list(self.notes),
            "also_found": self.also_found,
            "known_before": self.known_before,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Written:
        """Read ``to_json`` back. Raises KeyError, TypeError or ValueError on a damaged object."""
        fields = dict(data)
        fields["path"] = Path(fields["path"]) if fields["path"] else None
        fields["verdict"] = Verdict(fields["verdict"])
        fields["notes"] = tuple(fields["notes"])
        return cls(**fields)
