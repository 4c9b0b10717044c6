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
import tty
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console, RenderableType
from rich.live import Live

from minidbg.watch.announce import View
from minidbg.watch.daemon import Inbox, Key
from minidbg.watch.drawing import earlier_flips, render
from minidbg.watch.events import Event, Flipped
from minidbg.watch.matrix import Matrix
from minidbg.words import environment
from minidbg.words.text import display_path

ENTER = "\r\n"
KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO.|.", re.DOTALL)
PAGE = 10
ARROWS = {
    "\x1b[A": -1, "\x1b[B": 1, "\x1bOA": -1, "\x1bOB": 1, "k": -1, "j": 1, "\x1b[5~": -PAGE, "\x1b[6~": PAGE,
}  # fmt: skip
"""How many rows each key goes down."""
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
            return render(self.matrix, self.console.width, self.console.height)

    def show(self, event: Event) -> None:
        with self.lock:
            self.matrix.hear(event)
        if isinstance(event, Flipped):
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
                if self.pressed(key):
                    return True

    def pressed(self, key: str) -> bool:
        with self.lock:
            message = obey(self.matrix, key)
            opens = key == "o" and not self.matrix.answer
        if message:
            self.inbox.put(message)
        return opens

    def open_repro(self) -> None:
        """Open the selected repro, else the one that flipped last or the first: in the person's editor, else as the system does."""
        with self.lock:
            names = [self.matrix.selected] if self.matrix.selected else self.matrix.names()
            flipped = self.matrix.flips[0].path if self.matrix.flips and not self.matrix.selected else ""
            path = flipped or str(Path(self.matrix.home, *names[:1]))
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
        if editor:
            self.edit([*shlex.split(editor), path])
        elif click.launch(path) != 0:
            self.answer(f"nothing opens {display_path(path)}; set EDITOR to the editor of your choice")

    def edit(self, command: list[str]) -> None:
        """Give the terminal to an editor until it ends. The daemon goes on meanwhile."""
        self.live.stop()
        try:
            self.editor = subprocess.Popen(command, env=environment.for_tool())
            self.editor.wait()
        except OSError as error:
            self.answer(f"{command[0]} cannot be started: {error.strerror or error}")
        finally:
            self.editor = None
            if not self.closing:
                self.live.start(refresh=True)

    def answer(self, text: str) -> None:
        with self.lock:
            self.matrix.answer = text

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
        earlier = earlier_flips(self.matrix, len(self.matrix.flips))
        for text in (*filter(None, [earlier]), *(flip.line() for flip in reversed(self.matrix.flips))):
            self.console.print(text, markup=False, highlight=False)


def obey(matrix: Matrix, key: str) -> Key | None:
    """Change what is shown as the key says, or say why that cannot be; what the daemon is to do."""
    matrix.help, matrix.answer = key == "?" and not matrix.help, ""
    names = matrix.names()
    match key:
        case "q":
            return Key("quit")
        case "o":
            matrix.answer = "" if names else "no repro to open"
        case _ if key in ARROWS:
            matrix.select(ARROWS[key])
            matrix.answer = "" if names else "no repro to select"
        case _ if key in ENTER:
            matrix.sort()
            if not names:
                matrix.answer = "no repro to run"
            return Key("rerun")
        case _ if key != "?" and key.isprintable():
            matrix.answer = f"{key} is no key here; ? lists the keys"
    return None


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
