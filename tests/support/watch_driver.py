"""Drives ``minidbg watch`` as a process: starts it, reads its events, waits for what should happen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Event = dict[str, Any]

COMMAND = [sys.executable, "-m", "minidbg", "watch"]


class WatchProcess:
    """A running daemon with ``--json``."""

    def __init__(
        self, folder: Path, *arguments: str, env: dict[str, str] | None = None, prefix: Sequence[str] = ()
    ) -> None:
        self.events: list[Event] = []
        self.changed = threading.Condition()
        with (folder / "daemon-stderr.txt").open("ab") as stderr:
            self.process = subprocess.Popen(
                [*prefix, *COMMAND, "--json", *arguments],
                cwd=folder, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, stderr=stderr, text=True,
            )  # fmt: skip
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self) -> None:
        """In a thread: collect events until the daemon closes its output."""
        with self.process.stdout as lines:
            for line in lines:
                with self.changed:
                    self.events.append(json.loads(line))
                    self.changed.notify_all()

    def wait_for(self, wanted: Callable[[Event], bool], *, since: int = 0, seconds: float = 60.0) -> Event:
        """The first event from number ``since`` on that is wanted."""
        until = time.monotonic() + seconds
        place = since
        with self.changed:
            while True:
                while place < len(self.events):
                    if wanted(self.events[place]):
                        return self.events[place]
                    place += 1
                left = until - time.monotonic()
                if left <= 0 or not self.changed.wait(left):
                    told = "\n".join(map(str, self.events[since:]))
                    raise AssertionError(f"it did not happen within {seconds} s; told since:\n{told}")

    def wait_for_event(self, name: str, *, since: int = 0, seconds: float = 60.0, **fields: object) -> Event:
        """The first event of that name with these fields from number ``since`` on."""
        wanted = {"event": name, **fields}
        return self.wait_for(lambda event: wanted.items() <= event.items(), since=since, seconds=seconds)

    def wait_for_sweep(self, *, since: int, seconds: float = 60.0) -> Event:
        """The end of the first sweep that is completed from event ``since`` on."""
        return self.wait_for_event("sweep_finished", end="complete", since=since, seconds=seconds)

    @contextmanager
    def sweep(self, seconds: float = 60.0) -> Iterator[int]:
        """What the block changes is judged by one sweep; the number of the first event."""
        mark = self.mark()
        yield mark
        self.wait_for_sweep(since=mark, seconds=seconds)

    def wait_until_quiet(self, *, for_s: float = 1.0, seconds: float = 60.0) -> None:
        """Wait until no sweep is under way and nothing has been told for ``for_s``: nothing old is still to come."""
        until = time.monotonic() + seconds
        with self.changed:
            while self.changed.wait(for_s) or self.is_sweeping():
                assert time.monotonic() < until, f"no rest within {seconds} s: {self.events[-5:]}"

    def is_sweeping(self) -> bool:
        """Whether the last sweep that was told of has not ended."""
        names = [event["event"] for event in self.events if event["event"].startswith("sweep_")]
        return names[-1:] == ["sweep_started"]

    def mark(self) -> int:
        """The number of the next event."""
        with self.changed:
            return len(self.events)

    def since(self, mark: int, name: str) -> list[Event]:
        """The events of that name from number ``mark`` on."""
        with self.changed:
            return [event for event in self.events[mark:] if event["event"] == name]

    def flips(self) -> list[tuple[str, str]]:
        """Every flip told: kind and repro."""
        return [(event["kind"], event["repro"]) for event in self.since(0, "flip")]

    def stop(self, number: int = signal.SIGTERM, *, seconds: float = 20.0) -> int:
        """Send the signal and wait for the end; the exit status."""
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def close(self) -> None:
        """Kill it if it still runs, and free what the driver holds."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.reader.join(20)


@contextmanager
def watching(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> Iterator[WatchProcess]:
    """A daemon that is ended with the block, whatever happens in it."""
    running = WatchProcess(folder, *arguments, env=env)
    try:
        yield running
    finally:
        running.close()


@contextmanager
def steady(folder: Path, env: dict[str, str]) -> Iterator[WatchProcess]:
    """A daemon that has judged everything once, and that must live, and end well, when the block ends."""
    with watching(folder, "--jobs", "2", env=env) as running:
        running.wait_for_sweep(since=0)
        yield running
        assert running.process.poll() is None, "the daemon ended by itself"
        assert running.stop() == 0
        errors = (folder / "daemon-stderr.txt").read_text()
        assert "Traceback" not in errors, errors
