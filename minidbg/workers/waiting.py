"""Interpreters that run scripts in forks, for callers that wait for the end of each."""

from __future__ import annotations

import queue
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from minidbg.words import environment
from minidbg.workers.child import ChildResult
from minidbg.workers.pool import NUMBERS, Ended, Order, Preload, ServerPool, ServerProcess


@dataclass(slots=True)
class Ends:
    """Lets each thread wait for the end of its own order; ``heard`` is for the pool's listener."""

    queues: dict[int, queue.SimpleQueue[Ended]] = field(default_factory=dict)

    def heard(self, message: object) -> None:
        """Called from the pool's thread."""
        if isinstance(message, Ended) and message.id in self.queues:
            self.queues[message.id].put(message)

    def of(self, order: Order, start: Callable[[Order], object]) -> Ended:
        """Start the order, and wait for its end."""
        return self.begun(order, start)()

    def begun(self, order: Order, start: Callable[[Order], object]) -> Callable[[], Ended]:
        """Start the order; a function that waits for its end, to be called once."""
        mine = self.queues[order.id] = queue.SimpleQueue()
        start(order)

        def end() -> Ended:
            try:
                return mine.get()
            finally:
                del self.queues[order.id]

        return end


class OneByOne:
    """A pool for callers that wait for each run, such as pytest."""

    def __init__(self, preload: Preload) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="minidbg-pool-")
        self.ends = Ends()
        self.pool = ServerPool(self.ends.heard, preload, state=Path(self.folder.name))

    def run(self, argv: tuple[str, ...], mode: str, seconds: float) -> Ended:
        """Run a script, and wait for its end; one whose server died under it runs once more, in an interpreter of its own."""
        ended = self.ends.of(Order(next(NUMBERS), argv, mode, seconds), self.pool.run)
        if ended.lost:
            ended = self.ends.of(Order(next(NUMBERS), argv, "prelude", seconds), self.pool.run)
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
        self.ends = Ends()
        of_scripts = {name: env.get(name) for name in environment.FORKABLE.put_in}
        scratch = Path(tempfile.gettempdir())
        self.server = ServerProcess(self.ends.heard, preload, scratch, env, of_scripts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()

    def start(self, argv: Sequence[str], *, seconds: float) -> ScriptUnderWay:
        """Run ``python *argv`` in a fork, from an empty folder, for at most ``seconds``."""
        order = Order(next(NUMBERS), tuple(argv), "untouched", seconds)
        return ScriptUnderWay(order.id, self.server, self.ends.begun(order, self.server.run))


@dataclass(frozen=True, slots=True)
class ScriptUnderWay:
    """A script that a ``ReadyInterpreter`` runs."""

    number: int
    server: ServerProcess
    end: Callable[[], Ended]

    def result(self) -> ChildResult | None:
        """How it ended, waited for; None where the interpreter died under it. To be called once."""
        ended = self.end()
        return None if ended.lost else ended.result

    def cancel(self) -> None:
        """End it, if it has not ended."""
        self.server.cancel(self.number)
