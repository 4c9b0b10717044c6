"""The calls of one candidate as a row of units that are kept or dropped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from torch import fx

from minidbg.graphs.effects import Mode, is_call, mode_of, nesting_levels
from minidbg.graphs.pieces import is_unpacking
from minidbg.graphs.record import Recording
from minidbg.reduction.candidate import Candidate
from minidbg.reduction.problem import Answer, ReductionProblem

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
        self.base = problem.best
        self.recording = problem.recording
        self.units = units_of(self.recording)
        self._bits = [problem.bits(unit) for unit in self.units]

    def __len__(self) -> int:
        return len(self.units)

    def fails(self, chosen: Iterable[int], **how: Any) -> bool:
        """Whether just these units fail in the same way; presumed not, when more than these passed."""
        chosen = list(chosen)
        mask = self._mask_of(chosen)
        if not chosen or (not how and self.problem.presumed_passing(mask)):
            return False
        candidate = self._candidate(chosen, **how)
        if candidate is None or not candidate.calls:
            return False
        answer = self.problem.answer(candidate)
        if answer is Answer.NOT and not how:
            self.problem.remember_passing(mask)
        return answer is Answer.INTERESTING

    def _mask_of(self, chosen: Iterable[int]) -> int:
        mask = 0
        for number in chosen:
            mask |= self._bits[number]
        return mask

    def _candidate(self, chosen: Iterable[int], **how: Any) -> Candidate | None:
        keep = {node for number in chosen for node in self.units[number]}
        return self.problem.extract_from(self.recording, self.base, keep, **how)

    def ask_ahead(self, *several: Sequence[int]) -> None:
        """Have these subsets, of which the first is asked next and the others perhaps later, answered together."""
        self.problem.ask_ahead(
            self._candidate(chosen)
            for chosen in several
            if not self.problem.presumed_passing(self._mask_of(chosen))
        )


def units_of(recording: Recording) -> list[Unit]:
    """The units of the recorded graph, in the order of their first nodes."""
    leader: dict[fx.Node, fx.Node] = {}
    for first, last in nesting_levels(recording.graph_module.graph):
        for node in _between(recording.nodes, recording.index[first], recording.index[last]):
            leader[node] = first
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


def _between(nodes: Sequence[fx.Node], first: int, last: int) -> Sequence[fx.Node]:
    return [node for node in nodes[first : last + 1] if is_call(node)]


def neighbourhood(subsets: Subsets, numbers: Sequence[int], distance: int) -> list[int]:
    """``numbers`` and the units at most ``distance`` dependency steps from them, in order."""
    unit_of = {node: number for number, unit in enumerate(subsets.units) for node in unit}
    found, edge = set(numbers), set(numbers)
    for _ in range(distance):
        nodes = [node for number in edge for node in subsets.units[number]]
        linked = [other for node in nodes for other in (*node.all_input_nodes, *node.users)]
        edge = {unit_of[node] for node in linked if node in unit_of} - found
        found |= edge
    return sorted(found)
