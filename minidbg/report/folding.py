"""A large graph as few blocks: what was kept stands alone, the rest is folded by module, in the graph's order."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from minidbg.report.drawn_graph import DrawnNode

MOST_BLOCKS = 48
MOST_ALONE = 32
"""Kept nodes up to which each stands alone."""
SMALL = 40
"""Computing nodes of a graph in which nothing is folded."""
LONGEST = 400
"""Nodes of one block when no names of modules tell where to cut."""


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive nodes that are drawn as one box."""

    nodes: tuple[DrawnNode, ...]
    label: str
    kept: int = 0
    """How many of them were kept by the reduction."""
    as_input: bool = False
    """Whether this one value is an input of the reduced graph."""

    @property
    def is_single(self) -> bool:
        """Whether it stands for one node."""
        return len(self.nodes) == 1

    @property
    def summary(self) -> str:
        """``26 nodes: linear 6, add 5, view 4``."""
        common = Counter(node.label for node in self.nodes).most_common(3)
        return f"{len(self.nodes)} nodes: {', '.join(f'{name} {count}' for name, count in common)}"


def fold(nodes: Sequence[DrawnNode], kept: Collection[str], as_inputs: Collection[str] = ()) -> list[Block]:
    """At most about MOST_BLOCKS blocks that hold each computing node once, in order.

    ``kept`` and ``as_inputs`` are names: of nodes that the reduced graph has, and of values that are its inputs.
    Inputs of the graph get a block only when they are among ``as_inputs``.
    """
    calls = [node for node in nodes if not node.is_input]
    marked = [node for node in calls if node.name in kept or node.name in as_inputs]
    alone = {node.name for node in marked} if len(marked) <= MOST_ALONE else set()
    if len(calls) <= SMALL:
        alone = {node.name for node in calls}
    inputs = [
        Block((node,), node.name, as_input=True) for node in nodes if node.is_input and node.name in as_inputs
    ]
    blocks = [
        block
        for is_alone, run in itertools.groupby(calls, key=lambda node: node.name in alone)
        for block in (singles(run, kept, as_inputs) if is_alone else by_module(run, kept))
    ]
    room = max(MOST_BLOCKS - len(alone), SMALL)
    return with_inputs(merged(blocks, room), inputs[:MOST_ALONE])


def with_inputs(blocks: list[Block], inputs: Sequence[Block]) -> list[Block]:
    """``blocks``, each of ``inputs`` right before the first one that reads it."""
    placed: list[Block] = []
    waiting = list(inputs)
    for block in blocks:
        reads = {name for node in block.nodes for name in node.inputs}
        due = [one for one in waiting if one.nodes[0].name in reads]
        placed += [*due, block]
        waiting = [one for one in waiting if one not in due]
    return [*waiting, *placed]


def singles(run: Iterator[DrawnNode], kept: Collection[str], as_inputs: Collection[str]) -> Iterator[Block]:
    """A block for each node."""
    for node in run:
        yield Block((node,), node.name, kept=int(node.name in kept), as_input=node.name in as_inputs)


def by_module(run: Iterator[DrawnNode], kept: Collection[str]) -> Iterator[Block]:
    """Folded blocks, cut where the module changes and where one grows too long."""
    for module, group in itertools.groupby(run, key=lambda node: node.module):
        whole = tuple(group)
        for start in range(0, len(whole), LONGEST):
            part = whole[start : start + LONGEST]
            if len(part) == 1:
                yield Block(part, part[0].name, kept=int(part[0].name in kept))
            else:
                label = module or f"{part[0].name} ... {part[-1].name}"
                yield Block(part, label, kept=sum(node.name in kept for node in part))


def merged(blocks: list[Block], room: int) -> list[Block]:
    """Neighbouring folded blocks taken together, the smallest pairs first, until they fit."""
    blocks = list(blocks)
    while sum(is_folded(block) for block in blocks) > room:
        pairs = [
            (len(first.nodes) + len(second.nodes), place)
            for place, (first, second) in enumerate(itertools.pairwise(blocks))
            if is_folded(first) and is_folded(second)
        ]
        if not pairs:
            break
        _, place = min(pairs)
        first, second = blocks[place], blocks[place + 1]
        start, end = first.label.partition(" ... ")[0], second.label.rpartition(" ... ")[2]
        label = start if start == end else f"{start} ... {end}"
        blocks[place : place + 2] = [Block((*first.nodes, *second.nodes), label, first.kept + second.kept)]
    return blocks


def is_folded(block: Block) -> bool:
    """Whether it may be taken together with another: what was kept stands alone."""
    return not block.as_input and not (block.is_single and block.kept)


def kept_names(
    original: Sequence[DrawnNode], reduced: Sequence[DrawnNode]
) -> tuple[frozenset[str], frozenset[str]]:
    """Names in ``original`` of the nodes that ``reduced`` has, and of the values that became its inputs.

    A node is found by its name and what it calls; one that the reduction renamed by what it calls and the line it came
    from.
    """
    by_name = {node.name: node for node in original}
    kept: set[str] = set()
    for node in reduced:
        if node.is_input:
            continue
        same = by_name.get(node.name)
        if same is not None and same.label == node.label:
            kept.add(node.name)
            continue
        alike = [
            one.name
            for one in original
            if (one.label, one.comment) == (node.label, node.comment)
            and one.name not in kept
            and not one.is_input
        ]
        kept.update(alike[:1])
    inputs = {node.name for node in reduced if node.is_input and node.name in by_name}
    return frozenset(kept), frozenset(inputs - kept)
