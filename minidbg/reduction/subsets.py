"""The calls of one candidate as a row of units that are kept or dropped."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from torch import fx

from minidbg.graphs.effects import Fact, Mode, is_call, mode_of, nesting_levels, op_name
from minidbg.graphs.pieces import is_unpacking
from minidbg.graphs.record import Recording
from minidbg.reduction.answers import Answer
from minidbg.reduction.candidate import Candidate
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

    def links(self) -> list[set[int]]:
        """For each unit those that it takes values from, and those that take its own."""
        unit_of = {node: number for number, unit in enumerate(self.units) for node in unit}
        found: list[set[int]] = [set() for _ in self.units]
        for node, number in unit_of.items():
            for source in node.all_input_nodes:
                if source in unit_of and unit_of[source] != number:
                    found[number].add(unit_of[source])
                    found[unit_of[source]].add(number)
        return found

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
    linked, found, edge = subsets.links(), set(numbers), set(numbers)
    for _ in range(distance):
        edge = {other for number in edge for other in linked[number]} - found
        found |= edge
    return sorted(found)


def representatives(subsets: Subsets, numbers: Iterable[int]) -> list[int]:
    """The first unit of each kind among ``numbers``."""
    first: dict[Hashable, int] = {}
    for number in numbers:
        first.setdefault(kind_of(subsets.units[number], subsets.recording.facts), number)
    return sorted(first.values())


def within_bytes(subsets: Subsets, numbers: Sequence[int], limit: int) -> list[int]:
    """As many of the units as can have their recorded inputs in ``limit`` bytes together, in order."""
    found, there, used = [], set(), 0
    for number in numbers:
        unit = subsets.units[number]
        taken = {
            source
            for node in unit
            for source in node.all_input_nodes
            if is_call(source) and source not in there and source not in unit
        }
        facts = [subsets.recording.facts.get(source) for source in taken]
        size = sum(fact.nbytes for fact in facts if fact is not None)
        if used + size <= limit:
            used += size
            there |= {*taken, *unit}
            found.append(number)
    return found


def kind_of(unit: Unit, facts: Mapping[fx.Node, Fact]) -> Hashable:
    """What ops of a kind have in common: the op, dtypes, ranks, layouts and constant arguments."""
    node = unit[0]
    arguments = _kind_of_argument((node.args, node.kwargs), facts)
    return op_name(node), node.op, str(node.target), arguments, len(unit)


def _kind_of_argument(value: Any, facts: Mapping[fx.Node, Fact]) -> Hashable:
    if isinstance(value, fx.Node):
        fact = facts.get(value)
        return fact.traits if fact else value.op
    if isinstance(value, tuple | list):
        if len(value) > 1 and all(isinstance(part, int) for part in value):
            return "ints", len(value)
        return tuple(_kind_of_argument(part, facts) for part in value)
    if isinstance(value, dict):
        return tuple((key, _kind_of_argument(part, facts)) for key, part in sorted(value.items()))
    return repr(value)
