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

from minidbg.watch.daemon import Inbox
from minidbg.watch.drawing import render
from minidbg.watch.events import Event, Flipped
from minidbg.watch.matrix import Matrix
from minidbg.watch.views import View
from minidbg.words import environment
from minidbg.words.text import display_path

KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO.|.", re.DOTALL)
REFRESHES_A_SECOND = 4


class Terminal(View):
    """Shows the matrix until it is closed; then the terminal is as it was, with the flips below."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox, self.matrix, self.console = inbox, Matrix(), Console()
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
                path = self.read_until_open()
            if path is None:
                return
            self.open(path)

    def read_until_open(self) -> str | None:
        """Handle keys until a repro is to be opened, or the end."""
        while True:
            ready, _, _ = select.select([sys.stdin, self.wake_reader], [], [])
            pressed = b"" if self.wake_reader in ready else os.read(sys.stdin.fileno(), 64)
            if not pressed:
                return None
            for key in KEY.findall(pressed.decode(errors="replace")):
                with self.lock:
                    message, repro = self.matrix.press(key), self.matrix.to_open()
                if message:
                    self.inbox.put(message)
                if key == "o" and repro:
                    return str(Path(self.matrix.home, repro))

    def open(self, path: str) -> None:
        """Give the terminal to the person's editor until it ends; without one the system opens the repro. The daemon goes on meanwhile."""
        if not (editor := os.environ.get("VISUAL") or os.environ.get("EDITOR")):
            if click.launch(path) != 0:
                self.answer(f"nothing opens {display_path(path)}; set EDITOR to the editor of your choice")
            return
        self.live.stop()
        try:
            self.editor = subprocess.Popen([*shlex.split(editor), path], env=environment.for_tool())
            self.editor.wait()
        except OSError as error:
            self.answer(f"{editor} cannot be started: {error.strerror or error}")
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
