"""What stands at the seams instead of children and clocks: each is handed in, nothing is patched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from minidbg.fx.case import Case
from minidbg.words.outcome import Outcome


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
