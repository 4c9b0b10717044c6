"""Which nodes of a failing window matter, wherever in it they are: QuickXplain, one culprit after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minidbg.reduce.problem import ReductionProblem
from minidbg.reduce.subsets import Subsets

NEAR = 6
"""Units beside a culprit that are tried together with it alone before the rest is searched."""


def keep_culprits(problem: ReductionProblem) -> None:
    """Find the last unit that the failure needs, then the first, then those between; drop all others.

    About ``log2(n) + 1`` calls for each unit that stays, fewer where they lie close together.
    """
    problem.confirm_whole()
    subsets = Subsets(problem)
    rest = list(range(len(subsets)))
    if len(rest) < 2:
        return
    last = _Search(subsets, rest, []).next_needed()
    if last is None:
        return
    kept, rest = [last], rest[: rest.index(last)]
    if _near(subsets, kept, rest):
        rest = rest[-NEAR:]
    else:
        first = _Search(subsets, rest[::-1], kept).next_needed()
        if first is None:
            return
        kept, rest = [*kept, first], rest[rest.index(first) + 1 :]
        if rest and (subsets.fails(kept) or subsets.fails(kept, bypass=True)):
            return
    _keep_needed(subsets, rest, kept)


def _near(subsets: Subsets, kept: Sequence[int], rest: Sequence[int]) -> bool:
    """Whether the culprit and the few units before it are enough."""
    return len(rest) > 2 * NEAR and subsets.fails([*rest[-NEAR:], *kept])


def _keep_needed(subsets: Subsets, rest: list[int], kept: list[int]) -> None:
    gap = max(1, len(rest) // 2)
    while rest:
        search = _Search(subsets, rest, kept, gap)
        needed = search.next_needed()
        if needed is None:
            return
        gap = max(1, 2 * (len(rest) - 1 - rest.index(needed)))
        kept, rest = [*kept, needed], rest[: rest.index(needed)]


class _Search:
    """The last unit of ``rest`` that is needed beside ``kept``, given that all of both together fail."""

    def __init__(
        self, subsets: Subsets, rest: Sequence[int], kept: Sequence[int], gap: int | None = None
    ) -> None:
        self.rest = list(rest)
        self.gap = gap or max(1, len(self.rest) // 2)
        self.fails: Callable[[int], bool] = lambda count: subsets.fails(sorted([*self.rest[:count], *kept]))
        self.kept = kept

    def next_needed(self) -> int | None:
        """The unit, or None when ``kept`` alone fails (or nothing can be found out)."""
        if self.kept and self.fails(0):
            return None
        low, high, step = 0, len(self.rest), self.gap
        while high - low > 1:
            middle = max(low + 1, high - step)
            if step >= high - low:
                middle = (low + high) // 2
            if self.fails(middle):
                high, step = middle, step * 2
            else:
                low, step = middle, max(1, (high - middle) // 2)
        return self.rest[high - 1]
