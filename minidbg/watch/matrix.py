"""The state of a watch that is shown: repros by devices, and what each event changes in them. It knows nothing of how it is drawn."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from minidbg.watch import events
from minidbg.watch.events import Event, Flipped, Judged

ORDER = ("crashed", "timeout", "changed", "flaky", "reproduces", "invalid", None, "skipped", "gone")
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
    """By repro and device; in this order rows are shown. They stay where they are once one has flipped: rows that jump cannot be read."""
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
    """When the sweep or build that is under way did; of a sweep also its jobs, and how many have ended."""
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
            rank = ORDER.index(cell.verdict) if cell.verdict in ORDER else 0
            worst[repro] = min(rank, worst.get(repro, rank))
        self.cells = dict(sorted(self.cells.items(), key=lambda item: (worst[item[0][0]], item[0])))

    def hear(self, event: Event) -> None:
        match event:
            case events.Started():
                self.home = event.home
                for state in event.states:
                    self.cells[state.repro, state.device] = Cell(
                        state.verdict, state.since, note=state.reason
                    )
                self.sort()
            case events.SweepStarted():
                self.activity, self.began = f"sweep {event.sweep}", event.at
                self.jobs, self.ended, self.files = event.jobs, 0, event.files
                for cell in self.cells.values():
                    cell.outdated, cell.maybe = cell.outdated or bool(event.changed), ""
            case Judged():
                self.ended += 1
                cell = Cell(event.verdict or event.standing, event.since, event.seconds, outdated=False)
                cell.note = event.reason or event.message
                self.cells[event.repro, event.device] = cell
            case events.Unconfirmed():
                self.cells.setdefault((event.repro, event.device), Cell()).maybe = event.verdict
            case Flipped():
                self.flips.appendleft(event)
            case events.SweepFinished():
                self.activity, self.began = f"waiting; sweep {event.sweep} took {event.seconds:.2f} s", None
                for cell in self.cells.values():
                    cell.outdated |= event.end != "complete"  # the code has changed since
                if not self.flips:
                    self.sort()
            case events.BackendBroken():
                self.broken[event.backend, event.device] = event.reason
            case events.BackendBack():
                self.broken.pop((event.backend, event.device), None)
            case events.ReproEdited():
                for cell in self.of_repro(event.repro).values():
                    cell.outdated = True
            case events.ReproRemoved():
                for device in self.of_repro(event.repro):
                    del self.cells[event.repro, device]
            case events.BuildStarted():
                self.activity, self.began, self.jobs = f"building: {event.command}", event.at, 0
                self.building = True
            case events.BuildFailed():
                self.activity, self.began = "build failed, rows are from before it", None
                self.build_failure = event.error
            case events.BuildFinished():
                self.activity, self.began = "waiting; built", None
                self.build_failure, self.building = "", False
            case events.Notice() | events.ReproDamaged():
                self.notices.append(event)
