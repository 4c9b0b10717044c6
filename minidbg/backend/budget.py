"""What this process may still spend on reducing: one reduction for each signature, and one total of seconds.

A training script that fails in fifty graphs would otherwise wait fifty times. What is not reduced is captured.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from minidbg.failure import Signature
from minidbg.graphs.ranks import rank_and_size
from minidbg.settings import Layout, Reduce, Settings


@dataclass(slots=True)
class Budget:
    """The state of one process. ``PROCESS`` is the one in use; a test makes its own, or calls ``reset``."""

    spent_s: float = 0.0
    reduced: list[Signature] = field(default_factory=list)
    reports: dict[Hashable, object] = field(default_factory=dict)
    """What was answered to failures seen before: a program may catch one and run into it again at each step."""
    said: set[str] = field(default_factory=set)
    """What is told once."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reset(self) -> None:
        """Forget everything, as in a new process."""
        with self.lock:
            self.spent_s = 0.0
            self.reduced.clear()
            self.reports.clear()
            self.said.clear()

    def is_new(self, text: str) -> bool:
        """Whether ``text`` is asked about for the first time."""
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
        """Take ``seconds`` off what is left."""
        with self.lock:
            self.spent_s += seconds


PROCESS = Budget()


def several_ranks(environ: Mapping[str, str]) -> bool:
    """Whether this process is one of several that wait for each other."""
    return rank_and_size(environ)[1] > 1


NO_MEMORY = ("can't allocate memory", "out of memory", "not enough memory")
"""Texts of torch's allocators that raise a plain RuntimeError (the CPU's does)."""


def is_missing_compiler(error: BaseException | None) -> bool:
    """Whether ``error``, or what it wraps, says that the machine has no C++ compiler."""
    return any(type(one).__name__ == "InvalidCxxCompiler" for one in chain_of(error))


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """``error`` and what it wraps or was raised from, outermost first."""
    for _ in range(12):
        if error is None:
            return
        yield error
        error = getattr(error, "inner_exception", None) or error.__cause__


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether ``error``, or what it wraps, says that memory ran out."""
    return any(
        isinstance(one, MemoryError | torch.OutOfMemoryError)
        or (isinstance(one, RuntimeError) and any(text in str(one).lower() for text in NO_MEMORY))
        for one in chain_of(error)
    )
