"""How often a failure shows itself, and what follows from that for the reduction."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from minidbg.case import Case
from minidbg.failure import Kind
from minidbg.reduction.core import Answer
from minidbg.reduction.session import ANSWERS, Session

WRONG_PASS = 0.01
"""Accepted chance that a flaky case passes all its runs although the failure is in it."""
MOST_REPEATS = 20
"""A failure that needs more runs than these to be believed gone is too rare to be reduced."""
RUNS_OF_WHOLE = 5
RUNS_OF_SMALL = 4


@dataclass(frozen=True, slots=True)
class Reliability:
    """``failed`` of ``runs`` runs showed the failure."""

    failed: int
    runs: int

    @property
    def is_flaky(self) -> bool:
        """Whether some runs failed and some did not."""
        return 0 < self.failed < self.runs

    @property
    def repeats(self) -> int:
        """Runs after which a case that never failed passes for healthy, with less than 1 % of error."""
        if self.failed == self.runs:
            return 1
        p = (self.failed + 1) / (self.runs + 2)  # of few runs not too much may be concluded
        return math.ceil(math.log(WRONG_PASS) / math.log(1 - p))

    @property
    def is_too_rare(self) -> bool:
        """Whether a reduction would be guesswork."""
        return self.failed == 0 or self.repeats > MOST_REPEATS

    def __str__(self) -> str:
        return f"fails in {self.failed} of {self.runs} runs"


def measured(case: Case, session: Session, *, failed: int, runs: int, more: int) -> Reliability:
    """The reliability of ``case`` after ``more`` further runs, of which ``failed`` of ``runs`` are already known.

    Two at a time where there are two cores. Ends early when no run says anything new: an invalid case stays invalid.
    """
    together = min(2, os.cpu_count() or 1)
    for begun in range(0, more, together):
        outcomes = session.ask_together([case] * min(together, more - begun))
        answers = [ANSWERS[outcome.verdict] for outcome in outcomes]
        if Answer.INVALID in answers:
            break
        runs += len(answers)
        failed += answers.count(Answer.INTERESTING)
    return Reliability(failed, runs)


def runs_worth_having(case: Case) -> int:
    """Further runs of a small case that tell whether its failure is flaky: none where that is next to impossible.

    A compiler that fails on a graph does so each time; each run of a hang costs its whole time limit. Both are run once
    more with the values of the script, and again in a fresh interpreter.
    """
    return 0 if case.kind in (None, Kind.COMPILE, Kind.HANG) else RUNS_OF_SMALL
