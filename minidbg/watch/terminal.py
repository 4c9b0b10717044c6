"""The live view: the matrix on the terminal's second screen, and the keys that steer the daemon."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import subprocess
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console, RenderableType
from rich.live import Live

from minidbg.watch.announce import View
from minidbg.watch.daemon import Inbox, Key
from minidbg.watch.events import Event, Flipped
from minidbg.watch.matrix import Matrix
from minidbg.words import environment
from minidbg.words.text import display_path

ENTER = "\r\n"
KEY = re.compile(r"\x1b[\[O].|.", re.DOTALL)
ARROWS = {"\x1b[A": -1, "\x1b[B": 1, "\x1bOA": -1, "\x1bOB": 1, "k": -1, "j": 1}
REFRESHES_A_SECOND = 4


class Terminal(View):
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
        self.editor: subprocess.Popen[bytes] | None = None
        self.closing = False
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
        if isinstance(event, Flipped) and not event.muted:
            self.console.bell()

    def read_keys(self) -> None:
        """In a thread: turn keys into messages. While an editor is open, the terminal is the editor's."""
        while True:
            with single_keys():
                wants_open = self.read_until_open()
            if not wants_open:
                return
            self.open_repro()

    def read_until_open(self) -> bool:
        """Handle keys until ``o`` (True) or the end (False)."""
        while True:
            ready, _, _ = select.select([sys.stdin, self.wake_reader], [], [])
            if self.wake_reader in ready:
                return False
            pressed = os.read(sys.stdin.fileno(), 64).decode(errors="replace")
            if not pressed:
                return False
            for key in KEY.findall(pressed):
                if key == "o":
                    return True
                self.pressed(key)

    def pressed(self, key: str) -> None:
        message = {"p": "pause", "q": "quit"}.get(key, "")
        with self.lock:
            if key == "d":
                self.matrix.next_device()
            elif key in ARROWS:
                self.matrix.select(ARROWS[key])
            elif key == "f":
                self.matrix.failing_only = not self.matrix.failing_only
                self.matrix.sort()
                message = "failing" if self.matrix.failing_only else ""
            elif key in ENTER:
                self.matrix.sort()
                message = "failing" if self.matrix.failing_only else "rerun"
        if key == "b":
            self.bisect()
        elif message:
            self.inbox.put(Key(message))

    def bisect(self) -> None:
        """Search the commit at which the selected repro regressed, or the one that regressed last."""
        with self.lock:
            flipped = (name for name in self.matrix.names() if self.matrix.flip_of(name))
            name = self.matrix.selected or next(flipped, "")
            flip = self.matrix.flip_of(name)
        if flip is not None:
            self.inbox.put(Key("bisect", flip.path, flip.device, flip.last_before, flip.first_after))
        else:
            self.note(f"{name or 'no repro'} has not regressed while this was watched; nothing to bisect")

    def open_repro(self) -> None:
        """Open the selected repro, else the one that flipped last or the first: in the person's editor, else as the system does."""
        with self.lock:
            names = [self.matrix.selected] if self.matrix.selected else self.matrix.names()
            flipped = self.matrix.flips[0].path if self.matrix.flips and not self.matrix.selected else ""
            path = flipped or (str(Path(self.matrix.home, names[0])) if names else "")
        if not path:
            return
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
        if editor:
            self.edit([*shlex.split(editor), path])
        elif click.launch(path) != 0:
            self.note(f"nothing opens {display_path(path)}; set EDITOR to the editor of your choice")

    def edit(self, command: list[str]) -> None:
        """Give the terminal to an editor until it ends. The daemon goes on meanwhile."""
        self.live.stop()
        try:
            self.editor = subprocess.Popen(command, env=environment.for_tool())
            self.editor.wait()
        except OSError as error:
            self.note(f"{command[0]} cannot be started: {error.strerror or error}")
        finally:
            self.editor = None
            if not self.closing:
                self.live.start(refresh=True)

    def note(self, text: str) -> None:
        with self.lock:
            self.matrix.notices.append((time.time(), text))

    def close(self) -> None:
        """Give the terminal back; an editor that is open is asked to end."""
        self.closing = True
        if self.editor is not None:
            self.editor.terminate()
        os.write(self.wake_writer, b"x")
        self.keys.join(timeout=2)
        self.live.stop()
        for descriptor in (self.wake_reader, self.wake_writer):
            os.close(descriptor)
        for flip in reversed(self.matrix.flips):
            self.console.print(flip.line(), markup=False, highlight=False)


@contextlib.contextmanager
def single_keys() -> Iterator[None]:
    """Let keys arrive one by one and unseen. Ctrl-C stays a signal."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor, termios.TCSADRAIN)  # the default would drop what was typed already
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
