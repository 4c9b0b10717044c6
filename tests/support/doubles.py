"""What stands at the seams instead of children, clocks and machines: each is handed in, nothing is patched.

One more is ``Answers`` (instead of what captures and reduces a failure).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from minidbg import oracle
from minidbg.core.outcome import Outcome
from minidbg.fx.case import Case
from minidbg.workers import Ended, Request


@dataclass
class Children:
    """Instead of ``workers.submit``, or of a pool's: each request ends at once, as ``ends`` says, and is remembered."""

    ends: Callable[[Request], Ended]
    requests: list[Request] = field(default_factory=list)

    def __call__(self, request: Request) -> Future[Ended]:
        self.requests.append(request)
        end: Future[Ended] = Future()
        end.set_result(self.ends(request))
        return end


def answering(answer: Callable[[Case], Outcome]) -> Children:
    """Children that are asked about cases alone."""

    def ends(request: Request) -> Ended:
        return Ended(answered=True, value=answer(oracle.unpacked(request.argument["case"])).to_json())

    return Children(ends)


@dataclass(frozen=True)
class Box:
    """A machine that has what it is said to have."""

    waiting: float = 0.0
    memory: int | None = None
    disk: Callable[[Path], int] = lambda folder: 0

    def processors(self) -> int:
        return 4

    def load(self) -> float:
        return self.waiting

    def memory_free(self) -> int | None:
        return self.memory

    def disk_free(self, folder: Path) -> int:
        return self.disk(folder)


@dataclass
class Hands:
    """A clock that is moved on by hand."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds
