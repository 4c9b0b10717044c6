"""The live view: the screen, drawn again and again, and a thread that reads keys for it."""

from __future__ import annotations

import os
import re
import sys
import termios
import threading
import tty
from pathlib import Path

import click
from rich.console import Console, RenderableType
from rich.live import Live

from minidbg.watch.daemon import Inbox
from minidbg.watch.events import Event, Flipped, Notice
from minidbg.watch.screen import Screen
from minidbg.watch.views import View

KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO.|.", re.DOTALL)


class Terminal(View):
    """Shows the matrix until it is closed; then the terminal is as it was, with the flips below."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox, self.screen, self.console = inbox, Screen(), Console()
        self.lock = threading.Lock()
        self.live = Live(get_renderable=self.draw, console=self.console, screen=True)
        self.keyboard = sys.stdin.fileno()
        self.before = termios.tcgetattr(self.keyboard)
        self.editing = threading.Lock()  # held while an editor has the terminal
        self.begin()
        threading.Thread(target=self.read_keys, name="minidbg-keys", daemon=True).start()

    def begin(self) -> None:
        """Draw, and let keys arrive one by one and unseen. Ctrl-C stays a signal."""
        tty.setcbreak(self.keyboard, termios.TCSADRAIN)  # the default would drop what was typed already
        self.live.start(refresh=True)

    def end(self) -> None:
        self.live.stop()
        termios.tcsetattr(self.keyboard, termios.TCSADRAIN, self.before)

    def draw(self) -> RenderableType:
        """Called by rich, from its own thread."""
        with self.lock:
            return self.screen.render(self.console.width, self.console.height)

    def show(self, event: Event) -> None:
        with self.lock:
            self.screen.matrix.hear(event)
        if isinstance(event, Flipped):
            self.console.bell()

    def read_keys(self) -> None:
        """In a thread: turn keys into messages, until our process or the terminal ends."""
        while pressed := os.read(self.keyboard, 64):
            for key in KEY.findall(pressed.decode(errors="replace")):
                with self.lock:
                    message, repro = self.screen.press(key), self.screen.to_open()
                if message:
                    self.inbox.put(message)
                if key == "o" and repro:
                    self.edit(Path(self.screen.matrix.home, repro))

    def edit(self, path: Path) -> None:
        """Give the terminal to the person's editor until it ends. The daemon goes on meanwhile, but does not end."""
        with self.editing:
            self.end()
            try:
                click.edit(filename=str(path))
            except click.ClickException as error:
                self.inbox.put(Notice(error.message))
            self.begin()

    def close(self) -> None:
        """Give the terminal back, once no editor has it."""
        self.editing.acquire()
        self.end()
        for flip in reversed(self.screen.matrix.flips):
            self.console.print(flip.line(), markup=False, highlight=False)
