"""Bisection over windows of the graph's order: the cheapest way to a failure whose cause lies in one place."""

from __future__ import annotations

from minidbg.reduction.problem import ReductionProblem
from minidbg.reduction.subsets import Subsets
from minidbg.reduction.suspects import follow_frames

PATIENCE_FIRST = 3
"""Assumptions in a row before one is checked, while nothing smaller than the whole has failed yet."""
PATIENCE_LATER = 5
REACHES = (3, 9, 27)
"""Units on either side of a cut that are tried, one after the other, when the cause seems to lie across it."""


def narrow_window(problem: ReductionProblem) -> None:
    """Halve the window of nodes that fails, about one call for each halving.

    When one half passes, the other is assumed to fail and not asked: a half of it is asked next, or it is confirmed at
    the end. A wrong assumption means a cause that lies across a cut, near it or far apart; then this pass leaves
    ``best`` at the smallest window that was really seen to fail, or at the units around the cut.
    """
    window = _Window(Subsets(problem))
    while len(window) > 1:
        low, half, high = window.halves()
        window.ask_ahead(half, low if half != low else high)
        if window.fails(*half):
            follow_frames(problem)
            window = _Window(Subsets(problem), found=True)
            continue
        window.assume(low if half != low else high)
        if window.is_doubtful and len(window) > 1:
            if not window.fails(window.low, window.high):
                break
            window = _Window(Subsets(problem), found=True)
    if window.cuts and not window.fails(window.low, window.high):
        problem.confirm_whole(doubtful=True)  # all that was asked passed: does anything fail?
        window.try_around_wrong_cut()


class _Window:
    """The window ``low <= unit < high``, assumed to fail since the units outside it were seen not to."""

    def __init__(self, subsets: Subsets, *, found: bool = False) -> None:
        self.subsets = subsets
        self.low, self.high = 0, len(subsets)
        self.cuts: list[tuple[int, int, int]] = []
        """The windows that were cut since one was last seen to fail, each with the place of its cut."""
        self.patience = PATIENCE_LATER if found else PATIENCE_FIRST

    def __len__(self) -> int:
        return self.high - self.low

    @property
    def is_doubtful(self) -> bool:
        """Whether so many assumptions stand on each other that they should be checked."""
        return len(self.cuts) >= self.patience

    def halves(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """The lower half, the half to ask, the upper half.

        After an assumption the other side comes first: a cause at either end of the graph costs no confirmation.
        """
        middle = (self.low + self.high) // 2
        lower, upper = (self.low, middle), (middle, self.high)
        return lower, upper if len(self.cuts) % 2 else lower, upper

    def fails(self, low: int, high: int) -> bool:
        return self.subsets.fails(range(low, high))

    def ask_ahead(self, half: tuple[int, int], other: tuple[int, int]) -> None:
        """Both halves at once, where there are workers for both."""
        self.subsets.ask_ahead(range(*half), range(*other))

    def assume(self, half: tuple[int, int]) -> None:
        self.cuts.append((self.low, self.high, (self.low + self.high) // 2))
        self.low, self.high = half

    def try_around_wrong_cut(self) -> None:
        """Find the smallest assumed window that fails; ask the units on both sides of its cut, more and more of them.

        Cost: about two calls, and one for each reach.
        """
        right, wrong = 0, len(self.cuts)  # the first window was seen to fail, the last one to pass
        while wrong - right > 1:
            middle = (right + wrong) // 2
            if self.fails(*self.cuts[middle][:2]):
                right = middle
            else:
                wrong = middle
        low, high, cut = self.cuts[right]
        for reach in REACHES:
            around = range(max(low, cut - reach), min(high, cut + reach))
            if 4 * len(around) > 3 * (high - low) or self.subsets.fails(around):
                return
