"""Nodes that cannot stand alone when a graph is cut out of a larger one, and those that may seem so."""

from __future__ import annotations

from collections.abc import Iterable, Set

from torch import fx

from minidbg.graphs.effects import is_call
from minidbg.graphs.facts import Fact, Kind
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
        if fact.kind is Kind.TUPLE and not whole_tuples:
            part = next(
                (user for user in node.users if is_unpacking(user, facts) and is_tensor(facts.get(user))),
                None,
            )
            if part is not None:
                found.add(part)
        elif fact.kind in (Kind.NUMBER, Kind.PLAIN) and len(found) > 1 and not _acts(node, fact):
            found.discard(node)
    return found


def _acts(node: fx.Node, fact: Fact) -> bool:
    """Whether the call matters though nothing uses what it gives: assertions, and what is called for an effect."""
    gives_nothing = fact.kind is Kind.PLAIN and fact.plain is None
    return gives_nothing or "assert" in str(node.target) or node.is_impure()
