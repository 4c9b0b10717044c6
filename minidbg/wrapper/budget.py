"""What a process may still spend on reductions: one a signature, all within one total of seconds.

A training script that fails in fifty graphs would wait fifty times.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from minidbg.core.foreign import chain_of, is_out_of_memory, message_of
from minidbg.core.outcome import Signature
from minidbg.core.settings import Reduce, Settings
from minidbg.fx.ranks import rank_and_size


@dataclass(slots=True)
class ReductionBudget:
    spent_s: float = 0.0
    reduced: dict[Signature, Path | None] = field(default_factory=dict)
    """Each failure that was granted a reduction, and the repro that came of it."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def grant(
        self, signature: Signature | None, error: BaseException, settings: Settings
    ) -> tuple[Settings, str]:
        """Settings to answer this failure under, and why it is not reduced now (empty if it is).

        ``reduce`` of the result is decided, ``seconds`` is what is left. A signature that was
        granted a reduction gets no second one.
        """
        with self.lock:
            why = self.refusal(signature, error, settings)
            if why:
                return replace(settings, reduce=Reduce.LATER), why
            if signature is not None:
                self.reduced[signature] = None
            left_s = settings.seconds - self.spent_s
            return replace(settings, reduce=Reduce.NOW, seconds=left_s), ""

    def refusal(self, signature: Signature | None, error: BaseException, settings: Settings) -> str:
        if settings.reduce is Reduce.LATER:
            return "reduce='later'"
        if settings.reduce is None and several_ranks(os.environ):
            return "a job of several ranks, where the others would wait; reduce='now' reduces here"
        if settings.match is not None and not re.search(settings.match, message_of(error)):
            return f"its text does not match {settings.match!r}"
        if is_missing_compiler(error):
            return "no C++ compiler is here, which is no bug of the backend; install one, or set CXX"
        if is_out_of_memory(error) and not settings.reduce_oom:
            return "out of memory; reduce_oom=True reduces it"
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


def several_ranks(environ: Mapping[str, str]) -> bool:
    return rank_and_size(environ)[1] > 1


def is_missing_compiler(error: BaseException | None) -> bool:
    return any(type(one).__name__ == "InvalidCxxCompiler" for one in chain_of(error))
