"""An interpreter that imports while something else goes on, for one script: ``python script``,
without the wait for its imports.

It is an interpreter of its own, with a hash seed of its own: what follows from the order of a set,
or from what else was imported, is otherwise there than in the forks that were asked before. A
server starts it, and a fork of that server may use it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

from minidbg.workers.child import Ended
from minidbg.workers.run_script import RUN_SCRIPT
from minidbg.workers.serving import Question, received

LONGEST_S = 86400.0
"""Until the script is named."""
STANDBY_GRACE_S = 5.0
"""For the supervisor to end what was late."""


@dataclass(frozen=True, slots=True)
class StandbyPlan:
    """What is imported ahead, and all variables of the interpreter."""

    modules: tuple[str, ...]
    env: Mapping[str, str]


class Standby:
    """An interpreter that waits for its script. It is ended by ``close``, and with the server that started it."""

    def __init__(self, ahead: StandbyPlan, where: Path, put: Callable[[Question], socket.socket]) -> None:
        """``where``: the folder of the server that starts it; ``put`` hands a question to that. Raises OSError."""
        self.folder = Path(tempfile.mkdtemp(prefix="ahead-", dir=where))
        os.mkfifo(self.folder / "order", 0o600)
        # a pipe that has a reader: a write never waits
        self.order = os.open(self.folder / "order", os.O_RDWR | os.O_CLOEXEC)
        seed = str(int.from_bytes(os.urandom(3)) + 1)
        env = {**ahead.env, "PYTHONHASHSEED": seed}
        question = {
            "call": f"{__name__}:become", "seconds": LONGEST_S, "memory_bytes": None, "program": True,
            "argument": {"folder": str(self.folder), "modules": list(ahead.modules), "env": env},
        }  # fmt: skip
        self.asked = put(question)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, argv: Sequence[str], *, seconds: float) -> Callable[[], Ended | None]:
        """Run ``python *argv`` in it, once, from an empty folder.

        The function waits for its end, at most ``seconds`` from now; None where the interpreter was ended under it.
        """
        # while it waited: that says nothing of the script
        was_ended = bool(select.select([self.asked], [], [], 0)[0])
        os.write(self.order, json.dumps({"argv": list(argv)}).encode() + b"\n")
        began = time.monotonic()

        def end() -> Ended | None:
            answer = received(self.asked, began + seconds)
            if answer is None and time.monotonic() >= began + seconds:
                self.cancel()
                return Ended(timed_out=True, seconds=seconds)
            taken = time.monotonic() - began
            if was_ended or answer is None or answer["error"]:
                return None
            return Ended(**{**answer, "seconds": taken})

        return end

    def cancel(self) -> None:
        with contextlib.suppress(OSError):
            self.asked.sendall(b"!")

    def let_go(self) -> None:
        """In a server whose fork has it: it is the fork's."""
        self.asked.close()
        os.close(self.order)

    def close(self) -> None:
        self.cancel()
        received(self.asked, time.monotonic() + STANDBY_GRACE_S)
        self.let_go()
        shutil.rmtree(self.folder, ignore_errors=True)


def become(argument: Mapping[str, Any], note: object) -> NoReturn:
    """In the child: become the interpreter."""
    work = Path(argument["folder"], "work")
    work.mkdir()
    os.chdir(work)
    fifo = str(Path(argument["folder"], "order"))
    flags = ["-P", "-X", "faulthandler"]
    command = [sys.executable, *flags, RUN_SCRIPT, "--ahead", fifo, *argument["modules"]]
    os.execve(sys.executable, command, dict(argument["env"]))
