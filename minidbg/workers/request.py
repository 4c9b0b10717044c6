"""The seam between whoever wants something done and the child that does it: a ``Request`` in, a
future of its ``Ended`` out."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from minidbg.core.deadline import NEVER, Deadline
from minidbg.workers.child import Ended, JsonValue
from minidbg.workers.standby import StandbyPlan


@dataclass(frozen=True, slots=True)
class Warmup:
    """What a server has and does before it forks, once for all requests that want the same."""

    imports: tuple[str, ...] = ()
    """Modules that are imported where that starts no thread: those of a backend."""
    warm: str = ""
    """``aot`` or ``inductor``: one small graph is compiled. ``imports``: what a compile imports,
    which is enough for a few questions."""
    ahead: StandbyPlan | None = None
    """An interpreter for the script that the next question writes: it imports beside the server."""


@dataclass(frozen=True, slots=True)
class Request:
    """A program, ``python *argv``, in an empty folder; or a question, ``call``
    (``module:function``) with an ``argument`` of plain values.

    The function gets the argument and another function, which hears texts: the last one is the result's ``note``.
    """

    argv: tuple[str, ...] = ()
    call: str = ""
    argument: Mapping[str, JsonValue] = field(default_factory=dict)
    seconds: float = 120.0
    """They begin after the imports of a question."""
    deadline: Deadline = NEVER
    """It has the imports in it."""
    memory_bytes: int | None = None
    fork: Warmup | None = None
    """In a fork of a server that is prepared so, for a tenth of the time; None: in an interpreter of its own."""
    env: Mapping[str, str | None] = field(default_factory=dict)
    """Variables that a program in an interpreter of its own has otherwise; None for one that it has not."""
    recompiled: tuple[str, ...] = ()
    """Files and folders whose bytecode is not used: it may be of code that had the same size in the same second."""
    nice: int = 0
    one_thread: bool = False
    """Give an interpreter of its own one thread, as a fork of the warm one has: that would hang with more."""


class Submit(Protocol):
    """Raises OSError when no process can be made. A future that is cancelled ends its child."""

    def __call__(self, request: Request) -> Future[Ended]: ...
