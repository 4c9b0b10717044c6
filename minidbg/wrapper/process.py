"""The tables of this process, in one object. Their entries are values: none keeps a backend, a graph or a tensor alive."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from minidbg.fx.case import Case
from minidbg.words.deadline import Clock
from minidbg.words.settings import Settings
from minidbg.wrapper.budget import ReductionBudget
from minidbg.wrapper.capture import Failure
from minidbg.wrapper.reports import Report

log = logging.getLogger("minidbg")


@dataclass(slots=True)
class GraphFacts:
    failed: bool = False
    """The backend failed on it, or gave wrong results."""
    handed_back: str = ""
    """What is said of a graph that its backend gave back as it was; it is then never verified."""
    verified: bool = False
    """A call of it was compared with eager and agreed."""
    why_not: str = ""
    """Why no call of it was compared."""
    eager_raises: str = ""
    """What eager raised for inputs for which the backend returned a result."""
    left_out: tuple[str, ...] = ()
    """What was not judged in a call that was compared."""
    restarted: bool = False
    """Dynamo stopped the compile, to begin again with another graph."""
    process: int = field(default_factory=os.getpid)

    def not_verified(self, reason: str) -> None:
        self.why_not = self.why_not or reason
        PROCESS.say(f"a graph is not verified: {reason}")

    def refused_by_eager(self, text: str) -> None:
        self.eager_raises = text
        PROCESS.say(text)

    def leave_out(self, note: str) -> None:
        self.left_out = tuple(dict.fromkeys((*self.left_out, note)))
        PROCESS.say(f"a part of a graph is not verified: {note}")


class Responder(Protocol):
    """What is done about a failure that has become a case: ``handle.respond``, which writes and reduces it."""

    def __call__(self, case: Case, settings: Settings, same_as: Path | None = None) -> Report: ...


@dataclass(slots=True)
class Process:
    """What is remembered for as long as the process runs, and what stands at its seams. ``PROCESS`` is the one in use.

    A test may empty it by ``__init__``, and hand in a responder and a clock of its own.
    """

    responder: Responder | None = None
    clock: Clock = time.monotonic
    budget: ReductionBudget = field(default_factory=ReductionBudget)
    reports: dict[Hashable, Report] = field(default_factory=dict)
    """What was answered to failures seen before: a program may catch one and run into it again at each step."""
    listeners: list[Callable[[Failure, Report], object]] = field(default_factory=list)
    """Called with each failure and what became of it."""
    graphs: list[GraphFacts] = field(default_factory=list)
    records: dict[int, Path] = field(default_factory=dict)
    """Flight records that are on disk, by number."""
    folders: dict[Path, int] = field(default_factory=dict)
    """Repro folders that were not there before the first flight record, and the process that made them."""
    said: set[str] = field(default_factory=set)
    """What is told once."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    comparing: threading.RLock = field(default_factory=threading.RLock)
    """Held while a thread compares a graph with eager."""

    def say(self, text: str) -> None:
        """Tell ``text`` once in this process."""
        with self.lock:
            is_new, self.said = text not in self.said, self.said | {text}
        if is_new:
            log.warning("minidbg: %s", text)

    def new_graph(self) -> GraphFacts:
        self.graphs.append(made := GraphFacts())
        return made


PROCESS = Process()
