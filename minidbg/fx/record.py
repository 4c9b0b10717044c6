"""Values inside a graph, found by running it eagerly: what any node may become an input with.

Only what is asked for is kept; the rest is computed again. Values are as they were at the moment of
use, also where the graph writes to its tensors. The caller's inputs are never written to.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx

from minidbg.fx.effects import Fact, Mode, fact_of, is_call, mode_of
from minidbg.fx.mutation import written_arguments
from minidbg.fx.runs import (
    EagerFailure,
    ModeContext,
    NodeAt,
    Runs,
    StorageSerials,
    ValueFacts,
    standing_alone,
)

__all__ = ["ModeContext", "NodeAt", "Recording", "runs_in_eager"]

NOT_RECORDED = object()
"""Stands for a value that has to be computed."""


class Recording(Runs):
    """The values of ``graph_module`` run on ``inputs``, in the grad mode of the moment this is made.

    ``inputs`` are one for each placeholder, and are only read. Random ops give the same values each
    time. ``around`` gives the modes in which the graph runs: autocast, grad mode; by default those
    of the moment. ``parent`` is a recording of a graph that this one was cut out of, so that less
    has to be found out again; ``same_values`` says that each node computes what it did there.
    """

    def __init__(
        self,
        graph_module: fx.GraphModule,
        inputs: Sequence[Any],
        *,
        parent: Recording | None = None,
        same_values: bool = False,
        around: ModeContext = nullcontext,
    ) -> None:
        harmless = {node.name for node in parent.nodes if node not in parent.writing} if parent else set()
        writing: dict[fx.Node, list[fx.Node]] = {
            node: targets
            for node in graph_module.graph.nodes
            if is_call(node)
            and node.name not in harmless
            and (targets := list(dict.fromkeys(written_arguments(graph_module, node))))
        }
        around = parent.around if parent else around
        with around():
            grad = parent.grad if parent else torch.is_grad_enabled()
        super().__init__(graph_module, tuple(inputs), writing, around, grad=grad)
        self.input_of = dict(zip(self.placeholders, self.inputs, strict=True))
        self.mode_changes = frozenset(node for node in self.nodes if mode_of(node) is not Mode.NONE)
        self._in_use: dict[NodeAt, weakref.ref[Tensor]] = {}
        if parent and same_values and (inherited := self._inherited(parent)):
            self._value_facts = inherited

    # --- what is known about the nodes ---

    @property
    def facts(self) -> dict[fx.Node, Fact]:
        """What the value of each node is; nodes after an eager failure are missing."""
        return self._value_facts.facts

    @property
    def failure(self) -> EagerFailure | None:
        return self._value_facts.failure

    def _inherited(self, parent: Recording) -> ValueFacts | None:
        """What the same nodes of ``parent`` showed; None when one is not known there."""
        at = {node.name: position for position, node in enumerate(self.nodes)}
        known = {node.name: node for node in parent.facts}
        wanted = (node.name for node in self.nodes[:-1] if node.op != "placeholder" or self.writing)
        if not known.keys() >= set(wanted):
            return None
        gathered = ValueFacts()
        for node in self.nodes[:-1]:
            is_input = node.op == "placeholder"
            gathered.facts[node] = (
                fact_of(self.input_of[node]) if is_input else parent.facts[known[node.name]]
            )
            if self.writing:
                gathered.storages[node] = parent.storages[known[node.name]]
        for storage, positions in parent.writes.items():
            names = (parent.nodes[position].name for position in positions)
            if here := [at[name] for name in names if name in at]:
                gathered.writes[storage] = here
        return gathered

    @property
    def storages(self) -> dict[fx.Node, frozenset[int]]:
        """Serial numbers of the storages behind each value; empty when nothing is ever written."""
        return self._value_facts.storages

    @property
    def writes(self) -> dict[int, list[int]]:
        """Serial number of a storage to the positions that write to it."""
        return self._value_facts.writes

    def writes_to(self, node: fx.Node, before: int) -> list[fx.Node]:
        """The nodes before position ``before`` that write to the value of ``node``."""
        gathered = self._value_facts
        if not gathered.writes:
            return []
        first = self.index[node]
        positions = {
            position
            for storage in gathered.storages.get(node, frozenset())
            for position in gathered.writes.get(storage, ())
            if first < position < before
        }
        return [self.nodes[position] for position in sorted(positions)]

    @property
    def outputs(self) -> list[fx.Node]:
        """The nodes that the graph returns, each once, tuples and dicts opened."""
        return list(dict.fromkeys(self.nodes[-1].all_input_nodes))

    # --- values ---

    def values(self, wanted: Sequence[NodeAt]) -> list[Any]:
        """The value for each moment wanted. Tensors share storage as they did then, and nobody else's if written later.

        Raises EagerFailure when the graph fails before it has them all.
        """
        moments = [self._clamped(moment) for moment in wanted]
        found = {moment: self._known(moment) for moment in moments}
        missing = [moment for moment, value in found.items() if value is NOT_RECORDED]
        if missing:
            found |= self._replay(missing)
        return [found[moment] for moment in moments]

    def _clamped(self, moment: NodeAt) -> NodeAt:
        """The earliest moment with the same value, so that a run can stop early; always one at which it is alive."""
        position, node = moment
        first = self.index[node] + 1
        if not self.writing:
            return first, node
        return max(first, min(position, self.last_use[node])), node

    def _known(self, moment: NodeAt) -> Any:
        """The value where no run is needed: an input that nothing can have written to, or a value still in use."""
        position, node = moment
        if node.op == "placeholder" and not (self.writing and self.writes_to(node, position)):
            return self.input_of[node]
        recorded = self._in_use.get(moment)
        value = recorded() if recorded is not None else None
        return NOT_RECORDED if value is None else value

    def _replay(self, wanted: Sequence[NodeAt]) -> dict[NodeAt, Any]:
        by_position: dict[int, list[fx.Node]] = {}
        for position, node in wanted:
            by_position.setdefault(position, []).append(node)
        stop = max(by_position)
        held: dict[NodeAt, Any] = {}

        def hold(position: int, env: dict[fx.Node, Any]) -> None:
            for node in by_position.get(position, ()):
                held[(position, node)] = env[node]

        self.run(stop, hold, held)
        found = {moment: standing_alone(value) for moment, value in held.items()}
        tensors = ((moment, value) for moment, value in found.items() if isinstance(value, Tensor))
        self._in_use |= {moment: weakref.ref(value) for moment, value in tensors}
        return found

    @cached_property
    def _value_facts(self) -> ValueFacts:
        gathered = ValueFacts()
        storages = StorageSerials()

        def look(position: int, env: dict[fx.Node, Any]) -> None:
            if position == 0:
                return
            node = self.nodes[position - 1]
            value = env[node]
            gathered.facts[node] = fact_of(value)
            if self.writing:
                gathered.storages[node] = storages.serials(value)

        def wrote(position: int, tensors: Iterable[Tensor]) -> None:
            for serial in storages.serials(list(tensors)):
                gathered.writes.setdefault(serial, []).append(position)

        try:
            self.run(len(self.nodes) - 1, look, {}, wrote)
        except EagerFailure as failure:
            gathered.failure = failure
        return gathered


def runs_in_eager(
    graph_module: fx.GraphModule, inputs: Sequence[Any], around: ModeContext = nullcontext
) -> bool:
    """Whether the graph runs to its end on ``inputs``, which are only read."""
    return Recording(graph_module, inputs, around=around).failure is None
