"""What this process has answered and may still spend on reducing, and which of its graphs are verified: ``minidbg.stats()``.

A training script that fails in fifty graphs would wait fifty times: each signature is reduced once, within one total of seconds.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import re
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace

import torch

from minidbg.fx.ranks import rank_and_size
from minidbg.words.outcome import Signature
from minidbg.words.settings import Layout, Reduce, Settings


@dataclass(slots=True)
class Budget:
    """The state of one process. ``PROCESS`` is the one in use; a test makes its own."""

    spent_s: float = 0.0
    reduced: list[Signature] = field(default_factory=list)
    reports: dict[Hashable, object] = field(default_factory=dict)
    """What was answered to failures seen before: a program may catch one and run into it again at each step."""
    said: set[str] = field(default_factory=set)
    """What is told once."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def is_new(self, text: str) -> bool:
        with self.lock:
            if text in self.said:
                return False
            self.said.add(text)
            return True

    def grant(
        self, signature: Signature | None, error: BaseException, settings: Settings
    ) -> tuple[Settings, str]:
        """The settings under which this failure is answered, and why it is not reduced now (empty when it is).

        ``reduce`` of the result is decided, ``seconds`` is what is left. A signature that was granted a
        reduction gets no second one.
        """
        with self.lock:
            why = self.refusal(signature, error, settings)
            if why:
                return replace(settings, reduce=Reduce.LATER), why
            if signature is not None:
                self.reduced.append(signature)
            left_s = settings.seconds - self.spent_s
            return replace(settings, reduce=Reduce.NOW, seconds=left_s), ""

    def refusal(self, signature: Signature | None, error: BaseException, settings: Settings) -> str:
        """Why this failure is only captured, or an empty text."""
        if settings.reduce is Reduce.LATER:
            return "reduce='later'"
        if settings.reduce is None and several_ranks(os.environ):
            return "a job of several ranks, where the others would wait; reduce='now' reduces here"
        if signature is not None and signature.is_layout and settings.layout is not Layout.RAISE:
            return "only the layout differs"
        if settings.match is not None and not re.search(settings.match, str(error)):
            return f"its text does not match {settings.match!r}"
        if is_missing_compiler(error):
            return "no C++ compiler is here, which is no bug of the backend; install one, or set CXX"
        if is_out_of_memory(error) and not settings.reduce_oom:
            return "out of memory; reduce_oom=True reduces it"
        if signature is not None and any(signature.matches(earlier) for earlier in self.reduced):
            return "the same failure was reduced in this process before"
        if self.spent_s >= settings.seconds:
            return f"the {settings.seconds:g} s for this process's reductions are used up"
        return ""

    def spend(self, seconds: float) -> None:
        with self.lock:
            self.spent_s += seconds


PROCESS = Budget()


def several_ranks(environ: Mapping[str, str]) -> bool:
    return rank_and_size(environ)[1] > 1


NO_MEMORY = ("can't allocate memory", "out of memory", "not enough memory")
"""Texts of torch's allocators that raise a plain RuntimeError (the CPU's does)."""


def is_missing_compiler(error: BaseException | None) -> bool:
    return any(type(one).__name__ == "InvalidCxxCompiler" for one in chain_of(error))


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """``error`` and what it wraps or was raised from, outermost first."""
    for _ in range(12):
        if error is None:
            return
        yield error
        error = getattr(error, "inner_exception", None) or error.__cause__


def is_of_a_signal_handler(error: BaseException) -> bool:
    """Whether a handler of a signal has raised it, such as that of a time limit: the program's own word, and nobody's failure."""
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()}
    frames = (frame for one in chain_of(error) for frame, _ in traceback.walk_tb(one.__traceback__))
    return any(frame.f_code in handlers for frame in frames)


def is_out_of_memory(error: BaseException | None) -> bool:
    return any(
        isinstance(one, MemoryError | torch.OutOfMemoryError)
        or (isinstance(one, RuntimeError) and any(text in str(one).lower() for text in NO_MEMORY))
        for one in chain_of(error)
    )


log = logging.getLogger("minidbg")
VARIABLE = "MINIDBG_STATS"
NOT_ASKED = "verify='never'"


@dataclass(slots=True)
class GraphStanding:
    """What is known of one graph; the last fact that is set counts least, in the order of the fields."""

    failed: bool = False
    """The backend failed on it, or gave wrong results."""
    verified: bool = False
    """A call of it was compared with eager and agreed."""
    why_not: str = ""
    """Why no call of it was compared."""
    left_out: tuple[str, ...] = ()
    """What was not judged in a call that was compared."""
    restarted: bool = False
    """Dynamo stopped the compile, to begin again with another graph."""
    process: int = field(default_factory=os.getpid)

    def not_verified(self, reason: str) -> None:
        """Note why the graph is not verified, and say it once in this process."""
        self.why_not = self.why_not or reason
        if PROCESS.is_new(f"not verified: {reason}"):
            log.warning("minidbg: a graph is not verified: %s", reason)

    def leave_out(self, note: str) -> None:
        """Note what a comparison leaves out, and say it once in this process."""
        self.left_out = tuple(dict.fromkeys((*self.left_out, note)))
        if PROCESS.is_new(f"left out: {note}"):
            log.warning("minidbg: a part of a graph is not verified: %s", note)


@dataclass(frozen=True, slots=True)
class Stats:
    """How many graphs this process gave to wrapped backends, and how many of them were compared with eager.

    ``graphs`` is the sum of ``verified``, ``failed``, ``not_run`` and the values of ``not_verified``.
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
    left_out: dict[str, int]
    """Graphs of which a part was not judged (an output that eager itself gives differently each time), by reason."""


GRAPHS: list[GraphStanding] = []


def of_new_graph() -> GraphStanding:
    standing = GraphStanding()
    GRAPHS.append(standing)
    return standing


def stats() -> Stats:
    """How many graphs of this process are verified, and why the others are not. Raises nothing.

    At its end a process appends the same as a line of JSON to the file named by ``MINIDBG_STATS``.
    """
    own = [one for one in GRAPHS if one.process == os.getpid() and not one.restarted]
    judged = [one for one in own if one.failed or one.verified]
    others = [one for one in own if not (one.failed or one.verified)]
    return Stats(
        graphs=len(own),
        verified=sum(not one.failed for one in judged),
        failed=sum(one.failed for one in judged),
        not_run=sum(not one.why_not for one in others),
        not_verified=dict(Counter(one.why_not for one in others if one.why_not)),
        left_out=dict(Counter(note for one in judged for note in one.left_out)),
    )


@atexit.register
def write_stats() -> None:
    """Append this process's line to the file that ``MINIDBG_STATS`` names; of several processes each line stays whole."""
    path = os.environ.get(VARIABLE)
    found = stats()
    if path and found.graphs:
        line = json.dumps({**asdict(found), "pid": os.getpid()}) + "\n"
        with contextlib.suppress(OSError), open(path, "a", encoding="utf-8") as file:
            file.write(line)
