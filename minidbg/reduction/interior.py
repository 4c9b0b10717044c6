"""Which nodes of a failing window matter, wherever in it they are: QuickXplain, one culprit after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minidbg.reduction.problem import ReductionProblem
from minidbg.reduction.subsets import FEW_UNITS, Subsets, neighbourhood

SLICES = (2, 8)
"""Units before a culprit, and dependency steps from it, that are tried with it alone before the rest is searched."""
CLOSE = 2
"""Units between two needed ones that are neighbours."""
CHUNKS = 6
DENSE = 32
"""Units that are thinned out by chunks: many of so few may be needed, and a search for each costs more."""


def keep_culprits(problem: ReductionProblem) -> None:
    """Find the last unit that the failure needs, then the first, then those between; drop all others.

    About ``log2(n) + 1`` calls for each unit that stays, fewer where they lie close together.
    """
    problem.confirm_whole()
    subsets = Subsets(problem)
    everything = list(range(len(subsets)))
    if len(everything) <= DENSE:
        drop_chunks(problem)
        return
    last = _Search(subsets, everything, []).next_needed()
    assert last is not None, "nothing is kept yet"
    problem.confirm_whole(
        doubtful=True
    )  # all that was asked passed: before much more is asked, does anything fail?
    before = everything[:last]
    for distance in SLICES:
        near = _near(subsets, last, distance)
        if len(before) > 2 * len(near) and subsets.fails([*near, last]):
            drop_chunks(problem)
            return
    first = _Search(subsets, before[::-1], [last]).next_needed()
    if first is None:
        return
    between = before[first + 1 :]
    if between and (subsets.fails([first, last]) or subsets.fails([first, last], bypass=True)):
        return
    _keep_needed(subsets, between, [first, last])


def drop_chunks(problem: ReductionProblem) -> None:
    """Drop sixths of the graph, last first, while that helps: the complements of ddmin. Cost: six calls a turn."""
    while True:
        subsets = Subsets(problem)
        left = list(range(len(subsets)))
        if len(left) <= FEW_UNITS:
            return
        size = -(-len(left) // CHUNKS)
        for end in range(len(left), 0, -size):
            fewer = [*left[: max(0, end - size)], *left[end:]]
            if subsets.fails(fewer):
                left = fewer
        if len(left) == len(subsets):
            return


def _near(subsets: Subsets, unit: int, distance: int) -> list[int]:
    """Units right before ``unit``, and those that it takes its values from."""
    found = {other for other in neighbourhood(subsets, [unit], distance) if other < unit}
    return sorted(found | set(range(max(0, unit - distance), unit)))


def _keep_needed(subsets: Subsets, rest: list[int], kept: list[int]) -> None:
    """Drop what is not needed of ``rest``; groups are as large as the gaps met before let expect.

    Where needed units stand close together, chunks say more for their cost.
    """
    gap, close = max(1, len(rest) // 2), 0
    while rest:
        needed = _Search(subsets, rest, kept, gap).next_needed()
        if needed is None:
            return
        place = rest.index(needed)
        gap = max(1, 2 * (len(rest) - 1 - place))
        close = close + 1 if len(rest) - 1 - place <= CLOSE else 0
        if close == 2:
            drop_chunks(subsets.problem)
            return
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
