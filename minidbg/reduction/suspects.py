"""The nodes that the failure names, by the frames of its traceback or by its text, and what is around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set

from torch import fx

from minidbg.graphs.effects import is_call, op_name
from minidbg.reduction.problem import ReductionProblem
from minidbg.reduction.subsets import Subsets, neighbourhood, representatives

DISTANCES = (0, 1, 2, 4)
"""Dependency steps around the suspects, tried in this order."""
FEW = 3
"""Suspects up to which every distance is tried: many are a sign that words of the error only happen to be names of ops."""
GROUPS = 3
"""Frames whose nodes are tried by themselves."""
FEW_CALLS = 4
"""Calls of a graph in which single removals cost no more."""
MOST_MAKERS = 8
"""Factories and writes that are kept inside with the suspects that take them."""


def follow_frames(problem: ReductionProblem) -> None:
    """``try_frames`` with what the frames of the failure of ``best`` held, where it is not small and they name anything new."""
    groups = problem.frames()
    if len(problem.best.calls) <= FEW_CALLS or groups == problem.followed:
        return
    problem.followed, phase = groups, problem.phase
    problem.begin_phase("frames")
    try_frames(problem, groups)
    problem.begin_phase(phase)


def try_frames(problem: ReductionProblem, groups: Sequence[Sequence[str]]) -> None:
    """Ask what each frame names, innermost first, then more and more around it. Cost: at most seven calls."""
    subsets = Subsets(problem)
    named = [units for names in groups[:GROUPS] if (units := units_called(subsets, names))]
    words = {hint.lower() for hint in problem.hints}
    for chosen in frames_to_ask(subsets, named, words):
        if len(chosen) <= len(subsets) // 2 and subsets.fails(chosen):
            return


def frames_to_ask(subsets: Subsets, named: Sequence[Sequence[int]], words: Set[str]) -> Iterator[list[int]]:
    """Units to ask for: the one that the text names as well, each frame's own, then what the innermost one's take and give.

    A frame often holds what an op is given and the frame around it the op, which is then asked by itself.
    """
    everything = sorted(set().union(*named))
    by_text = [number for number in everything if _op(subsets, number) in words]
    if len(by_text) == 1 and by_text not in named:
        yield by_text
    inner: Set[int] = set()
    for units in named:
        added = [number for number in units if number not in inner]
        if inner and inner < set(units) and len(added) == 1:
            yield added
        inner = set(units)
        yield with_makers(subsets, units)
    for distance in DISTANCES[1:] if named else ():
        yield with_makers(subsets, neighbourhood(subsets, named[0], distance))


def _op(subsets: Subsets, number: int) -> str:
    return op_name(subsets.units[number][0]).strip("_").lower()


def units_called(subsets: Subsets, names: Iterable[str]) -> list[int]:
    """The units that hold a node with one of these names."""
    wanted = set(names)
    return [number for number, unit in enumerate(subsets.units) if any(node.name in wanted for node in unit)]


def with_makers(subsets: Subsets, numbers: Sequence[int]) -> list[int]:
    """``numbers``, with the calls that make what they take out of nothing, and the writes to it.

    A compiler folds a constant and reorders a write; recorded as inputs they are plain tensors. Unchanged where that is much.
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
    """Ask what the text names, then more and more of what it takes and gives. Cost: at most one call per distance."""
    subsets = Subsets(problem)
    suspects = suspected(subsets, problem.hints)
    if not suspects or len(suspects) > len(subsets) // 2:
        return
    for distance in DISTANCES if len(suspects) <= FEW else DISTANCES[::2]:
        around = neighbourhood(subsets, suspects, distance)
        if len(around) < len(subsets) and subsets.fails(around):
            return


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
