"""The program in a child process that behaves as if it had been started directly."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType

FORWARDED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGWINCH")
"""Signals that somebody sends to us and means for the program."""
FROM_THE_KEYBOARD = ("SIGINT", "SIGQUIT")
"""Signals that a terminal sends to the whole process group, the program included."""
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True, slots=True)
class Ending:
    """How the program ended: one of the two is set."""

    status: int | None
    signal: int | None

    @property
    def exit_status(self) -> int:
        """What a shell would call its status: that of a signal is 128 and its number."""
        return 128 + self.signal if self.signal is not None else self.status or 0

    @property
    def was_interrupted(self) -> bool:
        """Whether Ctrl-C ended it, by the signal or by the status that shells have for that."""
        return self.signal == signal.SIGINT or self.status == 130

    def pass_on(self) -> int:
        """The exit status for us. After Ctrl-C we die of it as the program did, so that a shell ends its loop."""
        if self.signal == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        return self.exit_status


def run_program(arguments: Sequence[str], environ: Mapping[str, str]) -> Ending:
    """Run ``python *arguments`` with this terminal, working directory and streams. Raises OSError."""
    with signals_for_the_child() as children:
        child = subprocess.Popen(
            [sys.executable, *arguments], env=dict(environ), preexec_fn=end_with_parent if LIBC else None
        )
        children.append(child)
        code = child.wait()
    return Ending(code, None) if code >= 0 else Ending(None, -code)


def end_with_parent() -> None:
    """In the child: a kill of minidbg alone must not leave the program behind."""
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


@contextlib.contextmanager
def signals_for_the_child() -> Iterator[list[subprocess.Popen[bytes]]]:
    """A block in which signals to us reach the children in the list, each once."""
    children: list[subprocess.Popen[bytes]] = []

    def forward(number: int, frame: FrameType | None) -> None:
        for child in children:
            child.send_signal(number)

    def from_the_keyboard(number: int, frame: FrameType | None) -> None:
        if not in_the_foreground():
            forward(number, frame)

    wanted = dict.fromkeys(FORWARDED, forward) | dict.fromkeys(FROM_THE_KEYBOARD, from_the_keyboard)
    before = {}
    for name, handler in wanted.items():
        number = getattr(signal, name, None)
        # Handlers, since a child would inherit that a signal is ignored; ignored ones (nohup) stay so for both.
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, handler)
    try:
        yield children
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def in_the_foreground() -> bool:
    """Whether the keyboard's signals come to this process group from the terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
