"""The matrix of repros and devices as it is shown live: what each event changes in it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from minidbg.watch import events
from minidbg.watch.events import Event, Flipped, Judged

STYLES: Mapping[str | None, str] = {
    "crashed": "bold yellow", "timeout": "yellow", "changed": "yellow", "flaky": "magenta", "reproduces": "red",
    "invalid": "bold red", None: "", "skipped": "dim", "gone": "green",
}  # fmt: skip
"""Of each verdict, those first that need attention."""
ORDER = list(STYLES)
NOTICES = (
    events.Notice, events.WorkersReplaced, events.DeviceMissing, events.ReproDamaged,
)  # fmt: skip
"""Events that are shown as a line of their own."""
SHOWN_NOTICES = 4
SHOWN_FLIPS = 6


@dataclass(slots=True)
class Cell:
    verdict: str | None = None
    since: float | None = None
    seconds: float = 0.0
    fresh: bool = False
    """Whether the sweep that is shown has seen it."""
    old: bool = True
    """Whether the verdict is of other code than the present, as far as is known."""
    note: str = ""
    """The verdict's reason, or what the backend said."""
    maybe: str = ""
    """A new verdict that is being confirmed."""
    flip: Flipped | None = None
    """The last flip that was told of while this view was open."""

    def show(self, result: Judged) -> None:
        verdict = result.verdict or result.standing
        if result.since or self.verdict != verdict:
            self.since = result.since or result.at
        self.verdict, self.seconds, self.fresh, self.maybe = verdict, result.seconds, True, ""
        self.old = False
        self.note = result.reason or result.message


@dataclass(slots=True)
class Matrix:
    clock: Callable[[], float] = time.time
    home: str = ""
    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)
    flips: deque[Flipped] = field(default_factory=lambda: deque(maxlen=SHOWN_FLIPS))
    """The last ones, the newest first; ``flipped`` is the number of all."""
    flipped: int = 0
    notices: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=SHOWN_NOTICES))
    broken: dict[tuple[str, str], str] = field(default_factory=dict)
    activity: str = "starting workers"
    first_verdict: str = ""
    files: tuple[str, ...] = ()
    """The files whose change the last sweep judges: the first ones."""
    began: float | None = None
    sweep: int | None = None
    total: int = 0
    seen: int = 0
    building: bool = False
    """Whether a build runs or has failed: nothing was judged on what it builds."""
    help: bool = False
    """Whether the keys are listed in place of the repros."""
    answer: str = ""
    """Why the key that was pressed last did nothing."""
    selected: str = ""
    """The repro whose error is shown."""
    rows: list[str] = field(default_factory=list)
    """The repros as they are listed. A row keeps its line when its verdict changes; ``sort`` puts what fails first."""
    build_failure: str = ""
    """The first error of the build that failed last, and when."""

    def hear(self, event: Event) -> None:
        match event:
            case events.Started():
                self.home = event.home
                for state in event.states:
                    cell = Cell(state.verdict, state.since, note=state.reason)
                    self.cells[state.repro, state.device] = cell
            case events.SweepStarted():
                self.activity, self.began, self.first_verdict = f"sweep {event.sweep}", event.at, ""
                self.total, self.seen, self.files = event.jobs, 0, event.files
                self.sweep = event.sweep
                for cell in self.cells.values():
                    cell.fresh, cell.maybe, cell.old = False, "", cell.old or bool(event.changed)
            case Judged():
                self.seen += 1
                self.cell(event.repro, event.device).show(event)
            case events.Unconfirmed():
                self.cell(event.repro, event.device).maybe = event.verdict
            case Flipped():  # it may come without a result of a sweep
                cell = self.cell(event.repro, event.device)
                if cell.verdict != event.after:
                    cell.verdict, cell.since = event.after, event.at
                cell.flip = event
                cell.old &= event.sweep != self.sweep
                self.flips.appendleft(event)
                self.flipped += 1
            case events.SweepFinished():
                self.activity = f"waiting; sweep {event.sweep} took {event.seconds:.2f} s"
                if event.first_verdict_seconds:
                    self.first_verdict = f", first verdict after {event.first_verdict_seconds:.2f} s"
                self.began = None
                if event.end != "complete":  # the code has changed since
                    for cell in self.cells.values():
                        cell.old |= cell.fresh
                self.rows = self.names()
            case events.BackendBroken():
                self.broken[event.backend, event.device] = event.reason
            case events.BackendBack():
                self.broken.pop((event.backend, event.device), None)
            case events.ReproEdited():
                for cell in self.cells_of(event.repro).values():
                    cell.old = True
            case events.ReproRemoved():
                self.cells = {key: cell for key, cell in self.cells.items() if key[0] != event.repro}
            case events.BuildStarted():
                self.activity, self.began, self.total = f"building: {event.command}", event.at, 0
                self.first_verdict, self.building = "", True
            case events.BuildFailed():  # nothing is judged until a build succeeds
                self.activity, self.began = f"build failed {clock(event.at)}, rows are from before it", None
                self.build_failure = event.error
            case events.BuildFinished():
                self.activity, self.began, self.build_failure = "waiting; built", None, ""
                self.building = False
        if isinstance(event, NOTICES) and (not self.notices or self.notices[-1][1] != event.line()):
            self.notices.append((event.at, event.line()))

    def cell(self, repro: str, device: str) -> Cell:
        return self.cells.setdefault((repro, device), Cell())

    def sort(self) -> None:
        """What fails first: only when a person asks, since rows that jump about cannot be read."""
        self.rows = []

    def select(self, step: int) -> None:
        names = self.names()
        place = names.index(self.selected) + step if self.selected in names else (0 if step > 0 else -1)
        self.selected = names[max(0, min(place, len(names) - 1))] if names else ""

    def cells_of(self, name: str) -> dict[str, Cell]:
        return {device: cell for (one, device), cell in self.cells.items() if one == name}

    def devices(self) -> list[str]:
        return sorted({device for _, device in self.cells})

    def names(self) -> list[str]:
        """The repros: listed rows where they are, then others, what fails first."""
        ranks: dict[str, int] = {}
        for (name, _), cell in self.cells.items():
            rank = ORDER.index(cell.verdict) if cell.verdict in STYLES else 0
            ranks[name] = min(rank, ranks.get(name, rank))
        rows = [name for name in self.rows if name in ranks]
        return rows + sorted(ranks.keys() - set(rows), key=lambda name: (ranks[name], name))

    def is_old(self, cell: Cell) -> bool:
        """Whether the verdict that is shown is of other code than the present, and no newer one is being confirmed."""
        return (cell.old or self.building) and not cell.maybe


def clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
