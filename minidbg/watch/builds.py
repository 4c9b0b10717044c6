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
