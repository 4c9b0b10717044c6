"""What stands at the seams instead of children and clocks: each is handed in, nothing is patched.

Two more are ``Answers`` (instead of what captures and reduces a failure) and ``TablePool`` (instead of watch's servers).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from minidbg.fx.case import Case
from minidbg.words.outcome import Outcome
from minidbg.workers import ChildResult


@dataclass
class Questions:
    """Instead of ``asking.submit``: each question is answered at once by ``answer(case)``, and remembered."""

    answer: Callable[[Case], Outcome]
    asked: list[Case] = field(default_factory=list)
    bisections: int = 0

    def __call__(self, case: Case, *, seconds: float, bisection: str = "") -> Outcome:
        self.asked.append(case)
        self.bisections += bool(bisection)
        return self.answer(case)


@dataclass
class Interpreters:
    """Instead of ``workers.run_python``: each run ends at once as ``ends``; the last one is remembered."""

    ends: ChildResult
    argv: Sequence[str] = ()
    seconds: float = 0.0
    cwd: str = ""

    def __call__(
        self, argv: Sequence[str], *, seconds: float, cwd: str, env: Mapping[str, str | None]
    ) -> ChildResult:
        self.argv, self.seconds, self.cwd = argv, seconds, cwd
        return self.ends


@dataclass
class Hands:
    """A clock that is moved on by hand."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now
