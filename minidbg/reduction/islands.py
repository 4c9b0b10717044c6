"""One representative of each kind of op, all in one small graph: a cost that does not grow with the graph."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from torch import fx

from minidbg.graphs.effects import is_call, op_name
from minidbg.graphs.facts import Fact
from minidbg.reduction.problem import ReductionProblem
from minidbg.reduction.subsets import Subsets, Unit


def try_islands(problem: ReductionProblem) -> None:
    """Ask a graph with the first of each kind of op. Cost: one call, none where most ops are of a kind of their own."""
    subsets = Subsets(problem)
    chosen = within_bytes(subsets, representatives(subsets, range(len(subsets))), problem.spare_bytes)
    if 1 < len(chosen) <= len(subsets) // 3:
        subsets.fails(chosen)


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
