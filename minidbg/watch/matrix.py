"""The matrix of repros and devices as it is shown live: what each event changes in it, and how it is drawn."""

from __future__ import annotations

import textwrap
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from minidbg.history import State
from minidbg.watch import events
from minidbg.watch.events import Event, Flipped, Judged
from minidbg.watch.states import FAILING
from minidbg.words.text import display_path, plural, printable

STYLES: Mapping[str | None, str] = {
    "crashed": "bold yellow", "timeout": "yellow", "changed": "yellow", "flaky": "magenta", "reproduces": "red",
    "invalid": "bold red", None: "", "fallback": "cyan", "skipped": "dim", "gone": "green",
}  # fmt: skip
"""Of each verdict, those first that need attention."""
FLIP_STYLES: Mapping[str, str] = {"FIXED": "bold green", "REGRESSED": "bold red"}
ORDER = list(STYLES)
NOTICES = (
    events.Notice, events.WorkersReplaced, events.DeviceMissing, events.DiskFull, events.ReproDamaged, events.ReductionFinished, events.ProcessDied,
    events.CaptureKnown, events.BisectStarted, events.BisectFinished, events.Serving,
)  # fmt: skip
"""Events that are shown as a line of their own."""
SHOWN_NOTICES = 4
SHOWN_FLIPS = 6
SHOWN_DETAILS = 6
MARK = "*"
"""Beside a row that has just flipped."""
KEYS = "Enter rerun  f failing only, and run them  up/down error of a row  o open  b bisect  d device  p pause  q quit"


@dataclass(slots=True)
class Cell:
    """One repro on one device."""

    verdict: str | None = None
    since: float | None = None
    seconds: float = 0.0
    fresh: bool = False
    """Whether the sweep that is shown has seen it."""
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
        self.note = result.reason or result.message


@dataclass(slots=True)
class Matrix:
    """What is known, and what the daemon is doing."""

    clock: Callable[[], float] = time.time
    home: str = ""
    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)
    flips: deque[Flipped] = field(default_factory=lambda: deque(maxlen=SHOWN_FLIPS))
    notices: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=SHOWN_NOTICES))
    broken: dict[tuple[str, str], str] = field(default_factory=dict)
    activity: str = "starting workers"
    cause: str = ""
    began: float | None = None
    total: int = 0
    seen: int = 0
    paused: bool = False
    device: str | None = None
    """The only device shown, or None for all."""
    failing_only: bool = False
    """Whether only repros that fail on some device are shown."""
    selected: str = ""
    """The repro whose error is shown."""
    rows: list[str] = field(default_factory=list)
    """The repros as they are listed. A row keeps its line when its verdict changes; ``sort`` puts what fails first."""
    notes: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Owner, issue and why it is muted, of the repros whose header says so."""
    build_failure: str = ""
    """The first error of the build that failed last, and when."""

    def hear(self, event: Event) -> None:
        match event:
            case events.Started():
                self.home = event.home
                self.show_states(event.states)
                self.notes = {notes["repro"]: notes for notes in event.notes}
            case events.Columns():
                cells = self.cells.items()
                self.cells = {key: cell for key, cell in cells if key[1].partition(" ")[0] in event.places}
                self.show_states(event.states)
            case events.SweepStarted():
                self.activity, self.began = f"sweep {event.sweep}", event.at
                self.total, self.seen, self.cause = event.jobs, 0, event.cause(4)
                for cell in self.cells.values():
                    cell.fresh, cell.maybe = False, ""
            case Judged():
                self.seen += 1
                self.cell(event.repro, event.device).show(event)
            case events.Unconfirmed():
                self.cell(event.repro, event.device).maybe = event.verdict
            case Flipped():  # it may come without a result of a sweep
                cell = self.cell(event.repro, event.device)
                cell.verdict, cell.since, cell.flip = event.after, event.at, event
                if not event.muted:
                    self.flips.appendleft(event)
            case events.SweepFinished():
                self.activity = f"waiting; sweep {event.sweep} took {event.seconds:.2f} s"
                if event.first_verdict_seconds:
                    self.activity += f", first verdict after {event.first_verdict_seconds:.2f} s"
                self.began = None
                self.rows = self.names(every=True)
            case events.BackendBroken():
                self.broken[event.backend, event.device] = event.reason
            case events.BackendBack():
                self.broken.pop((event.backend, event.device), None)
            case events.ReproAdded() | events.ReproEdited():  # its header may say something else now
                self.notes[event.repro] = event.notes
            case events.ReproRemoved():
                self.cells = {key: cell for key, cell in self.cells.items() if key[0] != event.repro}
            case events.BuildStarted():
                self.activity, self.began, self.total = f"building: {event.command}", event.at, 0
            case events.BuildFailed():  # nothing is judged until a build succeeds
                self.activity, self.began = f"build failed {clock(event.at)}, rows are from before it", None
                self.build_failure = event.error
            case events.BuildFinished():
                self.activity, self.began, self.build_failure = "waiting; built", None, ""
            case events.Paused() | events.Resumed():
                self.paused = isinstance(event, events.Paused)
        if isinstance(event, NOTICES) and (not self.notices or self.notices[-1][1] != event.line()):
            self.notices.append((event.at, event.line()))

    def cell(self, repro: str, device: str) -> Cell:
        return self.cells.setdefault((repro, device), Cell())

    def show_states(self, states: Iterable[State]) -> None:
        for state in states:
            cell = Cell(state.verdict, state.since, note=state.reason)
            self.cells[state.repro, state.device] = cell

    def next_device(self) -> None:
        """Show the next single device, or all again after the last."""
        devices: list[str | None] = [None, *self.devices(), None]
        self.device = devices[devices.index(self.device) + 1] if self.device in devices else None

    def sort(self) -> None:
        """What fails first: only when a person asks, since rows that jump about cannot be read."""
        self.rows = []

    def select(self, step: int) -> None:
        """Select the row that many lines further down."""
        names = self.names()
        place = names.index(self.selected) + step if self.selected in names else (0 if step > 0 else -1)
        self.selected = names[max(0, min(place, len(names) - 1))] if names else ""

    def cells_of(self, name: str) -> dict[str, Cell]:
        return {device: cell for (one, device), cell in self.cells.items() if one == name}

    def flip_of(self, name: str) -> Flipped | None:
        """The repro's last flip to a failure, for its bisection."""
        flips = [cell.flip for cell in self.cells_of(name).values()]
        return next((flip for flip in flips if flip is not None and flip.kind == "REGRESSED"), None)

    def devices(self) -> list[str]:
        return sorted({device for _, device in self.cells})

    # Drawing

    def render(self, width: int, height: int) -> RenderableType:
        """All of it, in at most ``height`` lines of ``width`` characters."""
        head: list[RenderableType] = [self.headline()]
        if self.build_failure:
            head += [line(text, "bold red") for text in wrapped(self.build_failure, width, SHOWN_DETAILS)]
        head += [
            line(f"broken: {backend} on {device}: {why}", "bold red")
            for (backend, device), why in self.broken.items()
        ]
        head += [
            line(f"{clock(flip.at)} {flip.line()}", FLIP_STYLES.get(flip.kind, "bold yellow"))
            for flip in self.flips
        ]
        foot: list[RenderableType] = [line(text, "") for text in self.details(width)]
        foot += [line(f"{clock(at)} {text}", "dim") for at, text in self.notices]
        foot.append(line(KEYS, "dim"))
        room = max(1, height - len(head) - len(foot) - 3)
        return Group(*head, self.table(room, width), *foot)

    def details(self, width: int) -> list[str]:
        """The error of the selected row in full, as far as there is room, and what its header says for people."""
        cells = self.cells_of(self.selected)
        lines = []
        for device, cell in cells.items():
            if cell.note:
                where = f" [{device}]" if len(cells) > 1 else ""
                lines += wrapped(f"{self.selected}{where}: {cell.note}", width, SHOWN_DETAILS)
        notes = self.notes.get(self.selected, {})
        told = [f"{name}: {text}" for name, text in notes.items() if name != "repro"]
        return [*lines, *(["  ".join(told)] if told else [])]

    def headline(self) -> Text:
        """What the daemon does, how far it is, and which files caused it."""
        parts = [f"minidbg watch {display_path(self.home)}" if self.home else "minidbg watch"]
        if self.failing_only:
            parts.append("only what fails is shown")  # in front: a narrow terminal cuts the end off
        parts.append("paused" if self.paused else self.activity)
        if self.began is not None and self.total:
            parts.append(f"{self.seen}/{self.total} in {self.clock() - self.began:.1f} s")
        elif self.began is not None:
            parts.append(f"{self.clock() - self.began:.1f} s")
        if self.cause:
            parts.append(f"changed: {self.cause}")
        return line("  |  ".join(parts), "bold")

    def table(self, room: int, width: int) -> Table:
        """The matrix; what does not fit is counted."""
        devices = [self.device] if self.device else self.devices()
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), width=width)
        table.add_column("  repro", no_wrap=True, overflow="ellipsis", ratio=4)
        for device in devices:
            table.add_column(device, no_wrap=True, overflow="ellipsis", ratio=3)
        for name in ("since", "took"):
            table.add_column(name, no_wrap=True, style="dim", justify="right")
        table.add_column("", no_wrap=True, overflow="ellipsis", ratio=5, style="dim")
        names, flipped = self.names(), {name for (name, _), cell in self.cells.items() if cell.flip}
        first = max(0, names.index(self.selected) - room + 2) if self.selected in names else 0
        for name in names[first : first + (room if len(names) <= room else room - 1)]:
            cells = [self.cells.get((name, device)) for device in devices]
            seen = [cell for cell in cells if cell is not None]
            since = max((cell.since for cell in seen if cell.since is not None), default=None)
            mark = f"{'>' if name == self.selected else ' '}{MARK if name in flipped else ' '}"
            took = max((cell.seconds for cell in seen if cell.fresh), default=0.0)
            table.add_row(
                Text(mark + printable(name), style="bold" if mark.strip() else ""),
                *(self.cell_text(cell) for cell in cells),
                span(self.clock() - since) if since is not None else "",
                f"{took:.1f} s" if took else "",
                self.remark(name, seen),
            )
        if len(names) > room:
            table.add_row(f"... and {plural(len(names) - room + 1, 'more repro')}")
        return table

    def remark(self, name: str, cells: Sequence[Cell]) -> str:
        """Why it is muted, else what is said of its verdict."""
        muted = self.notes.get(name, {}).get("muted", "")
        note = f"muted: {muted}" if muted else next((cell.note for cell in cells if cell.note), "")
        return printable(note).partition("\n")[0]

    def names(self, *, every: bool = False) -> list[str]:
        """The repros to show: listed rows where they are, then others, what fails first."""
        ranks: dict[str, int] = {}
        failing = set()
        for (name, _), cell in self.cells.items():
            rank = ORDER.index(cell.verdict) if cell.verdict in STYLES else 0
            ranks[name] = min(rank, ranks.get(name, rank))
            if {cell.verdict, cell.maybe} & FAILING:  # also of a run that has just shown one
                failing.add(name)
        rows = [name for name in self.rows if name in ranks]
        rows += sorted(ranks.keys() - set(rows), key=lambda name: (ranks[name], name))
        return rows if every or not self.failing_only else [name for name in rows if name in failing]

    def cell_text(self, cell: Cell | None) -> Text:
        """The verdict, and a new one that is being confirmed; dim until the running sweep has seen it."""
        if cell is None:
            return Text("-", style="dim")
        text = Text(cell.verdict or "?", style=STYLES.get(cell.verdict, ""))
        if cell.maybe:
            text.append(f" -> {cell.maybe}?", style=STYLES.get(cell.maybe, ""))
        if self.began is not None and self.total and not cell.fresh:
            text.stylize("dim")
        return text


def line(text: str, style: str) -> Text:
    """One line that is cut off rather than wrapped."""
    return Text(printable(text).replace("\n", " "), style=style, no_wrap=True, overflow="ellipsis", end="\n")


def wrapped(text: str, width: int, most: int) -> list[str]:
    """``text`` in at most ``most`` lines, the first of which it begins."""
    lines = [
        part
        for one in text.splitlines()
        for part in textwrap.wrap(printable(one), max(20, width - 2)) or [""]
    ]
    return lines if len(lines) <= most else [*lines[: most - 1], lines[most - 1][: width - 6] + " ..."]


def clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def span(seconds: float) -> str:
    """``5 s``, ``12 min``, ``3 h``, ``9 d``."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds / size)} {unit}"
    return f"{max(0, int(seconds))} s"
