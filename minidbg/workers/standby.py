"""An interpreter that imports while something else goes on, for one script: ``python script``,
without the wait for its imports.

It is an interpreter of its own, with a hash seed of its own: what follows from the order of a set,
or from what else was imported, is otherwise there than in the forks that were asked before. A
server starts it, and a child of that server that may ask can be given it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, Self

from minidbg.workers.child import Ended
from minidbg.workers.client import AskedHere, Question, StandbyPlan
from minidbg.workers.entry import ENTRY

LONGEST_S = 86400.0
"""Until the script is named."""
STANDBY_GRACE_S = 5.0
"""For the supervisor to end what was late."""


class Standby:
    """An interpreter that waits for its script. It is ended by ``close``, and with the server that started it."""

    def __init__(self, answer: socket.socket, order: int) -> None:
        """``order`` is what it reads as its stdin."""
        self.asked, self.order = AskedHere(answer), order

    @classmethod
    def started(
        cls, ahead: StandbyPlan, put: Callable[[Question, Mapping[str, int]], socket.socket]
    ) -> Standby:
        """``put`` hands a question to the server that starts it. Raises OSError."""
        stdin, order = os.pipe()
        env = {**ahead.env, "PYTHONHASHSEED": str(int.from_bytes(os.urandom(3)) + 1)}
        question = {
            "call": f"{__name__}:become", "seconds": LONGEST_S, "memory_bytes": None, "program": True,
            "argument": {"modules": list(ahead.modules), "env": env},
        }  # fmt: skip
        try:
            return cls(put(question, {"stdin": stdin}), order)
        finally:
            os.close(stdin)

    @property
    def files(self) -> dict[str, int]:
        """What another process needs to have it, which this one then lets go."""
        return {"standby": self.asked.answer.fileno(), "order": self.order}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, argv: Sequence[str], *, seconds: float) -> Callable[[], Ended | None]:
        """Run ``python *argv`` in it, once, from an empty folder.

        The function waits for its end, at most ``seconds`` from now; None where the interpreter was ended under it.
        """
        work = tempfile.TemporaryDirectory(prefix="minidbg-run-")
        # while it waited: that says nothing of the script
        was_ended = bool(select.select([self.asked.answer], [], [], 0)[0])
        with contextlib.suppress(BrokenPipeError):
            os.write(self.order, json.dumps({"argv": list(argv), "cwd": work.name}).encode() + b"\n")
        began = time.monotonic()
        self.asked.until = began + seconds

        def end() -> Ended | None:
            with work:
                ended = self.asked.result()
            if was_ended or ended.lost or ended.error:
                return None
            return replace(ended, seconds=time.monotonic() - began)

        return end

    def cancel(self) -> None:
        self.asked.interrupt()

    def let_go(self) -> None:
        self.asked.answer.close()
        os.close(self.order)

    def close(self) -> None:
        if not self.asked.done():
            self.cancel()
            self.asked.until = time.monotonic() + STANDBY_GRACE_S
            self.asked.result()
        self.let_go()


def become(argument: Mapping[str, Any], note: object) -> NoReturn:
    """In the child: become the interpreter."""
    command = [sys.executable, "-P", "-X", "faulthandler", ENTRY, *argument["modules"]]
    os.execve(sys.executable, command, dict(argument["env"]))
