"""From many nodes to the few that matter: islands, windows, then what the failure needs, one by one from the last."""

from __future__ import annotations

from collections.abc import Sequence

from minidbg.reduction.candidate import last_that_holds
from minidbg.reduction.problem import ReductionProblem
from minidbg.reduction.subsets import FEW_UNITS, Subsets, follow_suspects, representatives

SMALL_WINDOW = 48
"""Units of a window in which needed ones are looked for one by one."""
MOST_OVERLAP = 8
"""Units by which the halves of a large window reach beyond its middle: a cause of neighbours then lies in one of them."""
SLICE = 4
"""Units before the last needed one that are tried by themselves: a cause is often neighbours, which
single removals thin out."""
CHUNKS = 6


def try_islands(problem: ReductionProblem) -> None:
    """Ask a graph with the first of each kind of op. Cost: one call, none where most ops are of a kind of their own."""
    subsets = Subsets(problem)
    chosen = representatives(subsets, range(len(subsets)))
    if 1 < len(chosen) <= len(subsets) // 3:
        subsets.fails(chosen)


def narrow_window(problem: ReductionProblem) -> None:
    """Halve the window of nodes that fails, about one call for each halving, until it is small.

    When one half passes, the other is presumed to fail and a half of that is asked next. What was
    presumed is asked at the end; where it passes, ``best`` becomes the smallest presumed window
    that fails.
    """
    subsets, presumed = Subsets(problem), list[tuple[int, int]]()
    low, high = 0, len(subsets)
    while high - low > SMALL_WINDOW:
        half, other = halves(low, high, len(presumed))
        if subsets.fails(range(*half)):
            follow_suspects(problem)
            subsets, presumed = Subsets(problem), []
            low, high = 0, len(subsets)
        else:
            (low, high), presumed = other, [*presumed, other]
    if presumed and not subsets.fails(range(low, high)):
        problem.confirm_whole(doubtful=True)  # all that was asked passed: does anything fail?
        last_that_holds(lambda index: subsets.fails(range(*presumed[index])), -1, len(presumed) - 1)


def halves(low: int, high: int, presumed: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The half to ask and the other one. After a presumption the other side comes first: a cause at
    an end needs no confirmation."""
    middle, overlap = (low + high) // 2, min(MOST_OVERLAP, (high - low) // 32)
    lower, upper = (low, middle + overlap), (middle - overlap, high)
    return (upper, lower) if presumed % 2 else (lower, upper)


def keep_needed(problem: ReductionProblem) -> None:
    """Find the last unit that the failure needs, then the last before it, and so on, with steps as
    wide as the gaps met so far let expect.

    Neighbours of the last one, where they are all that is needed, are left to single removals.
    """
    subsets, whole = Subsets(problem), problem.best
    rest, needed = list(range(len(subsets))), list[int]()
    if ends_where_it_was_noticed(subsets, rest):
        needed = [rest.pop()]
    step = max(1, len(rest) // 2)
    while rest and not (needed and subsets.fails(needed)):
        if len(needed) == 1 and len(rest) > 2 * SLICE and subsets.fails([*rest[-SLICE:], *needed]):
            return
        low, high = 0, len(rest)
        while high - low > 1:
            middle = high - step if step < high - low else (low + high) // 2
            if subsets.fails([*rest[:middle], *needed]):
                high, step = middle, 2 * step
            else:
                low, step = middle, max(1, (high - middle) // 2)
        step, needed, rest = max(1, 2 * (len(rest) - high)), [rest[high - 1], *needed], rest[: high - 1]
    if problem.best is whole:
        problem.confirm_whole(doubtful=True)


def ends_where_it_was_noticed(subsets: Subsets, rest: Sequence[int]) -> bool:
    """Whether the last of ``rest`` is what a frame of a failure at run time names: nothing else need be the last."""
    problem = subsets.problem
    if not (problem.fails_when_it_runs and problem.steps and problem.followed and rest):
        return False
    return any(node.name in problem.followed[0] for node in subsets.units[rest[-1]])


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
