"""From many nodes to the few that matter: what the failure names, islands, windows, then what it
needs, one by one from the last. Each of these searches asks by what was answered before."""

from __future__ import annotations

import itertools
import re
from collections.abc import Hashable, Iterable, Iterator, Sequence, Set
from typing import Any, TypeAlias

from torch import fx

from minidbg.core.outcome import Verdict
from minidbg.fx.case import Case
from minidbg.fx.edit import is_unpacking
from minidbg.fx.effects import Mode, class_of_call, is_call, mode_of, nesting_levels, op_name
from minidbg.fx.record import Recording
from minidbg.judge.suspects import Suspects
from minidbg.reduction.search import SHOWN, Search, last_that_holds

SMALL_WINDOW = 48
"""Units of a window in which needed ones are looked for one by one."""
MOST_OVERLAP = 8
"""Units by which the halves of a large window reach beyond its middle: a cause of neighbours then lies in one of them."""
SLICE = 4
"""Units before the last needed one that are tried by themselves: a cause is often neighbours, which
single removals thin out."""
CHUNKS = 6

Unit: TypeAlias = tuple[fx.Node, ...]
"""Nodes that make sense only together: an op with many results and those that take them apart, or a
functorch level."""
FEW_UNITS = 16
"""Units up to which single removals say most for their cost."""


class Subsets:
    """Questions about subsets of the units of ``search.best`` as it was when this was made. Units
    are numbered in the order of the graph. Mode changes go with what they surround."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.base, self.recording = search.best, search.recording
        self.units = units_of(self.recording)
        self.unit_of = {node: number for number, unit in enumerate(self.units) for node in unit}

    def fails(self, chosen: Iterable[int], **how: Any) -> bool:
        """Whether just these units fail in the same way; presumed not, when more than these passed."""
        keep = {node for number in chosen for node in self.units[number]}
        names = {node.name for node in keep}
        if not keep or (not how and any(names <= passed for passed in self.search.passing)):
            return False
        candidate = self.search.cut(keep, out_of=(self.base, self.recording), **how)
        verdict = self.search.answer(candidate) if candidate else Verdict.INVALID
        if verdict is Verdict.GONE and not how:
            self.search.passing.append(names)
        return verdict in SHOWN

    def called(self, names: Set[str] | Sequence[str]) -> list[int]:
        return sorted({number for node, number in self.unit_of.items() if node.name in names})


def units_of(recording: Recording) -> list[Unit]:
    leader: dict[fx.Node, fx.Node] = {}
    for first, last in nesting_levels(recording.graph_module.graph)[0]:
        inside = recording.nodes[recording.index[first] : recording.index[last] + 1]
        leader |= dict.fromkeys(filter(is_call, inside), first)
    groups: dict[fx.Node, list[fx.Node]] = {}
    for node in recording.nodes:
        if not is_call(node) or mode_of(node) is not Mode.NONE:
            continue
        if node not in leader:
            source = node.args[0] if is_unpacking(node, recording.facts) else node
            assert isinstance(source, fx.Node)
            leader[node] = leader.get(source, source) if is_call(source) else node
        groups.setdefault(leader[node], []).append(node)
    return [tuple(group) for group in groups.values()]


def neighbourhood(
    subsets: Subsets, numbers: Sequence[int], distance: int, *, both_ways: bool = True
) -> list[int]:
    """``numbers`` and the units at most ``distance`` dependency steps from them, in order; a
    backward slice unless ``both_ways``."""
    reached = edge = set(numbers)
    for _ in range(distance):
        nodes = [node for number in edge for node in subsets.units[number]]
        sources = {source for node in nodes for source in node.all_input_nodes}
        linked = sources.union(*(node.users for node in nodes)) if both_ways else sources
        edge = {subsets.unit_of[node] for node in linked if node in subsets.unit_of} - reached
        reached = reached | edge
    return sorted(reached)


def representatives(subsets: Subsets, numbers: Iterable[int]) -> list[int]:
    first: dict[Hashable, int] = {}
    for number in numbers:
        unit = subsets.units[number]
        first.setdefault((len(unit), class_of_call(unit[0], subsets.recording.facts)), number)
    return sorted(first.values())


DISTANCES = (1, 4)
"""Dependency steps around the suspects, tried in this order."""
SLICES = (4, 16, 64)
"""Dependency steps back from an op that fails when it runs: what it was given may have gone wrong long before."""
GROUPS = 3
"""Frames whose nodes are tried by themselves."""
FEW_SUBSET_CALLS = 4
"""Calls of a graph in which single removals cost no more."""
MOST_MAKERS = 8
"""Factories and writes that are kept inside with the suspects that take them."""


def follow_suspects(search: Search) -> None:
    """Ask the ``guesses`` until one fails, and again from there, as long as the graph is not small
    and the frames of its failure name anything new. Cost: at most fifteen calls a turn."""
    phase, before = search.phase, None
    while search.best is not before and (len(search.best.calls) > FEW_SUBSET_CALLS or not search.steps):
        before, frames = search.best, search.frames()
        if frames == search.followed:
            break
        search.followed = frames
        search.phase = "suspects"
        subsets = Subsets(search)
        any(subsets.fails(units, **how) for units, how in guesses(subsets, frames))
    search.phase = phase


def guesses(subsets: Subsets, frames: Suspects) -> Iterator[tuple[Sequence[int], dict[str, Any]]]:
    """Units that may be all that the failure needs, likeliest first, and how they are cut out.

    What each frame names, innermost first; what the text names; then more and more around these.
    Of a failure at run time the frame names the op that noticed. What runs after it cannot be the
    cause: there, the backward slice.
    """
    search, half = subsets.search, len(subsets.units) // 2
    ops = [op_name(unit[0]).strip("_").lower() for unit in subsets.units]
    words = {hint.lower() for hint in search.hints}
    named = [units for names in frames if (units := subsets.called(names))]

    by_frame = []
    both_name = sorted({number for units in named[:GROUPS] for number in units if ops[number] in words})
    if len(both_name) == 1 and both_name not in named:
        by_frame.append(both_name)
    for inner, units in itertools.pairwise([[], *named[:GROUPS]]):
        # a frame often holds what an op is given and the frame around it the op
        added = [number for number in units if number not in inner]
        if inner and len(added) == 1 and {*inner} < {*units}:
            by_frame.append(added)
        by_frame.append(with_makers(subsets, units))
    apart = [units for units in named if not {*units} & {*named[0]}]
    # two ops that a compiler wants to join
    joined = with_makers(subsets, sorted({*named[0], *min(apart, key=len)})) if apart else []
    by_frame.append(joined)
    if search.steps and len(subsets.units) <= FEW_UNITS:
        # of these, which frames have led to, most are needed
        worth = [units for units in by_frame if half < len(units) < len(subsets.units)]
        yield from ((units, {}) for units in worth)
        if joined in worth:
            yield joined, {"bypass": True}
        return

    by_op = [number for number, op in enumerate(ops) if op in words]
    by_name = subsets.called(words)
    # relu_3 is a node's own name, relu may be any; add is in many a text, and many times in a graph
    numbered = [number for number in by_name if subsets.units[number][0].name.rpartition("_")[2].isdigit()]
    suspects = numbered or representatives(subsets, by_op or by_name)
    by_text = [number for number in by_op if ops.count(ops[number]) == 1], suspects
    at_run_time = search.traits.raises_when_run
    around = (
        with_makers(subsets, neighbourhood(subsets, named[0], steps, both_ways=not at_run_time))
        for steps in (SLICES if at_run_time else DISTANCES)
        if named
    )
    yield from ((units, {}) for units in itertools.chain(by_frame, by_text, around) if len(units) <= half)
    if not search.steps and len(suspects) <= half:
        for steps in DISTANCES:
            wider = neighbourhood(subsets, suspects, steps)
            if len(wider) < len(subsets.units):
                yield wider, {}


def with_makers(subsets: Subsets, numbers: Sequence[int]) -> list[int]:
    """``numbers``, with the calls that make what they take out of nothing, and the writes to it, if
    few: a compiler folds a constant and reorders a write, and not what is recorded as an input."""
    recording, unit_of = subsets.recording, subsets.unit_of
    found, edge = set(numbers), list(numbers)
    while edge:
        nodes = [node for number in edge for node in subsets.units[number]]
        makers: set[fx.Node] = set()
        for node in nodes:
            for source in node.all_input_nodes:
                makers |= set(recording.writes_to(source, recording.index[node]))
                if is_call(source) and not source.all_input_nodes:
                    makers.add(source)
        edge = [unit_of[node] for node in makers if node in unit_of and unit_of[node] not in found]
        found |= set(edge)
    return sorted(found) if len(found) <= len(numbers) + MOST_MAKERS else sorted(numbers)


def try_islands(search: Search) -> None:
    """Ask a graph with the first of each kind of op. Cost: one call, none where most ops are of a kind of their own."""
    subsets = Subsets(search)
    chosen = representatives(subsets, range(len(subsets.units)))
    if 1 < len(chosen) <= len(subsets.units) // 3:
        subsets.fails(chosen)


def narrow_window(search: Search) -> None:
    """Halve the window of nodes that fails, about one call for each halving, until it is small.

    When one half passes, the other is presumed to fail and a half of that is asked next. What was
    presumed is asked at the end; where it passes, ``best`` becomes the smallest presumed window
    that fails.
    """
    subsets, presumed = Subsets(search), list[tuple[int, int]]()
    low, high = 0, len(subsets.units)
    while high - low > SMALL_WINDOW:
        middle, overlap = (low + high) // 2, min(MOST_OVERLAP, (high - low) // 32)
        half, other = (low, middle + overlap), (middle - overlap, high)
        if len(presumed) % 2:  # the other side first: a cause at an end needs no confirmation
            half, other = other, half
        if subsets.fails(range(*half)):
            follow_suspects(search)
            subsets, presumed = Subsets(search), []
            low, high = 0, len(subsets.units)
        else:
            (low, high), presumed = other, [*presumed, other]
    if presumed and not subsets.fails(range(low, high)):
        search.confirm_whole()  # all that was asked passed: does anything fail?
        last_that_holds(lambda index: subsets.fails(range(*presumed[index])), -1, len(presumed) - 1)


def keep_needed(search: Search) -> None:
    """Find the last unit that the failure needs, then the last before it, and so on, with steps as
    wide as the gaps met so far let expect. Neighbours of the last one, where they are all that is
    needed, are left to single removals."""
    subsets, whole = Subsets(search), search.best
    rest, needed = list(range(len(subsets.units))), list[int]()
    # where a failure at run time was noticed: nothing else need be the last
    noticed = search.followed[0] if search.traits.raises_when_run and search.steps and search.followed else ()
    if rest and any(node.name in noticed for node in subsets.units[rest[-1]]):
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
    if search.best is whole:
        search.confirm_whole()


def drop_chunks(search: Search) -> None:
    """Drop sixths of the graph, last first, while that helps: the complements of ddmin. Cost: six calls a turn."""
    while True:
        subsets = Subsets(search)
        left = list(range(len(subsets.units)))
        if len(left) <= FEW_UNITS:
            return
        size = -(-len(left) // CHUNKS)
        for end in range(len(left), 0, -size):
            fewer = [*left[: max(0, end - size)], *left[end:]]
            if subsets.fails(fewer):
                left = fewer
        if len(left) == len(subsets.units):
            return


WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{2,}")


def hints_from_error(case: Case) -> tuple[str, ...]:
    """Words of the error that may be nodes or ops of the graph: hints, each to be asked about."""
    text = case.provenance.message
    if case.spec.traits.compares:  # the words of the comparison name no node
        return ()
    if case.signature is not None:
        text = f"{text} {case.signature.message} {' '.join(case.signature.frames)}"
    return tuple(dict.fromkeys(WORD.findall(text)))
