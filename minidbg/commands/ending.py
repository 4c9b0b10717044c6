"""How a signal ends a command: Ctrl-C, SIGTERM and SIGHUP unwind it, to let go of what it holds."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from minidbg.commands.output import INTERRUPTED
from minidbg.core.errors import Terminated

ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def unwinding_on_signals() -> Iterator[None]:
    """A block that the signals ``ENDING`` leave by ``Terminated``, as Ctrl-C leaves it by
    KeyboardInterrupt; a second one ends the process."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        # one that is ignored (nohup) stays so
        wanted = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, terminated) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def terminated(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)
    raise Terminated(number)


def end_interrupted() -> NoReturn:
    """End a command that Ctrl-C unwound, without the interpreter's exit: torch's takes seconds."""
    let_go()
    os._exit(INTERRUPTED)


def end_by(number: int) -> NoReturn:
    """End as the signal would have: who started us is told so."""
    let_go()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # where the signal is blocked


def let_go() -> None:
    """End the forkserver, if there is one, with all that it was asked, and write out what was
    printed. A second Ctrl-C has to wait for it."""
    from minidbg import workers  # late: most commands have none

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    workers.end_server()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # who read it has gone
            stream.flush()
