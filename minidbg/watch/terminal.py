"""The live view: which row is selected, what each key does, how all of it is drawn in the lines and
columns there are, and a terminal.

To add a key, write its row of ``HELP`` and its case in ``Screen.press``. What the daemon is to do
is a message: return one there is, or add one to ``Wish`` in ``views.py``, and its case in
``Daemon.dispatch``.
"""

from __future__ import annotations

import os
import re
import sys
import termios
import textwrap
import threading
import time
import tty
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from minidbg.core.text import display_path, plural, printable
from minidbg.watch.events import Cell, Event, Flipped, Matrix, names_of
from minidbg.watch.views import RunAll, Stop, View, Wish

STYLES: Mapping[str | None, str] = {
    "crashed": "bold yellow", "timeout": "yellow", "changed": "yellow", "flaky": "magenta",
    "reproduces": "red", "invalid": "bold red", "skipped": "dim", "gone": "green",
    "FIXED": "bold green", "REGRESSED": "bold red",
}  # fmt: skip
HELP = (
    ("Enter", "rerun", "run all repros again, and sort them: what fails comes first"),
    ("up/down", "select", "select a repro, and show its error; also j and k, page up and down"),
    ("q", "quit", "end watching"),
    ("?", "help", "show this list; any key closes it"),
    ("~verdict", "", "old: not judged on the present code, or not yet"),
    ("verdict?", "", "a new verdict, which a fresh interpreter is confirming"),
)
KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO.|.", re.DOTALL)
"""What one press of a key sends."""
ARROWS = {
    "\x1b[A": -1, "\x1b[B": 1, "\x1bOA": -1, "\x1bOB": 1, "k": -1, "j": 1, "\x1b[5~": -10, "\x1b[6~": 10,
}  # fmt: skip
"""How many rows each goes down."""
NAME_CHARACTERS, DEVICE_CHARACTERS = 34, 14
"""A name has at least so many; devices that have no room for theirs are not shown."""


@dataclass(slots=True)
class Screen:
    matrix: Matrix = field(default_factory=Matrix)
    clock: Callable[[], float] = time.time
    selected: str = ""
    help: bool = False

    def press(self, key: str) -> Wish | None:
        """Change what is shown; what the daemon is to do."""
        self.help = key == "?" and not self.help
        repros = self.matrix.repros
        match key:
            case "q":
                return Stop("asked to")
            case "\r" | "\n":
                self.matrix.sort()
                return RunAll()
            case _ if key in ARROWS and repros:
                at = repros.index(self.selected) if self.selected in repros else -1
                self.selected = repros[min(max(0, at + ARROWS[key]), len(repros) - 1)]
        return None

    def render(self, width: int, height: int) -> RenderableType:
        """What matters most comes first; lines and rows that do not fit are cut off and counted."""
        matrix = self.matrix
        head = lines(self.headline(), width, "bold")
        head += lines(matrix.build_failure, width, "bold red", most=3)
        for (backend, device), why in matrix.broken.items():
            head += lines(f"broken: {backend} on {device}: {why}", width, "bold red", most=2)
        flips = [*matrix.flips][: max(1, height // 6)]
        for flip in flips:
            head += lines(timed(flip), width, STYLES.get(flip.kind, "bold yellow"))
        if earlier := len(matrix.flips) - len(flips):
            count = plural(earlier, "earlier flip")
            head += lines(f"... and {count}; all: minidbg history", width, "dim")
        if self.help:
            return Group(*head, *(Text(f"  {key:<10}{sentence}") for key, _, sentence in HELP))
        foot = []
        for device, cell in matrix.of_repro(self.selected).items():
            note = f"{self.selected} [{device}]: {cell.note}" if cell.note else ""
            foot += lines(note, width, most=max(2, height // 4))
        for notice in [*matrix.notices][-max(1, height // 12) :]:
            foot += lines(timed(notice), width, "dim", most=2)
        foot += lines("  ".join(f"{key} {word}" for key, word, _ in HELP if word), width, "dim")
        return Group(*head, *self.rows(width, height - len(head) - len(foot)), *foot)

    def headline(self) -> str:
        matrix = self.matrix
        began = "" if matrix.began is None else f"{self.clock() - matrix.began:.1f} s"
        progress = f"{matrix.ended}/{matrix.jobs} in {began}" if began and matrix.jobs else began
        changed = f"changed: {names_of(matrix.files, 2)}" if matrix.files else ""
        home = display_path(matrix.home) if matrix.home else ""
        return "  |  ".join(filter(None, [matrix.activity, progress, changed, home]))

    def rows(self, width: int, height: int) -> list[RenderableType]:
        repros, devices = self.matrix.repros, self.matrix.devices
        columns, room = max(1, (width - NAME_CHARACTERS) // DEVICE_CHARACTERS), max(1, height - 2)
        first = max(0, repros.index(self.selected) - room + 1) if self.selected in repros else 0
        table = Table.grid(padding=(0, 2, 0, 0))
        most = width - min(columns, len(devices)) * DEVICE_CHARACTERS - 2
        table.add_column(no_wrap=True, overflow="ellipsis", max_width=most)
        for _ in devices[:columns]:
            table.add_column(no_wrap=True, overflow="ellipsis")
        table.add_column()  # only this one gives way, since it may be wrapped; its texts may not
        titles = ["  repro", *devices[:columns], " since    took"]
        table.add_row(*(Text(title, no_wrap=True) for title in titles), style="bold")
        for repro in repros[first : first + room]:
            table.add_row(*self.row(repro, devices[:columns]))
        below = len(repros) - room
        more = [f"{plural(below, 'more repro')}: up/down scrolls"] if below > 0 else []
        if len(devices) > columns:
            more.append(f"{plural(len(devices) - columns, 'more device')}: 'minidbg list' has all")
        return [table, *lines(f"... and {'; '.join(more)}" if more else "", width, "dim")]

    def row(self, repro: str, devices: list[str]) -> list[Text]:
        cells = self.matrix.of_repro(repro)
        since = max((cell.since for cell in cells.values() if cell.since is not None), default=None)
        took = max(cell.seconds for cell in cells.values())
        note = next((cell.note for cell in cells.values() if cell.note), "").partition("\n")[0]
        times = f"{span(self.clock() - since) if since is not None else '':>6}"
        times += f"{f'{took:.1f} s' if took else '':>8}"
        return [
            Text(f"{'>' if repro == self.selected else ' '} {printable(repro)}"),
            *(self.verdict(cells.get(device)) for device in devices),
            Text(f"{times}  {printable(note)}".rstrip(), style="dim", no_wrap=True, overflow="ellipsis"),
        ]

    def verdict(self, cell: Cell | None) -> Text:
        if cell is None:
            return Text("-", style="dim")
        if cell.maybe:
            return Text(f"{cell.maybe}?", style=STYLES.get(cell.maybe, ""))
        if self.matrix.is_old(cell):
            return Text(f"~{cell.verdict}", style="dim")
        return Text(str(cell.verdict), style=STYLES.get(cell.verdict, ""))


class TerminalView(View):
    """Shows the matrix until it is closed; then the terminal is as it was, with the flips below."""

    def __init__(self, wish: Callable[[Wish], object]) -> None:
        self.wish, self.screen, self.console = wish, Screen(), Console()
        self.lock = threading.Lock()
        self.live = Live(get_renderable=self.draw, console=self.console, screen=True)
        self.keyboard = sys.stdin.fileno()
        self.before = termios.tcgetattr(self.keyboard)
        # Keys arrive one by one and unseen. Ctrl-C stays a signal.
        tty.setcbreak(self.keyboard, termios.TCSADRAIN)  # the default drops what was typed already
        self.live.start(refresh=True)
        threading.Thread(target=self.read_keys, name="minidbg-keys", daemon=True).start()

    def draw(self) -> RenderableType:
        """Called by rich, from its own thread."""
        with self.lock:
            return self.screen.render(self.console.width, self.console.height)

    def show(self, event: Event) -> None:
        with self.lock:
            event.update(self.screen.matrix)
        if isinstance(event, Flipped):
            self.console.bell()

    def read_keys(self) -> None:
        """In a thread: turn keys into messages, until our process or the terminal ends."""
        while pressed := os.read(self.keyboard, 64):
            for key in KEY.findall(pressed.decode(errors="replace")):
                with self.lock:
                    message = self.screen.press(key)
                if message:
                    self.wish(message)

    def close(self) -> None:
        """Give the terminal back."""
        self.live.stop()
        termios.tcsetattr(self.keyboard, termios.TCSADRAIN, self.before)
        for flip in reversed(self.screen.matrix.flips):
            self.console.print(flip.line(), markup=False, highlight=False)


def lines(text: str, width: int, style: str = "", most: int = 1) -> list[Text]:
    """``text`` in at most so many lines, the last of which is cut off; none when it is empty."""
    parts = textwrap.wrap(printable(text), width)
    parts = [*parts[: most - 1], " ".join(parts[most - 1 :])]
    return [Text(part, style=style, no_wrap=True, overflow="ellipsis") for part in parts if part]


def timed(event: Event) -> str:
    return f"{time.strftime('%H:%M:%S', time.localtime(event.at))} {event.line()}"


def span(seconds: float) -> str:
    """``5 s``, ``12 min``, ``3 h``, ``9 d``."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds / size)} {unit}"
    return f"{max(0, int(seconds))} s"
