"""From many nodes to the few that matter: islands, windows, then the last and the first culprit and what lies between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set

from minidbg.reduction.candidate import last_that_holds
from minidbg.reduction.problem import ReductionProblem
from minidbg.reduction.subsets import FEW_UNITS, Subsets, follow_frames, representatives

PATIENCE_FIRST = 3
"""Assumptions in a row before one is checked, while nothing smaller than the whole has failed yet."""
PATIENCE_LATER = 5
SMALL_WINDOW = 96
"""Units of a window in which the ends of the cause are looked for."""
MOST_OVERLAP = 8
"""Units by which the halves of a large window reach beyond its middle: a cause of neighbours then lies in one of them."""
SLICE = 6
"""Units up to the last culprit that are tried by themselves before the first one is searched."""
DENSE = 64
"""Units between the ends of the cause up to which it is taken for one cluster of neighbours."""
FEW_FORCED = 8
"""Units between others of the cause, at most, that are taken to be needed without a doubt."""
CLOSE = 2
"""Units between two needed ones that are neighbours."""
CHUNKS = 6


def try_islands(problem: ReductionProblem) -> None:
    """Ask a graph with the first of each kind of op. Cost: one call, none where most ops are of a kind of their own."""
    subsets = Subsets(problem)
    chosen = representatives(subsets, range(len(subsets)))
    if 1 < len(chosen) <= len(subsets) // 3:
        subsets.fails(chosen)


# --- windows ---


def narrow_window(problem: ReductionProblem) -> None:
    """Halve the window of nodes that fails, about one call for each halving, until it is small.

    When one half passes, the other is assumed to fail and not asked: a half of it is asked next. A wrong assumption
    means culprits that lie far apart; then ``best`` is left at the smallest window that was really seen to fail.
    """
    window, is_right = _Window(Subsets(problem)), True
    while is_right and len(window) > SMALL_WINDOW:
        half, other = window.halves()
        window.subsets.ask_ahead(*window.to_come())
        if window.fails(*half):
            follow_frames(problem)
            window = _Window(Subsets(problem), PATIENCE_LATER)
            continue
        window.low, window.high = other
        window.assumed.append(other)
        if len(window.assumed) >= window.patience:
            is_right = window.is_right()
            window = _Window(Subsets(problem), PATIENCE_LATER)
    if len(window.assumed) > 1:
        window.is_right()
        window = _Window(Subsets(problem))
    find_ends(problem, window)


class _Window:
    """The window ``low <= unit < high``, assumed to fail since the units outside it were seen not to."""

    def __init__(self, subsets: Subsets, patience: int = PATIENCE_FIRST) -> None:
        self.subsets = subsets
        self.low, self.high = 0, len(subsets)
        self.assumed: list[tuple[int, int]] = []
        """The windows that were assumed to fail since one was last seen to, largest first."""
        self.patience = patience

    def __len__(self) -> int:
        return self.high - self.low

    def halves(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The half to ask and the other one.

        After an assumption the other side comes first: a cause at either end of the graph costs no confirmation.
        """
        middle, overlap = (self.low + self.high) // 2, min(MOST_OVERLAP, len(self) // 32)
        lower, upper = (self.low, middle + overlap), (middle - overlap, self.high)
        return (upper, lower) if len(self.assumed) % 2 else (lower, upper)

    def to_come(self) -> Iterator[range]:
        """What is asked, in this order, as long as each passes."""
        ahead = _Window(self.subsets, self.patience)
        ahead.low, ahead.high, ahead.assumed = self.low, self.high, list(self.assumed)
        while len(ahead) > SMALL_WINDOW and len(ahead.assumed) < ahead.patience:
            half, (ahead.low, ahead.high) = ahead.halves()
            ahead.assumed.append((ahead.low, ahead.high))
            yield range(*half)

    def fails(self, low: int, high: int) -> bool:
        return self.subsets.fails(range(low, high))

    def is_right(self) -> bool:
        """Ask the window. Where it passes, make ``best`` the smallest of the assumed windows that fails."""
        if self.fails(self.low, self.high):
            return True
        self.subsets.problem.confirm_whole(doubtful=True)  # all that was asked passed: does anything fail?
        last_that_holds(lambda index: self.fails(*self.assumed[index]), -1, len(self.assumed) - 1)
        return False


# --- the ends of the cause, and what lies between them ---


def find_ends(problem: ReductionProblem, window: _Window) -> None:
    """Find the last unit that the failure needs, then the first, then those between; drop all others.

    About ``log2(n)`` calls for each end, fewer where the two lie close together.
    """
    subsets, whole = window.subsets, problem.best
    rest = list(range(window.low, window.high))
    if ends_where_it_was_noticed(subsets, rest):
        thin_before(subsets, rest[:-1], rest[-1])
        return
    search = _Search(subsets, rest, [])
    search.narrow(2)
    pair = rest[max(0, search.high - 2) : search.high]
    if any(subsets.fails([unit]) for unit in pair):
        return
    if problem.best is whole:  # all that was asked passed: does anything fail?
        if window.assumed and not window.is_right():
            find_ends(problem, _Window(Subsets(problem)))
            return
        problem.confirm_whole(doubtful=True)
    before, last = rest[: search.high - 1], pair[-1]
    if len(before) >= 2 * SLICE and subsets.fails([*before[-SLICE:], last]):
        before = before[-SLICE:]
    else:
        search.narrow(1)
        before, last = rest[: search.high - 1], rest[search.high - 1]
    thin_before(subsets, before, last)


def ends_where_it_was_noticed(subsets: Subsets, rest: Sequence[int]) -> bool:
    """Whether the last of ``rest`` is what a frame of a failure at run time names: nothing else need be the last."""
    problem = subsets.problem
    if not (problem.fails_when_it_runs and problem.steps and problem.followed and rest):
        return False
    return any(node.name in problem.followed[0] for node in subsets.units[rest[-1]])


def thin_before(subsets: Subsets, before: list[int], last: int) -> None:
    """Find the first unit of ``before`` that is needed, given the ``last``, and drop what is not needed between them."""
    first = _Search(subsets, before[::-1], [last]).next_needed()
    if first is not None:
        thin_between(subsets, first, before[before.index(first) + 1 :], last)


def thin_between(subsets: Subsets, first: int, between: list[int], last: int) -> None:
    """Drop what is not needed between the ends: neighbours by the way they hang together, culprits far apart one by one."""
    ends, far = [first, last], len(between) > DENSE
    if len(between) > 2 and (subsets.fails(ends) or (far and subsets.fails(ends, bypass=True))):
        return
    if far:
        _keep_needed(subsets, between, ends)
    elif not _Cluster(subsets, [first, *between, last], ends).thin_out():
        drop_chunks(subsets.problem)


class _Cluster:
    """Units of which those in ``known`` are needed, taken to be one connected cluster: what separates two of them is needed too.

    That saves questions and proves nothing: single removals follow.
    """

    def __init__(self, subsets: Subsets, left: Iterable[int], known: Iterable[int]) -> None:
        self.subsets, self.left, self.known = subsets, set(left), set(known)
        self.linked = subsets.links()

    def thin_out(self) -> bool:
        """Drop what hangs on a unit together with it, as long as there are units of which nothing is known.

        Whether it is a cluster, as far as was found out.
        """
        loose = self.left - self.reached(self.left)
        if loose & self.known or (loose and not self.drops(loose)):
            return False
        doubts = 2
        while self.left - self.known:
            groups = self.groups()
            forced = [unit for unit in sorted(self.left - self.known) if unit not in groups]
            if doubts and len(forced) > FEW_FORCED:
                doubts -= 1
                size = len(forced) // 3
                if self.drops(set(forced[doubts * size + 1 : (doubts + 1) * size + 1])):
                    return False
                continue
            self.known.update(forced)
            if not groups:
                break
            unit = max(groups, key=lambda one: (len(groups[one]), one))
            if not self.drops(groups[unit]):
                self.known.add(unit)
        return True

    def drops(self, group: Set[int]) -> bool:
        """Whether the rest fails without ``group``, which is gone then."""
        if not self.subsets.fails(sorted(self.left - group)):
            return False
        self.left -= group
        return True

    def reached(self, among: Set[int]) -> set[int]:
        """What is linked to the first known unit by way of units ``among``."""
        start = min(self.known)
        found, edge = {start}, [start]
        while edge:
            fresh = (self.linked[edge.pop()] & among) - found
            found |= fresh
            edge += fresh
        return found

    def groups(self) -> dict[int, set[int]]:
        """Each unit that may be dropped, with what it alone links to the known ones."""
        found = {}
        for unit in self.left - self.known:
            cut_off = self.left - self.reached(self.left - {unit})
            if not cut_off & self.known:
                found[unit] = cut_off
        return found


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


def _keep_needed(subsets: Subsets, rest: list[int], kept: list[int]) -> None:
    """Drop what is not needed of ``rest``, by QuickXplain; groups are as large as the gaps met before let expect."""
    gap, close = max(1, len(rest) // 2), 0
    while rest:
        needed = _Search(subsets, rest, kept, gap).next_needed()
        if needed is None:
            return
        index = rest.index(needed)
        gap = max(1, 2 * (len(rest) - 1 - index))
        close = close + 1 if len(rest) - 1 - index <= CLOSE else 0
        if close == 2:
            drop_chunks(subsets.problem)
            return
        kept, rest = [*kept, needed], rest[:index]


class _Search:
    """The last unit of ``rest`` that is needed beside ``kept``, given that all of both together fail."""

    def __init__(
        self, subsets: Subsets, rest: Sequence[int], kept: Sequence[int], gap: int | None = None
    ) -> None:
        self.rest = list(rest)
        self.gap = gap or max(1, len(self.rest) // 2)
        self.fails: Callable[[int], bool] = lambda count: subsets.fails(sorted([*self.rest[:count], *kept]))
        self.kept = kept
        self.low, self.high = 0, len(self.rest)
        """``rest[:low]`` was seen to pass, and ``rest[:high]`` fails."""

    def next_needed(self) -> int | None:
        """The unit, or None when ``kept`` alone fails (or nothing can be found out)."""
        if not self.rest or (self.kept and self.fails(0)):
            return None
        self.narrow(1)
        return self.rest[self.high - 1]

    def narrow(self, places: int) -> None:
        """Ask until the last needed unit is known to be one of so many."""
        step = self.gap
        while self.high - self.low > places:
            middle = max(self.low + 1, self.high - step)
            if step >= self.high - self.low:
                middle = (self.low + self.high) // 2
            if self.fails(middle):
                self.high, step = middle, step * 2
            else:
                self.low, step = middle, max(1, (self.high - middle) // 2)
