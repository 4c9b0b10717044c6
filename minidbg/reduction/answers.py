"""What is asked of the oracle, and what it says."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import fx


class Answer(enum.Enum):
    """What the oracle says about a candidate."""

    INTERESTING = "interesting"
    """It fails in the same way."""
    NOT = "not"
    """It does not fail."""
    OTHER = "other"
    """It fails, but in another way."""
    INVALID = "invalid"
    """It proves nothing: eager itself fails, or it cannot be run here."""


Ask: TypeAlias = Callable[[fx.GraphModule, tuple[Any, ...]], Answer]
AskTogether: TypeAlias = Callable[[Sequence[tuple[fx.GraphModule, tuple[Any, ...]]]], Sequence[Answer]]
"""Several questions at once, for an oracle with several workers; the answers in the order of the questions."""


class BudgetSpent(Exception):
    """No call is left. Passes let it through; the driver ends the reduction with the best so far."""


class NoProgress(Exception):
    """A third of the budget has gone without a smaller candidate. Passes let it through; the driver goes on with the next one."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One oracle call, for the replay log."""

    phase: str
    nodes: int
    inputs: int
    answer: Answer
    seconds: float
    digest: str


def expected_calls(size: tuple[int, ...]) -> int:
    """About how many calls a reduction still takes from a candidate of this size: a bisection, then single removals."""
    nodes, inputs, outputs = size
    return math.ceil(2 * math.log2(nodes + 1)) + min(nodes, 8) + min(inputs, 8) + min(outputs, 4)
