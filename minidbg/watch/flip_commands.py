"""``on_flip``: shell commands that get what flipped within one sweep as JSON Lines on stdin."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from minidbg.watch.announce import View
from minidbg.watch.events import Event, Flipped, SweepFinished
from minidbg.words import environment
from minidbg.words.text import in_one_line, plural

MOST_WAIT_S = 30.0
"""A flip in the midst of a long sweep, or outside of one, waits no longer for others."""
COMMAND_SECONDS = 60.0
CLOSE_SECONDS = 20.0


class FlipCommands(View):
    """Gathers flips and gives them to each command when the sweep has ended, beside us: one line a flip, the event as ``--json`` has it.

    A command that fails or takes too long is said by ``tell``, with its last line on stderr, and ends
    nothing.
    """

    def __init__(self, commands: Sequence[str], folder: Path, tell: Callable[[str], None]) -> None:
        self.commands, self.folder, self.tell = commands, folder, tell
        self.waiting: list[Flipped] = []
        self.lock = threading.Lock()
        self.timer: threading.Timer | None = None
        self.threads: list[threading.Thread] = []
        self.closing = False

    def show(self, event: Event) -> None:
        """A flip waits for others of its sweep."""
        if isinstance(event, Flipped):
            with self.lock:
                self.waiting.append(event)
                if self.timer is None:
                    self.timer = threading.Timer(MOST_WAIT_S, self.send)
                    self.timer.daemon = True
                    self.timer.start()
        elif isinstance(event, SweepFinished):
            self.send()

    def send(self) -> None:
        with self.lock:  # to the end: who closes waits for all that were started
            flips, self.waiting = self.waiting, []
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None
            if not flips:
                return
            data = "".join(json.dumps({**one.to_json(), "at": one.at}) + "\n" for one in flips).encode()
            started = [
                threading.Thread(target=self.run, args=(one, data, len(flips)), name="minidbg-on-flip", daemon=True)
                for one in self.commands
            ]  # fmt: skip
            for thread in started:
                thread.start()
            self.threads = [*(thread for thread in self.threads if thread.is_alive()), *started]

    def run(self, command: str, data: bytes, flips: int) -> None:
        try:
            done = subprocess.run(
                command, shell=True, input=data, cwd=self.folder, timeout=COMMAND_SECONDS, check=False,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
                env=environment.for_tool(),
            )  # fmt: skip
            said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            trouble = f"ended with status {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            said, trouble = [], f"did not end within {COMMAND_SECONDS:g} s"
        except OSError as error:
            said, trouble = [str(error)], "could not be started"
        if trouble:
            text = in_one_line(
                f"on_flip {command!r} {trouble} for {plural(flips, 'flip')}{': ' if said else ''}{''.join(said)}"
            )
            if self.closing:
                print(f"minidbg: {text}", file=sys.stderr)
            else:
                self.tell(text)

    def close(self) -> None:
        """Start the commands with the rest, and give them some time."""
        self.closing = True
        self.send()
        until = time.monotonic() + CLOSE_SECONDS
        for thread in self.threads:
            thread.join(timeout=max(0.0, until - time.monotonic()))
