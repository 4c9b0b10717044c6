"""Which nodes of a failing window matter, wherever in it they are: QuickXplain, one culprit after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minidbg.reduction.problem import ReductionProblem
from minidbg.reduction.subsets import Subsets, neighbourhood

NEAR = 2
"""Units before a culprit, and dependency steps from it, that are tried with it alone before the rest is searched."""


def keep_culprits(problem: ReductionProblem) -> None:
    """Find the last unit that the failure needs, then the first, then those between; drop all others.

    About ``log2(n) + 1`` calls for each unit that stays, fewer where they lie close together.
    """
    problem.confirm_whole()
    subsets = Subsets(problem)
    everything = list(range(len(subsets)))
    if len(everything) < 2:
        return
    last = _Search(subsets, everything, []).next_needed()
    assert last is not None, "nothing is kept yet"
    problem.confirm_whole(
        doubtful=True
    )  # all that was asked passed: before much more is asked, does anything fail?
    before = everything[:last]
    near = _near(subsets, last)
    if len(before) > 2 * len(near) and subsets.fails([*near, last]):
        _keep_needed(subsets, near, [last])
        return
    first = _Search(subsets, before[::-1], [last]).next_needed()
    if first is None:
        return
    between = before[first + 1 :]
    if between and (subsets.fails([first, last]) or subsets.fails([first, last], bypass=True)):
        return
    _keep_needed(subsets, between, [first, last])


def _near(subsets: Subsets, unit: int) -> list[int]:
    """Units right before ``unit``, and those that it takes its values from."""
    found = {other for other in neighbourhood(subsets, [unit], NEAR) if other < unit}
    return sorted(found | set(range(max(0, unit - NEAR), unit)))


def _keep_needed(subsets: Subsets, rest: list[int], kept: list[int]) -> None:
    """Drop what is not needed of ``rest``; groups are as large as the gaps met before let expect."""
    gap = max(1, len(rest) // 2)
    while rest:
        needed = _Search(subsets, rest, kept, gap).next_needed()
        if needed is None:
            return
        place = rest.index(needed)
        gap = max(1, 2 * (len(rest) - 1 - place))
        kept, rest = [*kept, needed], rest[:place]


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
