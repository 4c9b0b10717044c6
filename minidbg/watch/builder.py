"""The build command that runs before a sweep, beside the daemon's loop."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

OUTPUT_LINES = 30
MOST_OUTPUT_BYTES = 1 << 20
ERROR = re.compile(r"\b(error|fatal|failed|undefined reference|no such file)\b|Error\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Built:
    """A build has ended. ``output``: its last lines; ``error``: the first line that tells of an error."""

    number: int
    status: int
    seconds: float
    output: str
    error: str = ""


class Builder:
    """One build at a time, in a process group of its own."""

    def __init__(self, command: str, folder: Path, listener: Callable[[Built], None]) -> None:
        self.command, self.folder, self.listener = command, folder, listener
        self.number = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether a build is under way."""
        return self.process is not None

    def start(self) -> int:
        """Start the command; ``Built`` with the returned number follows."""
        self.number += 1
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the thread that waits
        self.process = subprocess.Popen(
            self.command, shell=True, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
        threading.Thread(
            target=self.wait, args=(self.process, output, self.number), name="minidbg-build", daemon=True
        ).start()
        return self.number

    def wait(self, process: subprocess.Popen[bytes], output: object, number: int) -> None:
        """In a thread: tell when the build ends."""
        began = time.monotonic()
        status = process.wait()
        with output as file:  # type: ignore[attr-defined]  # a TemporaryFile, whose type has no public name
            file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_OUTPUT_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
        last = "\n".join(lines[-OUTPUT_LINES:])
        self.listener(
            Built(number, status, time.monotonic() - began, last, first_error(lines) if status else "")
        )

    def ended(self, message: Built) -> bool:
        """Whether the message is of the present build."""
        if message.number != self.number or self.process is None:
            return False
        self.process = None
        return True

    def cancel(self) -> None:
        """End the build; its message will be none of the present one."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process = None


def first_error(lines: Sequence[str]) -> str:
    """The first line that tells of an error, else the last that says anything."""
    told = [line.strip() for line in lines if line.strip()]
    return next((line for line in told if ERROR.search(line)), told[-1] if told else "")
