"""The live view: the matrix on the terminal's second screen, and the keys that steer the daemon."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console, RenderableType
from rich.live import Live

from minidbg.watch.announce import Event
from minidbg.watch.matrix import Matrix
from minidbg.watch.messages import Inbox, Key

MESSAGES = {"\r": "rerun", "\n": "rerun", "f": "failing", "p": "pause", "q": "quit"}
REFRESHES_A_SECOND = 4


class Terminal:
    """Shows the matrix until it is closed; then the terminal is as it was, with the flips below."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self.matrix = Matrix()
        self.console = Console()
        self.lock = threading.Lock()
        self.wake_reader, self.wake_writer = os.pipe()
        self.live = Live(
            get_renderable=self.draw, console=self.console, screen=True, refresh_per_second=REFRESHES_A_SECOND
        )
        self.keys = threading.Thread(target=self.read_keys, name="minidbg-keys", daemon=True)
        self.live.start()
        self.keys.start()

    def draw(self) -> RenderableType:
        """Called by rich, from its own thread."""
        with self.lock:
            return self.matrix.render(self.console.width, self.console.height)

    def show(self, event: Event) -> None:
        """Take an event in; a flip rings the bell."""
        with self.lock:
            self.matrix.hear(event)
        if event.name == "flip":
            self.console.bell()

    def read_keys(self) -> None:
        """In a thread: turn keys into messages."""
        with single_keys():
            while True:
                ready, _, _ = select.select([sys.stdin, self.wake_reader], [], [])
                if self.wake_reader in ready:
                    return
                pressed = os.read(sys.stdin.fileno(), 1).decode(errors="replace")
                if not pressed:
                    return
                self.pressed(pressed)

    def pressed(self, key: str) -> None:
        """Do what a key stands for."""
        if key in MESSAGES:
            self.inbox.put(Key(MESSAGES[key]))
        elif key == "d":
            with self.lock:
                self.matrix.next_device()
        elif key == "o":
            self.open_repro()

    def open_repro(self) -> None:
        """Open the repro that flipped last, else the first of the list, with whatever the system opens scripts with."""
        names = sorted({name for name, _ in self.matrix.cells}, key=self.matrix.attention)
        path = self.matrix.last_repro or (str(Path(self.matrix.home, names[0])) if names else "")
        if path:
            click.launch(path)

    def close(self) -> None:
        """Give the terminal back."""
        os.write(self.wake_writer, b"x")
        self.keys.join(timeout=2)
        self.live.stop()
        for descriptor in (self.wake_reader, self.wake_writer):
            os.close(descriptor)
        for _, _, text in reversed(self.matrix.flips):
            self.console.print(text, markup=False, highlight=False)


@contextlib.contextmanager
def single_keys() -> Iterator[None]:
    """Let keys arrive one by one and unseen. Ctrl-C stays a signal."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
