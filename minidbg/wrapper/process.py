"""The tables of this process, what they tell (``minidbg.stats()``), and the reports on failures.

Their entries are values: none keeps a backend, a graph or a tensor alive.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from minidbg.core.errors import ONE_PROCESS
from minidbg.core.foreign import attribute_of, chain_of, is_out_of_memory, message_of
from minidbg.core.machine import Clock
from minidbg.core.outcome import Signature
from minidbg.core.script_header import START
from minidbg.core.settings import Reduce, Settings
from minidbg.fx.case import Case
from minidbg.fx.ranks import rank_and_size
from minidbg.torch_internals import devices
from minidbg.wrapper.capture import Failure

log = logging.getLogger("minidbg")
ATTRIBUTE = "minidbg_report"


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """What became of a failure. A notebook and IPython show it with the script."""

    line: str
    """The result for people, one line: ``812 -> 1 nodes, 14 runs, 3.2 s; run: python ...``; or why
    nothing was written."""
    path: Path | None = None
    """The verified repro."""
    capture: Path | None = None
    """The unreduced capture."""
    missing_backend: Path | None = None
    """The reduced script that lacks its backend, where nothing leads to that: no verified repro."""

    def __repr__(self) -> str:
        return f"<minidbg report: {self.line}>"

    def _repr_markdown_(self) -> str:
        # Markdown rather than HTML: the notebook highlights it, in the reader's own colours.
        script = self.script()
        return f"**minidbg**: {self.line}" + (f"\n\n```python\n{script}\n```" if script else "")

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        script = self.script()
        printer.text(f"minidbg: {self.line}" + (f"\n\n{script}" if script else ""))

    def script(self) -> str:
        """The part of the repro about the failure; empty when there is none, or it has gone."""
        try:
            path = self.path or self.missing_backend
            text = path.read_text(encoding="utf-8") if path else ""
        except OSError:
            return ""
        return START.split(text)[0].rstrip()


def report_of(error: BaseException | None) -> Report | None:
    """What minidbg wrote about ``error``, or about one that it wraps or was raised from; else None.

    ``.path`` is the verified repro (None when there is none), ``.capture`` the unreduced capture,
    ``.line`` the result in one line. As the last value of a notebook's cell it shows the script.
    """
    reports = (own_report(one) for one in chain_of(error))
    return next((report for report in reports if report is not None), None)


def own_report(error: BaseException) -> Report | None:
    report = attribute_of(error, ATTRIBUTE)
    return report if isinstance(report, Report) else None


def set_report(error: BaseException, report: Report) -> None:
    for one in (error, attribute_of(error, "inner_exception")):
        if isinstance(one, BaseException):
            with contextlib.suppress(AttributeError, TypeError):  # a type that takes no attribute
                # exceptions that are frozen dataclasses refuse a plain assignment
                object.__setattr__(one, ATTRIBUTE, report)


def add_line(error: BaseException, report: Report) -> None:
    """Let the report's line be the last thing that is printed for ``error``; once."""
    note = f"minidbg: {report.line}"
    with contextlib.suppress(Exception):  # one that refuses notes stays without
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)


@dataclass(slots=True)
class GraphFacts:
    failed: bool = False
    """The backend failed on it, or gave wrong results."""
    handed_back: str = ""
    """What is said of a graph that its backend gave back as it was; it is then never verified."""
    verified: bool = False
    why_not: str = ""
    eager_raises: str = ""
    """What eager raised for inputs for which the backend returned a result."""
    left_out: tuple[str, ...] = ()
    restarted: bool = False
    """Dynamo stopped the compile, to begin again with another graph."""
    process: int = field(default_factory=os.getpid)

    def not_verified(self, reason: str) -> None:
        self.why_not = self.why_not or reason
        PROCESS.say_once(f"a graph is not verified: {reason}")

    def leave_out(self, note: str) -> None:
        self.left_out = tuple(dict.fromkeys((*self.left_out, note)))
        PROCESS.say_once(f"a part of a graph is not verified: {note}")


@dataclass(slots=True)
class ReductionBudget:
    """What a process may still spend on reductions: one a signature, all within one total of
    seconds. A training script that fails in fifty graphs would wait fifty times."""

    spent_s: float = 0.0
    reduced: dict[Signature, Path | None] = field(default_factory=dict)
    """Each failure that was granted a reduction, and the repro that came of it."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def grant(
        self, signature: Signature | None, error: BaseException, settings: Settings, device: str = "cpu"
    ) -> tuple[Settings, str]:
        """Settings to answer this failure under, and why it is not reduced now (empty if it is).
        ``device`` has the failing graph's values.

        ``reduce`` of the result is decided, ``seconds`` is what is left. A signature that was
        granted a reduction gets no second one.
        """
        with self.lock:
            why = self.refusal(signature, error, settings, device)
            if why:
                return replace(settings, reduce=Reduce.LATER), why
            if signature is not None:
                self.reduced[signature] = None
            left_s = settings.seconds - self.spent_s
            return replace(settings, reduce=Reduce.NOW, seconds=left_s), ""

    def refusal(
        self, signature: Signature | None, error: BaseException, settings: Settings, device: str
    ) -> str:
        if settings.reduce is Reduce.LATER:
            return "reduce='later'"
        if settings.reduce is None and several_ranks(os.environ):
            return "a job of several ranks, where the others would wait; reduce='now' reduces here"
        if settings.match is not None and not re.search(settings.match, message_of(error)):
            return f"its text does not match {settings.match!r}"
        if any(type(one).__name__ == "InvalidCxxCompiler" for one in chain_of(error)):
            return "no C++ compiler is here, which is no bug of the backend; install one, or set CXX"
        if is_out_of_memory(error):
            return "out of memory"
        if devices.is_exclusive(device):
            return had_by_the_program(device)
        if signature is not None and any(signature.matches(earlier) for earlier in self.reduced):
            repro = self.repro_of(signature)
            return f"same failure as {repro.name}" if repro else "the same failure gave no repro before"
        if self.spent_s >= settings.seconds:
            return f"the {settings.seconds:g} s for this process's reductions are used up"
        return ""

    def repro_of(self, signature: Signature | None) -> Path | None:
        reduced = self.reduced.items()
        paths = (path for bug, path in reduced if path and signature and signature.matches(bug))
        return next(paths, None)

    def spend(self, seconds: float, signature: Signature | None, repro: Path | None) -> None:
        with self.lock:
            self.spent_s += seconds
            if signature is not None:
                self.reduced[signature] = repro


def had_by_the_program(device: str) -> str:
    return f"{device.partition(':')[0]} {ONE_PROCESS}, and this program has it until its end"


def several_ranks(environ: Mapping[str, str]) -> bool:
    return rank_and_size(environ)[1] > 1


@dataclass(slots=True)
class Process:
    """What stays while the process runs, and stands at its seams. ``PROCESS`` is the one in use.

    A test may empty it by ``__init__``, and hand in a responder and a clock of its own.
    """

    responder: Callable[[Case, Settings, Path | None], Report] | None = None
    """In place of ``handle.respond``, which writes and reduces a failure that has become a case."""
    clock: Clock = time.monotonic
    budget: ReductionBudget = field(default_factory=ReductionBudget)
    reports: dict[Hashable, Report] = field(default_factory=dict)
    """Answers to failures seen before: a program may catch one and meet it again at each step."""
    listeners: list[Callable[[Failure, Report], object]] = field(default_factory=list)
    graphs: list[GraphFacts] = field(default_factory=list)
    records: dict[int, Path] = field(default_factory=dict)
    """Crash records that are on disk, by number."""
    folders: dict[Path, int] = field(default_factory=dict)
    """Repro folders not there before the first crash record, and the process that made them."""
    said: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)
    comparing: threading.RLock = field(default_factory=threading.RLock)
    """Held while a thread compares a graph with eager."""

    def say_once(self, text: str) -> None:
        with self.lock:
            is_new, self.said = text not in self.said, self.said | {text}
        if is_new:
            log.warning("minidbg: %s", text)


PROCESS = Process()


@dataclass(frozen=True, slots=True)
class Stats:
    """How many graphs this process gave to wrapped backends, and how many were compared with eager.

    ``graphs`` is the sum of ``verified``, ``failed``, ``not_run`` and the values of
    ``not_verified`` and ``eager_raises``.
    """

    graphs: int
    verified: int
    """At least one call was compared with eager and agreed."""
    failed: int
    """The backend raised, or gave wrong results."""
    not_run: int
    """Compiled, and not called yet."""
    not_verified: dict[str, int]
    """By reason."""
    eager_raises: dict[str, int]
    """Graphs on whose inputs eager raises but the backend returned, by what is said of them."""
    left_out: dict[str, int]
    """Graphs with a part not judged (an output eager gives differently each time), by reason."""


def stats() -> Stats:
    """How many graphs of this process are verified, and why the others are not. Raises nothing.

    At its end a process appends the same as a line of JSON to the file named by ``MINIDBG_STATS``.
    """
    own = [one for one in PROCESS.graphs if one.process == os.getpid() and not one.restarted]
    judged = [one for one in own if one.failed or one.verified]
    others = [one for one in own if not (one.failed or one.verified)]
    why_not = [one.handed_back or one.why_not for one in others if not one.eager_raises]
    return Stats(
        graphs=len(own),
        verified=sum(not one.failed for one in judged),
        failed=sum(one.failed for one in judged),
        not_run=why_not.count(""),
        not_verified=dict(Counter(filter(None, why_not))),
        eager_raises=dict(Counter(one.eager_raises for one in others if one.eager_raises)),
        left_out=dict(Counter(note for one in own for note in one.left_out)),
    )


@atexit.register
def write_stats() -> None:
    """Append this process's line to the file ``MINIDBG_STATS`` names; each line stays whole."""
    path = os.environ.get("MINIDBG_STATS")
    found = stats()
    if path and found.graphs:
        line = json.dumps({**asdict(found), "pid": os.getpid()}) + "\n"
        with contextlib.suppress(OSError), open(path, "a", encoding="utf-8") as file:
            file.write(line)
