"""The nodes that the error names, and their neighbourhood."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from minidbg.graphs.effects import op_name
from minidbg.reduction.islands import representatives
from minidbg.reduction.problem import ReductionProblem
from minidbg.reduction.subsets import Subsets, neighbourhood

DISTANCES = (0, 1, 2, 4)
"""Dependency steps around the suspects, tried in this order."""
FEW = 3
"""Suspects up to which every distance is tried: many are a sign that words of the error only happen to be names of ops."""


def try_suspects(problem: ReductionProblem, hints: Sequence[str]) -> None:
    """Ask the suspects alone, then with more and more of what they take and give. Cost: at most one call per distance."""
    subsets = Subsets(problem)
    suspects = suspected(subsets, hints)
    if not suspects or len(suspects) > len(subsets) // 2:
        return
    for distance in DISTANCES if len(suspects) <= FEW else DISTANCES[::2]:
        around = neighbourhood(subsets, suspects, distance)
        if len(around) < len(subsets) and subsets.fails(around):
            return


def suspected(subsets: Subsets, hints: Sequence[str]) -> list[int]:
    """Units that a hint names: by the node's own name, else one of each kind of op with that name."""
    words = {hint.lower() for hint in hints}
    by_node = [
        number for number, unit in enumerate(subsets.units) if any(node.name in words for node in unit)
    ]
    exact = [number for number in by_node if _is_numbered(subsets.units[number][0])]
    if exact:
        return exact
    by_op = [
        number for number, unit in enumerate(subsets.units) if op_name(unit[0]).strip("_").lower() in words
    ]
    return representatives(subsets, by_op or by_node)


def _is_numbered(node: fx.Node) -> bool:
    """Whether the node's name is more than its op's name: ``relu_3``, not ``relu``."""
    return node.name.rpartition("_")[2].isdigit()
