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

COMMAND_SECONDS = 60.0
CLOSE_SECONDS = 20.0


class FlipCommands(View):
    """Gathers flips and gives them to each command when the sweep has ended, beside us: one line a flip, the event as ``--json`` has it.

    A command that fails or takes too long is said by ``tell``, with its last line on stderr, and ends nothing.
    """

    def __init__(self, commands: Sequence[str], folder: Path, tell: Callable[[str], None]) -> None:
        self.commands, self.folder, self.tell = commands, folder, tell
        self.waiting: list[Flipped] = []
        self.threads: list[threading.Thread] = []

    def show(self, event: Event) -> None:
        if isinstance(event, Flipped):
            self.waiting.append(event)
        elif isinstance(event, SweepFinished):
            self.send()

    def send(self) -> None:
        flips, self.waiting = self.waiting, []
        data = "".join(json.dumps({**one.to_json(), "at": one.at}) + "\n" for one in flips).encode()
        self.threads = [thread for thread in self.threads if thread.is_alive()]
        for command in self.commands if flips else ():
            arguments = command, data, len(flips)
            self.threads.append(
                threading.Thread(target=self.run, args=arguments, name="minidbg-on-flip", daemon=True)
            )
            self.threads[-1].start()

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
            said = [f"on_flip {command!r} {trouble} for {plural(flips, 'flip')}", *said]
            self.tell(in_one_line(": ".join(said)))

    def close(self) -> None:
        """Start the commands with the rest, and give them some time; what goes wrong now nobody but stderr hears."""
        self.tell = lambda text: print(f"minidbg: {text}", file=sys.stderr)
        self.send()
        until = time.monotonic() + CLOSE_SECONDS
        for thread in self.threads:
            thread.join(timeout=max(0.0, until - time.monotonic()))
