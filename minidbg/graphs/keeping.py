"""Which nodes stay when a graph is cut out of a larger one: none that cannot stand alone, and the modes around the others."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Set

from torch import fx

from minidbg.graphs.effects import Mode, blocks, is_call, mode_of
from minidbg.graphs.facts import Fact, FactKind
from minidbg.graphs.pieces import is_tensor, is_unpacking
from minidbg.graphs.record import Recording


def without_orphans(
    recording: Recording, keep: Set[fx.Node], stand_ins: Iterable[fx.Node], *, whole_tuples: bool
) -> set[fx.Node]:
    """``keep`` as it can stand: no part without its whole, no number or constant that nothing kept uses.

    ``stand_ins`` are used though no kept node says so. Unless ``whole_tuples``, a tuple value none of whose parts are kept
    gets back its first part that is a tensor.
    """
    facts, found, kept_for = recording.facts, set(), {*stand_ins, *recording.outputs}
    for node in recording.nodes:
        if node in keep and is_call(node) and node not in recording.mode_changes:
            if is_unpacking(node, facts) and node.args[0] not in found:
                continue
            found.add(node)
    for node in reversed([node for node in recording.nodes if node in found]):
        fact = facts.get(node)
        if (
            fact is None
            or node in recording.writing
            or node in kept_for
            or any(user in found for user in node.users)
        ):
            continue
        if fact.kind is FactKind.TUPLE and not whole_tuples:
            part = next(
                (user for user in node.users if is_unpacking(user, facts) and is_tensor(facts.get(user))),
                None,
            )
            if part is not None:
                found.add(part)
        elif fact.kind in (FactKind.NUMBER, FactKind.PLAIN) and len(found) > 1 and not _acts(node, fact):
            found.discard(node)
    return found


def _acts(node: fx.Node, fact: Fact) -> bool:
    """Whether the call matters though nothing uses what it gives: assertions, and what is called for an effect."""
    gives_nothing = fact.kind is FactKind.PLAIN and fact.plain is None
    return gives_nothing or "assert" in str(node.target) or node.is_impure()


def with_modes(recording: Recording, keep: Set[fx.Node], without: Set[fx.Node]) -> list[fx.Node]:
    """``keep`` with the mode changes that are in force around its nodes, but for those of ``without``, in order."""
    index = recording.index
    needed = set(keep)
    positions = sorted(index[node] for node in keep)
    for enter, exit_ in blocks(recording.graph_module.graph):
        first_inside = bisect_right(positions, index[enter])
        holds = first_inside < len(positions) and positions[first_inside] < index[exit_]
        if holds and enter not in without:
            needed |= {enter, exit_}
    needed |= _grad_changes(recording, needed, without)
    return [node for node in recording.nodes if node in needed]


def _grad_changes(recording: Recording, needed: Set[fx.Node], without: Set[fx.Node]) -> set[fx.Node]:
    """The settings of grad mode that make a difference to a needed node, and one to end as the whole graph ends."""
    settings = sorted(
        (node for node in recording.mode_changes if mode_of(node) is Mode.GRAD),
        key=recording.index.__getitem__,
    )
    state = start = recording.grad
    pending: fx.Node | None = None
    changes: set[fx.Node] = set()
    for node in recording.nodes if settings else ():
        if mode_of(node) is Mode.GRAD and node not in without:
            pending = node
        elif node in needed and pending is not None:
            if pending.args[0] is not state:
                changes.add(pending)
                state = bool(pending.args[0])
            pending = None
    if state is not start and settings[-1].args[0] is start:
        changes.add(settings[-1])
    return changes
