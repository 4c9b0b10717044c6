"""A person's build command before a sweep, in a process group of its own."""

from __future__ import annotations

import contextlib
import queue
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from minidbg.history import History
from minidbg.watch import events
from minidbg.watch.announce import Announcer
from minidbg.watch.watched import Mark, Watched
from minidbg.words import environment
from minidbg.workers.child import end_of, kill_group

OUTPUT_LINES = 30
MOST_OUTPUT_BYTES = 1 << 20
ERROR = re.compile(r"\b(error|fatal|failed|undefined reference|no such file)\b|Error\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Built:
    """A build has ended. ``output``: its last lines; ``error``: of one that failed the first line that tells of an error."""

    build: Build
    status: int
    seconds: float
    output: str
    error: str = ""


class Build:
    def __init__(self, command: str, folder: Path, listener: Callable[[Built], None]) -> None:
        """Raises OSError where ``folder`` is none."""
        self.listener = listener
        with contextlib.ExitStack() as stack:
            self.output = stack.enter_context(tempfile.TemporaryFile())
            self.process = subprocess.Popen(
                command, shell=True, cwd=folder, stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.output,
                start_new_session=True, env=environment.for_tool(),
            )  # fmt: skip
            stack.pop_all()  # the thread that waits closes it
        threading.Thread(target=self.wait, name="minidbg-build", daemon=True).start()

    def wait(self) -> None:
        began = time.monotonic()
        status = self.process.wait()
        with self.output as file:
            lines = end_of(file, MOST_OUTPUT_BYTES).splitlines()
        told = [line.strip() for line in lines if line.strip()]
        error = (
            next((line for line in told if ERROR.search(line)), told[-1] if told else "") if status else ""
        )
        self.listener(Built(self, status, time.monotonic() - began, "\n".join(lines[-OUTPUT_LINES:]), error))

    def cancel(self) -> None:
        kill_group(self.process.pid)


def build_within(seconds: float, command: str, folder: Path) -> Built:
    ended: queue.SimpleQueue[Built] = queue.SimpleQueue()
    build = Build(command, folder, ended.put)
    try:
        return ended.get(timeout=seconds)
    except queue.Empty:
        build.cancel()
        raise TimeoutError(f"no end within {seconds:g} s") from None
    except BaseException:  # Ctrl-C: the build is in a group of its own
        build.cancel()
        raise


@dataclass(slots=True)
class Builds:
    """When the build command runs, and what its end means for sweeps."""

    listener: Callable[[Built], None]
    watched: Watched
    history: History
    announce: Announcer
    current: Build | None = None
    repeated: bool = False
    """Whether the build was begun once more because of an edit under it."""

    def begin(self) -> bool:
        command = self.watched.settings.build
        if not command or not self.watched.needs_build:
            return False
        self.watched.mark(Mark.BUILD)
        self.watched.marks.pop(Mark.BUILT, None)
        self.current = Build(command, self.watched.settings.folder, self.listener)
        self.announce(events.BuildStarted(command))
        return True

    def ended(self, message: Built) -> bool:
        """Hear of a build; whether it went well. A file edited under it may have been missed: then another one is needed, once."""
        if message.build is not self.current:
            return False
        self.current = None
        self.watched.look(everywhere=True)
        seconds = round(message.seconds, 3)
        if message.status != 0:
            self.watched.mark(Mark.BUILD_FAILED)
            self.announce(events.BuildFailed(message.status, seconds, message.output, message.error))
            number = self.history.start_sweep(time.time(), code=self.watched.snapshot.digest(), files=[])
            self.history.end_sweep(number, time.time(), "build_failed")
            return False
        self.watched.marks.pop(Mark.BUILD_FAILED, None)
        self.announce(events.BuildFinished(seconds))
        edited = set(self.watched.changed_since(Mark.BUILD)) - self.watched.always
        self.repeated = bool(edited) and not self.repeated
        if not self.repeated:
            self.watched.mark(Mark.BUILT)
        return True

    def cancel(self) -> None:
        if self.current is not None:
            self.current.cancel()
            self.current = None
