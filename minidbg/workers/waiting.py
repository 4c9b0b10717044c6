"""Interpreters that run scripts in forks, for callers that wait for the end of each."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from minidbg.words import environment
from minidbg.workers.child import ChildResult
from minidbg.workers.pool import NUMBERS, Ended, Order, Preload, ServerPool, ServerProcess


class OneByOne:
    """A pool for callers that wait for each run, such as pytest."""

    def __init__(self, preload: Preload) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="minidbg-pool-")
        self.pool = ServerPool(lambda message: None, preload, state=Path(self.folder.name))

    def run(self, argv: tuple[str, ...], mode: str, seconds: float) -> Ended:
        """Run a script, and wait for its end; one whose server died under it runs once more, in an interpreter of its own."""
        ended = self.pool.submit(Order(next(NUMBERS), argv, mode, seconds)).result()
        if ended.lost:
            ended = self.pool.submit(Order(next(NUMBERS), argv, "prelude", seconds)).result()
        return ended

    def close(self) -> None:
        self.pool.close()
        self.folder.cleanup()


class ReadyInterpreter:
    """An interpreter that imports modules, and compiles nothing unless it is to. It may be made in one process and used in a fork of that.

    Scripts run in forks of it, some at the same time if need be.
    """

    def __init__(self, preload: Preload, env: Mapping[str, str]) -> None:
        """``env`` are all of its variables. Raises OSError when no process can be made."""
        of_scripts = {name: env.get(name) for name in environment.FORKABLE.put_in}
        self.server = ServerProcess(preload, Path(tempfile.gettempdir()), env, of_scripts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()

    def start(self, argv: Sequence[str], *, seconds: float) -> ScriptUnderWay:
        """Run ``python *argv`` in a fork, from an empty folder, for at most ``seconds``."""
        order = Order(next(NUMBERS), tuple(argv), "untouched", seconds)
        return ScriptUnderWay(order.id, self.server, self.server.submit(order))


@dataclass(frozen=True, slots=True)
class ScriptUnderWay:
    """A script that a ``ReadyInterpreter`` runs."""

    number: int
    server: ServerProcess
    end: Future[Ended]

    def result(self) -> ChildResult | None:
        """How it ended, waited for; None where the interpreter died under it."""
        ended = self.end.result()
        return None if ended.lost else ended.result

    def cancel(self) -> None:
        """End it, if it has not ended."""
        self.server.cancel(self.number)
