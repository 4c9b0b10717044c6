"""The matrix of repros and devices as it is shown live: what each event changes in it, and how it is drawn."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from minidbg.watch.announce import Event
from minidbg.watch.plain import line_of, plural, printable, shown
from minidbg.watch.states import FAILING

STYLES: Mapping[str, str] = {
    "gone": "green",
    "reproduces": "red",
    "changed": "yellow",
    "crashed": "bold yellow",
    "timeout": "yellow",
    "flaky": "magenta",
    "skipped": "dim",
    "invalid": "bold red",
    "fallback": "cyan",
}
FLIP_STYLES: Mapping[str, str] = {"FIXED": "bold green", "REGRESSED": "bold red"}
ORDER = (
    "crashed",
    "timeout",
    "changed",
    "flaky",
    "reproduces",
    "invalid",
    None,
    "fallback",
    "skipped",
    "gone",
)
SHOWN_NOTICES = 4
SHOWN_FLIPS = 6
KEYS = "Enter rerun   f failing only, and run them   d device   p pause   o open   q quit"


@dataclass(slots=True)
class Cell:
    """One repro on one device."""

    verdict: str | None = None
    since: float | None = None
    seconds: float = 0.0
    fresh: bool = False
    """Whether the sweep that is shown has seen it."""
    note: str = ""
    maybe: str = ""
    """A new verdict that is being confirmed."""


@dataclass(slots=True)
class Matrix:
    """What is known, and what the daemon is doing."""

    clock: Callable[[], float] = time.time
    home: str = ""
    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)
    flips: deque[tuple[float, str, str]] = field(default_factory=lambda: deque(maxlen=SHOWN_FLIPS))
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
    last_repro: str = ""
    """The path of the repro that flipped last: what ``o`` opens."""

    def hear(self, event: Event) -> None:
        """Take an event in."""
        change = getattr(self, f"on_{event.name}", None)
        if change is not None:
            change(event)
        elif event.name in (
            "notice",
            "device_missing",
            "repro_damaged",
            "build_failed",
            "reduction_finished",
            "process_died",
            "capture_known",
        ):
            self.notices.append((event.at, line_of(event)))

    def on_started(self, event: Event) -> None:
        """The states of earlier days."""
        self.home = event.data["home"]
        for state in event.data["states"]:
            self.cells[state["repro"], state["device"]] = Cell(state["verdict"], state["since"])

    def on_sweep_started(self, event: Event) -> None:
        """A sweep begins."""
        data = event.data
        self.activity, self.began, self.total, self.seen = f"sweep {data['sweep']}", event.at, data["jobs"], 0
        self.cause = ", ".join(data["files"][:4]) + (", ..." if data["changed"] > 4 else "")
        for cell in self.cells.values():
            cell.fresh, cell.maybe = False, ""

    def on_result(self, event: Event) -> None:
        """A verdict."""
        data = event.data
        cell = self.cells.setdefault((data["repro"], data["device"]), Cell())
        verdict = data["verdict"] or data["standing"]
        if cell.verdict != verdict:
            cell.since = event.at
        cell.verdict, cell.seconds, cell.fresh, cell.note = verdict, data["seconds"], True, data["reason"]
        cell.maybe = ""
        self.seen += 1

    def on_unconfirmed(self, event: Event) -> None:
        """A verdict that may become a flip."""
        cell = self.cells.setdefault((event.data["repro"], event.data["device"]), Cell())
        cell.maybe = event.data["verdict"]

    def on_flip(self, event: Event) -> None:
        """A flip goes on top; it may come without a result of a sweep."""
        self.flips.appendleft((event.at, event.data["kind"], line_of(event)))
        self.last_repro = event.data["path"]
        cell = self.cells.setdefault((event.data["repro"], event.data["device"]), Cell())
        cell.verdict, cell.since = event.data["after"], event.at

    def on_sweep_finished(self, event: Event) -> None:
        """The sweep is over."""
        data = event.data
        first = (
            f", first verdict after {data['first_verdict_seconds']:.2f} s"
            if data["first_verdict_seconds"]
            else ""
        )
        self.activity = f"waiting; sweep {data['sweep']} took {data['seconds']:.2f} s{first}"
        self.began = None

    def on_backend_broken(self, event: Event) -> None:
        """A backend that cannot do anything."""
        self.broken[event.data["backend"], event.data["device"]] = event.data["reason"]

    def on_backend_back(self, event: Event) -> None:
        """It can again."""
        self.broken.pop((event.data["backend"], event.data["device"]), None)

    def on_repro_removed(self, event: Event) -> None:
        """A repro is gone."""
        for key in [key for key in self.cells if key[0] == event.data["repro"]]:
            del self.cells[key]

    def on_build_started(self, event: Event) -> None:
        """A build runs."""
        self.activity, self.began, self.total = f"building: {event.data['command']}", event.at, 0

    def on_paused(self, event: Event) -> None:
        """No sweeps for now."""
        self.paused = True

    def on_resumed(self, event: Event) -> None:
        """Sweeps again."""
        self.paused = False

    def next_device(self) -> None:
        """Show the next single device, or all again after the last."""
        devices: list[str | None] = [None, *self.devices()]
        self.device = (
            devices[(devices.index(self.device) + 1) % len(devices)] if self.device in devices else None
        )

    def devices(self) -> list[str]:
        """The devices that have results."""
        return sorted({device for _, device in self.cells})

    # Drawing

    def render(self, width: int, height: int) -> RenderableType:
        """All of it, in at most ``height`` lines of ``width`` characters."""
        head: list[RenderableType] = [self.headline()]
        head += [
            line(f"broken: {backend} on {device}: {why}", "bold red")
            for (backend, device), why in self.broken.items()
        ]
        head += [
            line(f"{clock(at)} {text}", FLIP_STYLES.get(kind, "bold yellow")) for at, kind, text in self.flips
        ]
        foot: list[RenderableType] = [line(f"{clock(at)} {text}", "dim") for at, text in self.notices]
        foot.append(line(KEYS, "dim"))
        room = max(1, height - len(head) - len(foot) - 3)
        return Group(*head, self.table(room, width), *foot)

    def headline(self) -> Text:
        """What the daemon does, how far it is, and which files caused it."""
        parts = [f"minidbg watch {shown(self.home)}"]
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
        """The matrix, what needs attention first; what does not fit is counted."""
        devices = [self.device] if self.device else self.devices()
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), width=width)
        table.add_column("repro", no_wrap=True, overflow="ellipsis", ratio=2)
        for device in devices:
            table.add_column(device, no_wrap=True, overflow="ellipsis", ratio=2)
        table.add_column("", no_wrap=True, overflow="ellipsis", ratio=3, style="dim")
        names = self.names()
        for name in names[: room if len(names) <= room else room - 1]:
            cells = [self.cells.get((name, device)) for device in devices]
            note = next((cell.note for cell in cells if cell and cell.note), "")
            table.add_row(printable(name), *(self.cell_text(cell) for cell in cells), printable(note))
        if len(names) > room:
            table.add_row(f"... and {plural(len(names) - room + 1, 'more repro')}")
        return table

    def names(self) -> list[str]:
        """The repros to show, what fails first."""
        found = {name for (name, _), cell in self.cells.items() if not self.failing_only or fails(cell)}
        return sorted(found, key=self.attention)

    def attention(self, name: str) -> tuple[int, str]:
        """Sort key: what fails comes before what does not."""
        ranks = [
            ORDER.index(cell.verdict) if cell.verdict in ORDER else 0
            for (one, _), cell in self.cells.items()
            if one == name
        ]
        return min(ranks, default=len(ORDER)), name

    def cell_text(self, cell: Cell | None) -> Text:
        """Verdict, how long it has been so, and how long the run took; dim until the running sweep has seen it."""
        if cell is None:
            return Text("-", style="dim")
        text = Text(cell.verdict or "?", style=STYLES.get(cell.verdict or "", ""))
        if cell.maybe:
            text.append(f" -> {cell.maybe}?", style=STYLES.get(cell.maybe, ""))
        if cell.since is not None:
            text.append(f" for {span(self.clock() - cell.since)}", style="dim")
        if cell.fresh and cell.seconds:
            text.append(f" {cell.seconds:.1f} s", style="dim")
        if self.began is not None and self.total and not cell.fresh:
            text.stylize("dim")
        return text


def fails(cell: Cell) -> bool:
    """Whether the cell shows a failure, or a run that has just shown one."""
    return {cell.verdict, cell.maybe} & FAILING != set()


def line(text: str, style: str) -> Text:
    """One line that is cut off rather than wrapped."""
    return Text(printable(text).replace("\n", " "), style=style, no_wrap=True, overflow="ellipsis", end="\n")


def clock(at: float) -> str:
    """Hours, minutes and seconds."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def span(seconds: float) -> str:
    """``5 s``, ``12 min``, ``3 h``, ``9 d``."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds / size)} {unit}"
    return f"{max(0, int(seconds))} s"


def as_text(matrix: Matrix, width: int = 100, height: int = 30) -> str:
    """The matrix without colours, for tests and documents."""
    console = Console(width=width, height=height, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(matrix.render(width, height))
    return capture.get()
