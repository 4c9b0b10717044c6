"""What terminal and page draw: repros by devices. ``Event.update`` says what each event changes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minidbg.watch.events import Event, Flipped

URGENCY = ("crashed", "timeout", "changed", "flaky", "reproduces", "invalid", None, "skipped", "gone")
"""Verdicts, those first that need attention."""


@dataclass(slots=True)
class Cell:
    verdict: str | None = None
    since: float | None = None
    seconds: float = 0.0
    note: str = ""
    """The verdict's reason, or what the backend said."""
    outdated: bool = True
    """Whether the code has changed since it was judged; see ``Matrix.is_old``."""
    maybe: str = ""
    """A new verdict that is being confirmed."""


@dataclass(slots=True)
class Matrix:
    home: str = ""
    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)
    """By repro and device; in this order rows are shown. They stay where they are once one has
    flipped: rows that jump cannot be read."""
    flips: deque[Flipped] = field(default_factory=deque)
    """The newest first."""
    notices: deque[Event] = field(default_factory=lambda: deque(maxlen=4))
    broken: dict[tuple[str, str], str] = field(default_factory=dict)
    """Why, by backend and device."""
    building: bool = False
    """Whether a build runs or has failed: nothing was judged on what it builds."""
    build_failure: str = ""
    activity: str = "starting workers"
    files: tuple[str, ...] = ()
    """The first of those whose change the last sweep judges."""
    began: float | None = None
    """When the current sweep or build began; of a sweep also its jobs, and how many have ended."""
    jobs: int = 0
    ended: int = 0

    @property
    def repros(self) -> list[str]:
        return list(dict.fromkeys(repro for repro, _ in self.cells))

    @property
    def devices(self) -> list[str]:
        return sorted({device for _, device in self.cells})

    def of_repro(self, repro: str) -> dict[str, Cell]:
        """By device."""
        return {device: cell for (name, device), cell in self.cells.items() if name == repro}

    def is_old(self, cell: Cell) -> bool:
        """Whether the present code was not judged, or not yet."""
        return cell.outdated or self.building

    def sort(self) -> None:
        """Put what needs attention first."""
        worst: dict[str, int] = {}
        for (repro, _), cell in self.cells.items():
            rank = URGENCY.index(cell.verdict) if cell.verdict in URGENCY else 0
            worst[repro] = min(rank, worst.get(repro, rank))
        self.cells = dict(sorted(self.cells.items(), key=lambda item: (worst[item[0][0]], item[0])))
