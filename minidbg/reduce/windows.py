"""Bisection over windows of the graph's order: the cheapest way to a failure whose cause lies in one place."""

from __future__ import annotations

from minidbg.reduce.problem import ReductionProblem
from minidbg.reduce.subsets import Subsets

PATIENCE_FIRST = 2
"""Assumptions in a row before one is checked, while nothing smaller than the whole has failed yet."""
PATIENCE_LATER = 3


def narrow_window(problem: ReductionProblem) -> None:
    """Halve the window of nodes that fails, about one call for each halving.

    When one half passes, the other is assumed to fail and not asked: a half of it is asked next, or it is confirmed at
    the end. Wrong assumptions mean a cause that is spread, for which ``interior`` is the better pass; then this one
    leaves ``best`` at the smallest window that was really seen to fail.
    """
    subsets = Subsets(problem)
    low, high, assumed, found = 0, len(subsets), 0, False
    while high - low > 1:
        middle = (low + high) // 2
        # after an assumption the other side first: a cause at either end of the graph costs no confirmation
        half = (middle, high) if assumed % 2 else (low, middle)
        if subsets.fails(range(*half)):
            subsets, assumed, found = Subsets(problem), 0, True
            low, high = 0, len(subsets)
            continue
        low, high = (low, middle) if assumed % 2 else (middle, high)
        assumed += 1
        if assumed >= (PATIENCE_LATER if found else PATIENCE_FIRST) and high - low > 1:
            if not subsets.fails(range(low, high)):
                return
            subsets, assumed, found = Subsets(problem), 0, True
            low, high = 0, len(subsets)
    if assumed:
        subsets.fails(range(low, high))
