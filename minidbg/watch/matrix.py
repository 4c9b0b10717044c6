"""What the terminal shows: repros by devices, what each event changes in them, and what each key does.

To add a key, write its row of ``KEYS`` and its case in ``Matrix.press``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from minidbg.watch import events
from minidbg.watch.daemon import Key
from minidbg.watch.events import Event, Flipped, Judged

STYLES: Mapping[str | None, str] = {
    "crashed": "bold yellow", "timeout": "yellow", "changed": "yellow", "flaky": "magenta", "reproduces": "red",
    "invalid": "bold red", None: "", "skipped": "dim", "gone": "green",
}  # fmt: skip
"""Of each verdict, those first that need attention."""
ORDER = list(STYLES)
NOTICES = events.Notice, events.WorkersReplaced, events.ReproDamaged
"""Events that are shown as a line of their own."""
SHOWN_NOTICES = 4
KEYS = {
    "Enter": ("rerun", "run all repros again, and sort them: what fails comes first"),
    "up/down": ("select", "select a repro, and show its error; also j and k, page up and down"),
    "o": ("open", "open the selected repro, else the last that flipped, in $EDITOR"),
    "q": ("quit", "end watching"),
    "?": ("help", "show this list; any key closes it"),
}
"""What each key does, in a word and in a sentence."""
PAGE = 10
ARROWS = {
    "\x1b[A": -1, "\x1b[B": 1, "\x1bOA": -1, "\x1bOB": 1, "k": -1, "j": 1, "\x1b[5~": -PAGE, "\x1b[6~": PAGE,
}  # fmt: skip
"""How many rows each goes down."""


@dataclass(slots=True)
class Cell:
    verdict: str | None = None
    since: float | None = None
    seconds: float = 0.0
    code: int = -1
    """The ``Matrix.code`` that was judged; the verdict is old where that is another by now."""
    note: str = ""
    """The verdict's reason, or what the backend said."""
    maybe: str = ""
    """A new verdict that is being confirmed."""


@dataclass(slots=True)
class Matrix:
    clock: Callable[[], float] = time.time
    home: str = ""
    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)
    """By repro and device."""
    code: int = 0
    """A number that grows with each change of the code."""
    flips: deque[Flipped] = field(default_factory=deque)
    """The newest first."""
    notices: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=SHOWN_NOTICES))
    broken: dict[tuple[str, str], str] = field(default_factory=dict)
    activity: str = "starting workers"
    files: tuple[str, ...] = ()
    """The first of those whose change the last sweep judges."""
    began: float | None = None
    """When the sweep or build that is under way did; of a sweep also its jobs, and how many have ended."""
    total: int = 0
    seen: int = 0
    sweep: int | None = None
    building: bool = False
    """Whether a build runs or has failed: nothing was judged on what it builds."""
    build_failure: str = ""
    help: bool = False
    answer: str = ""
    """Why the key that was pressed last did nothing."""
    selected: str = ""
    rows: list[str] = field(default_factory=list)
    """The repros as they are listed: a row keeps its line when its verdict changes, since rows that jump cannot be read."""

    def hear(self, event: Event) -> None:
        match event:
            case events.Started():
                self.home = event.home
                for state in event.states:
                    cell = Cell(state.verdict, state.since, note=state.reason)
                    self.cells[state.repro, state.device] = cell
            case events.SweepStarted():
                self.activity, self.began, self.sweep = f"sweep {event.sweep}", event.at, event.sweep
                self.total, self.seen, self.files = event.jobs, 0, event.files
                self.code += bool(event.changed)
                for cell in self.cells.values():
                    cell.maybe = ""
            case Judged():
                self.seen += 1
                cell, verdict = self.cell(event), event.verdict or event.standing
                if event.since or cell.verdict != verdict:
                    cell.since = event.since or event.at
                cell.verdict, cell.seconds, cell.code, cell.maybe = verdict, event.seconds, self.code, ""
                cell.note = event.reason or event.message
            case events.Unconfirmed():
                self.cell(event).maybe = event.verdict
            case Flipped():  # one that an earlier daemon has not told comes without a sweep
                cell = self.cell(event)
                if cell.verdict != event.after:
                    cell.verdict, cell.since = event.after, event.at
                if event.sweep == self.sweep:
                    cell.code = self.code
                self.flips.appendleft(event)
            case events.SweepFinished():
                self.activity = f"waiting; sweep {event.sweep} took {event.seconds:.2f} s"
                self.began, self.rows = None, self.names()
                self.code += event.end != "complete"  # the code has changed since
            case events.BackendBroken():
                self.broken[event.backend, event.device] = event.reason
            case events.BackendBack():
                self.broken.pop((event.backend, event.device), None)
            case events.ReproEdited():
                for cell in self.cells_of(event.repro).values():
                    cell.code = -1
            case events.ReproRemoved():
                self.cells = {key: cell for key, cell in self.cells.items() if key[0] != event.repro}
            case events.BuildStarted():
                self.activity, self.began, self.total = f"building: {event.command}", event.at, 0
                self.building = True
            case events.BuildFailed():
                self.activity, self.began = f"build failed {clock(event.at)}, rows are from before it", None
                self.build_failure = event.error
            case events.BuildFinished():
                self.activity, self.began = "waiting; built", None
                self.build_failure, self.building = "", False
        if isinstance(event, NOTICES) and (not self.notices or self.notices[-1][1] != event.line()):
            self.notices.append((event.at, event.line()))

    def cell(self, event: Judged | Flipped | events.Unconfirmed) -> Cell:
        return self.cells.setdefault((event.repro, event.device), Cell())

    def cells_of(self, name: str) -> dict[str, Cell]:
        return {device: cell for (one, device), cell in self.cells.items() if one == name}

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
        return (cell.code != self.code or self.building) and not cell.maybe

    def to_open(self) -> str:
        """The repro that ``o`` means: the selected one, else the one that flipped last, else the first."""
        flipped = [flip.repro for flip in self.flips if self.cells_of(flip.repro)]
        return next(iter([*filter(None, [self.selected]), *flipped, *self.names()]), "")

    def press(self, key: str) -> Key | None:
        """Change what is shown, or say why that cannot be; what the daemon is to do."""
        self.help, self.answer = key == "?" and not self.help, ""
        names = self.names()
        match key:
            case "q":
                return Key("quit")
            case "o":
                self.answer = "" if names else "no repro to open"
            case _ if key in ARROWS:
                step = ARROWS[key]
                at = names.index(self.selected) + step if self.selected in names else min(step, 1) - 1
                self.selected = names[max(0, min(at, len(names) - 1))] if names else ""
                self.answer = "" if names else "no repro to select"
            case "\r" | "\n":
                self.rows = []
                self.answer = "" if names else "no repro to run"
                return Key("rerun")
            case _ if key != "?" and key.isprintable():
                self.answer = f"{key} is no key here; ? lists the keys"
        return None


def clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
