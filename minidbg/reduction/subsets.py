"""The calls of one candidate as a row of units that are kept or dropped; and the units that the failure names.

It names nodes by the frames of its traceback or by its text; these are asked for first, with what is around them.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence, Set
from typing import Any, TypeAlias

from torch import fx

from minidbg.core.outcome import Verdict
from minidbg.fx.case import Case
from minidbg.fx.effects import Mode, class_of_call, is_call, mode_of, nesting_levels, op_name
from minidbg.fx.pieces import is_unpacking
from minidbg.fx.record import Recording
from minidbg.reduction.candidate import SHOWN
from minidbg.reduction.problem import ReductionProblem

Unit: TypeAlias = tuple[fx.Node, ...]
"""Nodes that make sense only together: an op with many results and the nodes that take them apart, a functorch level."""


FEW_UNITS = 16
"""Units up to which single removals say most for their cost."""


class Subsets:
    """Questions about subsets of the units of ``problem.best`` as it was when this was made.

    Units are numbered in the order of the graph. Mode changes belong to no unit: they go with what they surround.
    """

    def __init__(self, problem: ReductionProblem) -> None:
        self.problem = problem
        self.base, self.recording = problem.best, problem.recording
        self.units = units_of(self.recording)

    def __len__(self) -> int:
        return len(self.units)

    def fails(self, chosen: Iterable[int], **how: Any) -> bool:
        """Whether just these units fail in the same way; presumed not, when more than these passed."""
        keep = {node for number in chosen for node in self.units[number]}
        names = {node.name for node in keep}
        if not keep or (not how and self.problem.presumed_passing(names)):
            return False
        candidate = self.problem.extract(keep, out_of=(self.base, self.recording), **how)
        if candidate is None or not candidate.calls:
            return False
        verdict = self.problem.answer(candidate)
        if verdict is Verdict.GONE and not how:
            self.problem.remember_passing(names)
        return verdict in SHOWN

    def links(self, *, both_ways: bool = True) -> list[set[int]]:
        """For each unit those that it takes values from, and ``both_ways`` those that take its own."""
        unit_of = {node: number for number, unit in enumerate(self.units) for node in unit}
        found: list[set[int]] = [set() for _ in self.units]
        for node, number in unit_of.items():
            for source in node.all_input_nodes:
                if source in unit_of and unit_of[source] != number:
                    found[number].add(unit_of[source])
                    if both_ways:
                        found[unit_of[source]].add(number)
        return found


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
    linked, found, edge = subsets.links(both_ways=both_ways), set(numbers), set(numbers)
    for _ in range(distance):
        edge = {other for number in edge for other in linked[number]} - found
        found |= edge
    return sorted(found)


def representatives(subsets: Subsets, numbers: Iterable[int]) -> list[int]:
    first: dict[Hashable, int] = {}
    for number in numbers:
        unit = subsets.units[number]
        first.setdefault((len(unit), class_of_call(unit[0], subsets.recording.facts)), number)
    return sorted(first.values())


DISTANCES = (0, 1, 2, 4)
"""Dependency steps around the suspects, tried in this order."""
SLICES = (4, 16, 64)
"""Dependency steps back from an op that fails when it runs: what it was given may have gone wrong long before."""
FEW_SUSPECTS = 3
"""Suspects up to which every distance is tried: many are a sign that words of the error only happen
to be names of ops."""
GROUPS = 3
"""Frames whose nodes are tried by themselves."""
FEW_SUBSET_CALLS = 4
"""Calls of a graph in which single removals cost no more."""
MOST_MAKERS = 8
"""Factories and writes that are kept inside with the suspects that take them."""


def follow_frames(problem: ReductionProblem) -> None:
    """``try_frames`` with what the frames of the failure of ``best`` held, as long as it is not
    small and they name anything new."""
    phase, before = problem.phase, None
    while problem.best is not before and len(problem.best.calls) > FEW_SUBSET_CALLS:
        before, groups = problem.best, problem.frames()
        if groups == problem.followed:
            break
        problem.followed = groups
        problem.begin_phase("frames")
        try_frames(problem, groups)
    problem.begin_phase(phase)


def try_frames(problem: ReductionProblem, groups: Sequence[Sequence[str]]) -> None:
    """Ask what each frame names, innermost first, what the text names, then more and more around a
    frame's. Cost: at most eleven calls.

    Of a failure at run time the frame names the op that noticed. What runs after it cannot be the
    cause: there, the backward slice.
    """
    subsets = Subsets(problem)
    named = [units for names in groups if (units := units_called(subsets, names))]
    words = {hint.lower() for hint in problem.hints}
    half, both = len(subsets) // 2, of_two_frames(subsets, named)
    guesses = [*frames_to_ask(subsets, named, words), both]
    if problem.steps and len(subsets) <= FEW_UNITS:  # of these, which frames have led to, most are needed
        worth = [chosen for chosen in guesses if half < len(chosen) < len(subsets)]
        if not any(map(subsets.fails, worth)) and both in worth:
            subsets.fails(both, bypass=True)
        return
    around = (
        neighbourhood(subsets, named[0], steps, both_ways=not problem.fails_when_it_runs)
        for steps in (SLICES if problem.fails_when_it_runs else DISTANCES[1:])
        if named
    )
    guesses += [only_ones(subsets, problem.hints), suspected(subsets, problem.hints)]
    guesses += [with_makers(subsets, units) for units in around]
    for chosen in guesses:
        if len(chosen) <= half and subsets.fails(chosen):
            return


def frames_to_ask(subsets: Subsets, named: Sequence[Sequence[int]], words: Set[str]) -> Iterator[list[int]]:
    """Units to ask for: the one that the text names as well, then each frame's own.

    A frame often holds what an op is given and the frame around it the op, which is then asked by itself.
    """
    everything = sorted(set().union(*named[:GROUPS]))
    by_text = [number for number in everything if _op(subsets, number) in words]
    if len(by_text) == 1 and by_text not in named:
        yield by_text
    inner: Set[int] = set()
    for units in named[:GROUPS]:
        added = [number for number in units if number not in inner]
        if inner and inner < set(units) and len(added) == 1:
            yield added
        inner = set(units)
        yield with_makers(subsets, units)


def of_two_frames(subsets: Subsets, named: Sequence[Sequence[int]]) -> list[int]:
    """The innermost frame's units and the fewest that another frame names apart from them: two ops
    that a compiler wants to join."""
    apart = [units for units in named if not set(units) & set(named[0])]
    return with_makers(subsets, sorted({*named[0], *min(apart, key=len)})) if apart else []


def _op(subsets: Subsets, number: int) -> str:
    return op_name(subsets.units[number][0]).strip("_").lower()


def units_called(subsets: Subsets, names: Iterable[str]) -> list[int]:
    wanted = set(names)
    return [number for number, unit in enumerate(subsets.units) if any(node.name in wanted for node in unit)]


def with_makers(subsets: Subsets, numbers: Sequence[int]) -> list[int]:
    """``numbers``, with the calls that make what they take out of nothing, and the writes to it.

    A compiler folds a constant and reorders a write; recorded as inputs they are plain tensors.
    Unchanged where that is much.
    """
    recording = subsets.recording
    unit_of = {node: number for number, unit in enumerate(subsets.units) for node in unit}
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


def try_suspects(problem: ReductionProblem) -> None:
    """Ask what the text names, then more and more of what it takes and gives. Cost: at most one
    call per distance, and one before them."""
    subsets = Subsets(problem)
    if subsets.fails(only_ones(subsets, problem.hints)):
        return
    suspects = suspected(subsets, problem.hints)
    if not suspects or len(suspects) > len(subsets) // 2:
        return
    for distance in DISTANCES if len(suspects) <= FEW_SUSPECTS else DISTANCES[::2]:
        around = neighbourhood(subsets, suspects, distance)
        if len(around) < len(subsets) and subsets.fails(around):
            return


WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{2,}")


def hints_from_error(case: Case) -> tuple[str, ...]:
    """Words of the error that may be nodes or ops of the graph, most telling first; the reducer looks them up.

    The error text is a hint and nothing more: each suspicion is asked of the oracle.
    """
    text = case.provenance.message
    if case.spec.traits.compares:  # the words of the comparison name no node
        return ()
    if case.signature is not None:
        text = f"{text} {case.signature.message} {' '.join(case.signature.frames)}"
    return tuple(dict.fromkeys(WORD.findall(text)))


def only_ones(subsets: Subsets, hints: Sequence[str]) -> list[int]:
    """Units whose op a hint names and no other unit has: ``add`` is in many a text, and many times in the graph."""
    words = {hint.lower() for hint in hints}
    by_op: dict[str, list[int]] = {}
    for number in range(len(subsets)):
        by_op.setdefault(_op(subsets, number), []).append(number)
    found = sorted(units[0] for op, units in by_op.items() if op in words and len(units) == 1)
    return found if len(found) <= len(subsets) // 2 else []


def suspected(subsets: Subsets, hints: Sequence[str]) -> list[int]:
    """Units that a hint names: by the node's own name, else one of each kind of op with that name."""
    words = {hint.lower() for hint in hints}
    by_node = units_called(subsets, words)
    exact = [number for number in by_node if _is_numbered(subsets.units[number][0])]
    if exact:
        return exact
    by_op = [number for number in range(len(subsets)) if _op(subsets, number) in words]
    return representatives(subsets, by_op or by_node)


def _is_numbered(node: fx.Node) -> bool:
    """Whether the node's name is more than its op's name: ``relu_3``, not ``relu``."""
    return node.name.rpartition("_")[2].isdigit()
