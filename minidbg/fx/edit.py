"""Smaller graphs out of larger ones: keep some nodes; recorded values stand where the others were.

An edit gives a ``Piece``: a new GraphModule and an input per placeholder. It changes no argument.
Node names stay, so that a node can be followed through a reduction; so does ``node.meta``.
"""

from __future__ import annotations

import itertools
import operator
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import fx

from minidbg import torch_internals
from minidbg.fx.copying import pausing_gc, with_history
from minidbg.fx.effects import Fact, FactType, Mode, blocks, is_call, leaves_state, mode_of
from minidbg.fx.pieces import (
    CannotExtract,
    Path,
    Piece,
    PieceKey,
    alike,
    copy_node,
    first_tensor,
    is_tensor,
    is_unpacking,
    meta_of_part,
    part_of,
    without_arguments,
)
from minidbg.fx.record import EagerFailure, Recording


def extract(recording: Recording, keep: Set[fx.Node], **how: Any) -> Piece:
    """The graph of just the calls in ``keep``; each value that they take from elsewhere is an input
    with its recorded value.

    ``how`` are fields of ``_Extraction``. Raises CannotExtract.
    """
    return _Extraction(recording, keep, **how).piece()


@dataclass(slots=True)
class _Extraction:
    """One call of ``extract``, with its arguments."""

    recording: Recording
    keep: Set[fx.Node]
    outputs: Set[fx.Node] | None = None
    """Which original outputs stay so, all by default; unused kept nodes become outputs."""
    without_modes: Set[fx.Node] = frozenset()
    """Mode changes around kept nodes that do not stay: blocks entered, settings made."""
    passed_through: bool = False
    """Whether inputs that were outputs stay so."""
    bypass: bool = False
    """Whether a kept value stands for each dropped one of the same shape computed from it."""
    stand_ins: Mapping[fx.Node, fx.Node] = field(default_factory=dict)
    """Values that stand where dropped ones were."""
    without: Set[fx.Node] = frozenset()
    """Inputs to take out of lists; None stands where one was a whole argument."""
    whole_tuples: bool = False
    returns_writes: bool = True
    """Whether a graph that only writes returns its last write, where the whole returns anything."""
    replacements: dict[fx.Node, fx.Node] = field(default_factory=dict)
    """What stands for each dropped node, in the end."""
    # What goes into the new graph: found first, built after, as placeholders come before all else.
    kept: dict[fx.Node, None] = field(default_factory=dict)
    """Calls and mode changes in order."""
    placeholders: dict[fx.Node, None] = field(default_factory=dict)
    lifted: dict[PieceKey, int] = field(default_factory=dict)
    """Recorded values that become inputs, in order of first use, with the position of that use."""
    attributes: dict[fx.Node, None] = field(default_factory=dict)
    returned: list[fx.Node] = field(default_factory=list)
    unpacked: list[tuple[fx.Node, Path]] = field(default_factory=list)
    """Tuple values of which one part is to be an output."""
    graph: fx.Graph = field(default_factory=fx.Graph)
    new: dict[fx.Node, fx.Node] = field(default_factory=dict)
    new_parts: dict[PieceKey, fx.Node] = field(default_factory=dict)
    last_read: dict[int, int] = field(default_factory=dict)

    @property
    def facts(self) -> Mapping[fx.Node, Fact]:
        return self.recording.facts

    @property
    def redirects(self) -> bool:
        """Whether other values stand where dropped ones were."""
        return self.bypass or bool(self.stand_ins)

    def piece(self) -> Piece:
        keep = without_orphans(
            self.recording, self.keep, self.stand_ins.values(), whole_tuples=self.whole_tuples
        )
        self.kept = dict.fromkeys(with_modes(self.recording, keep, self.without_modes))
        self._plan_stand_ins()
        for node in self.kept:
            for source in self._sources(node):
                if source not in self.kept:
                    self._need(source, self._position(node))
        self._plan_outputs()
        self._plan_shape_symbols()
        graph_module = self._build()
        try:
            whole = self.recording.values([(at, node) for (node, _, _), at in self.lifted.items()])
        except EagerFailure as failure:
            raise CannotExtract(str(failure)) from failure
        pairs = zip(whole, self.lifted, strict=True)
        values = [part_of(value, path) for value, (_, _, path) in pairs]
        if self.recording.writing:
            values = list(map(with_history, values))
        plain = [self.recording.input_of[node] for node in self.placeholders]
        origins: list[PieceKey] = [(node, 0, ()) for node in self.placeholders]
        return Piece(graph_module, (*plain, *values), (*origins, *self.lifted), self._is_faithful())

    def _is_faithful(self) -> bool:
        """Whether each kept node computes what it computed in the whole graph."""
        if self.redirects or self.without or self.without_modes:
            return False
        if not self.recording.writing:
            return True
        if any(writes for _, writes, _ in self.lifted):
            return False
        for node in self.kept:
            sources = self.kept.keys() & node.all_input_nodes
            if any(self._dropped_writes(source, self._position(node)) for source in sources):
                return False
        return not self._writes_to_shared_input()

    def _writes_to_shared_input(self) -> bool:
        """Whether a kept node writes to an input that has lost the others of its storage."""
        storages = self.recording.storages
        inputs = {*self.placeholders, *(node for node, _, _ in self.lifted)}
        seen = Counter(storage for node in inputs for storage in storages.get(node, ()))
        targets = (target for node in self.kept for target in self.recording.writing.get(node, ()))
        return any(seen[storage] > 1 for target in targets for storage in storages.get(target, ()))

    # --- what the kept nodes take from elsewhere ---

    def _sources(self, node: fx.Node) -> Iterable[fx.Node]:
        """What ``node`` takes in the new graph, by the names of the old one."""
        sources = [source for source in node.all_input_nodes if source not in self.without]
        return map(self._stand_in, sources) if self.redirects else sources

    def _stand_in(self, node: fx.Node) -> fx.Node:
        return self.replacements.get(node, node)

    def _plan_stand_ins(self) -> None:
        """Find what stands for each dropped node; in order, since one may stand for another."""
        for node in self.recording.nodes if self.redirects else ():
            if node in self.kept or not is_call(node):
                continue
            if node in self.stand_ins:
                self.replacements[node] = self._stand_in(self.stand_ins[node])
            elif self.bypass:
                alike_ones = (one for one in node.all_input_nodes if alike(self.facts, one, node))
                sources = map(self._stand_in, alike_ones)
                self.replacements[node] = next(filter(self.kept.__contains__, sources), node)

    def _need(self, node: fx.Node, position: int) -> None:
        if node.op == "get_attr":
            self.attributes[node] = None
            return
        dropped = self._dropped_writes(node, position)
        if node.op == "placeholder" and dropped == 0:
            self.placeholders[node] = None
            return
        fact = self.facts.get(node)
        if fact is None:
            raise CannotExtract(f"{node.name} could not be recorded")
        self._need_part((node, dropped, ()), fact, position)

    def _need_part(self, key: PieceKey, fact: Fact, position: int) -> None:
        if fact.type is FactType.OPAQUE:
            raise CannotExtract(f"{key[0].name} has no form as an input")
        if fact.type is FactType.TUPLE:
            for index, part in enumerate(fact.parts):
                self._need_part((key[0], key[1], (*key[2], index)), part, position)
        elif _becomes_input(key[0], fact):
            self.lifted.setdefault(key, position)

    def _dropped_writes(self, node: fx.Node, position: int) -> int:
        """How many writes to the value of ``node`` came before ``position`` and are not kept."""
        if not self.recording.writing:
            return 0
        return sum(writer not in self.kept for writer in self.recording.writes_to(node, position))

    # --- what comes out ---

    def _plan_outputs(self) -> None:
        for node in self.recording.outputs:
            if self.outputs is not None and node not in self.outputs:
                continue
            if node.op == "placeholder":
                passed = self.passed_through and node not in self.without
            else:
                node = self._stand_in(node) if self.redirects else node
                passed = node in self.kept
            if passed and node not in self.returned:
                self.returned.append(node)
        used = {source for node in self.kept for source in self._sources(node)}
        used.update(self.returned, self.recording.mode_changes)
        self.last_read = self._reads() if self.recording.writing else {}
        for node in self.kept:
            if node not in used:
                self._plan_unused(node)
        for node in self.returned:
            if node.op == "placeholder":
                self.placeholders[node] = None
        if not (self.returned or self.unpacked) and self.returns_writes and self.recording.outputs:
            tensors = (node for node in reversed(self.kept) if is_tensor(self.facts.get(node)))
            self.returned += itertools.islice(tensors, 1)

    def _plan_unused(self, node: fx.Node) -> None:
        """Make a value that nothing uses an output, if it can be one."""
        fact = self.facts.get(node)
        if node in self.recording.writing:
            self._plan_written(node, fact)
        elif not fact or is_tensor(fact) or (fact.type is FactType.NUMBER and len(self.kept) == 1):
            self.returned.append(node)
        elif fact.type is FactType.TUPLE and (path := first_tensor(fact)) is not None:
            if self.whole_tuples:
                self.returned.append(node)
            else:
                self.unpacked.append((node, path))

    def _plan_written(self, node: fx.Node, fact: Fact | None) -> None:
        """Show a write that no later node reads: as the value of the node, its target, or an input.

        A write that is read stays, as in the whole: a compiler treats a returned value otherwise.
        """
        storages = self.recording.storages
        targets = self.recording.writing[node]
        written = (storage for target in targets for storage in storages.get(target, ()))
        if any(self.last_read.get(storage, -1) > self._position(node) for storage in written):
            return
        target = next(filter(self.kept.__contains__, targets), None)
        if is_tensor(fact) and (node.users or target is not None):
            self.returned.append(node)
        elif target and target not in self.returned and is_tensor(self.facts.get(target)):
            self.returned.append(target)

    def _reads(self) -> dict[int, int]:
        """Storages to the position of the last node that takes them, or of the output."""
        storages = self.recording.storages
        reads: dict[int, int] = {}
        for node in self.kept:
            for source in self._sources(node):
                reads |= dict.fromkeys(storages.get(source, ()), self._position(node))
        for node in self.returned:
            reads |= dict.fromkeys(storages.get(node, ()), len(self.recording.nodes))
        return reads

    def _position(self, node: fx.Node) -> int:
        return self.recording.index[node]

    def _plan_shape_symbols(self) -> None:
        """Symbolic ints in an input's shape stay inputs: a backend must be able to bind them."""
        examples = {node: node.meta.get("example_value") for node in self.recording.placeholders}
        has_sizes = any(isinstance(value, torch.SymInt) for value in examples.values())
        taken = [*self.placeholders, *(node for node, _, _ in self.lifted)] if has_sizes else []
        symbols = set[str]().union(
            *(torch_internals.symbols_in(node.meta.get("example_value")) for node in taken)
        )
        if symbols:
            for node, value in examples.items():
                if torch_internals.symbol_of(value) in symbols:
                    self.placeholders[node] = None
        self.placeholders = dict.fromkeys(sorted(self.placeholders, key=self._position))

    # --- building ---

    @pausing_gc()
    def _build(self) -> fx.GraphModule:
        self.graph = fx.Graph()
        self.new = {}
        for node in self.placeholders:
            self.new[node] = copy_node(self.graph, node, self.new.__getitem__)
        self.new_parts = {key: self._placeholder(key) for key in self.lifted}
        for node in self.attributes:
            self.new[node] = copy_node(self.graph, node, self.new.__getitem__)
        for node in self.kept:
            argument = partial(self._argument, position=self._position(node))
            arguments = without_arguments(node, self.without) if self.without else None
            self.new[node] = copy_node(self.graph, node, argument, arguments)
        outputs = [self.new[node] for node in self.returned]
        outputs += [self._unpack(node, path) for node, path in self.unpacked]
        self.graph.output(tuple(outputs))
        return torch_internals.lazy_graph_module(self.recording.graph_module, self.graph)

    def _placeholder(self, key: PieceKey) -> fx.Node:
        node, _, path = key
        name = "_".join([node.name, *map(str, path)])
        new = self.graph.create_node("placeholder", name, (), {}, name)
        new.target = new.name  # the same node at two moments makes two inputs
        new.meta = meta_of_part(node.meta, path)
        return new

    def _argument(self, node: fx.Node, position: int) -> Any:
        """What stands for ``node`` as an argument of the kept node at ``position``."""
        if self.redirects:
            node = self._stand_in(node)
        if node in self.kept or node.op == "get_attr":
            return self.new[node]
        dropped = self._dropped_writes(node, position)
        if node.op == "placeholder" and dropped == 0:
            return self.new[node]
        return self._argument_part((node, dropped, ()), self.facts[node])

    def _argument_part(self, key: PieceKey, fact: Fact) -> Any:
        if fact.type is FactType.TUPLE:
            return tuple(
                self._argument_part((key[0], key[1], (*key[2], index)), part)
                for index, part in enumerate(fact.parts)
            )
        return self.new_parts.get(key, fact.plain)

    def _unpack(self, node: fx.Node, path: Path) -> fx.Node:
        """The part of a tuple at ``path``, by the getitems of the whole graph, or new ones."""
        new = self.new[node]
        for index in path:
            new = self.graph.call_function(operator.getitem, (new, index))
        new.meta = meta_of_part(node.meta, path)
        return new


def _becomes_input(node: fx.Node, fact: Fact) -> bool:
    if fact.type is FactType.NUMBER:
        return isinstance(node.meta.get("example_value"), torch.SymInt | torch.SymFloat)
    return fact.type is FactType.TENSOR


def without_orphans(
    recording: Recording, keep: Set[fx.Node], stand_ins: Iterable[fx.Node], *, whole_tuples: bool
) -> set[fx.Node]:
    """``keep`` as it can stand: no part without its whole, no number or constant unused in it.

    ``stand_ins`` are used though no kept node says so. Unless ``whole_tuples``, a tuple value none
    of whose parts are kept gets back its first part that is a tensor.
    """
    facts, alive = recording.facts, set[fx.Node]()
    used = {*stand_ins, *recording.outputs, *recording.writing}
    for node in recording.nodes:
        if node in keep and is_call(node) and node not in recording.mode_changes:
            if is_unpacking(node, facts) and node.args[0] not in alive:
                continue
            alive.add(node)
    for node in reversed([node for node in recording.nodes if node in alive]):
        fact = facts.get(node)
        if fact is None or node in used or not alive.isdisjoint(node.users):
            continue
        is_plain = fact.type in (FactType.NUMBER, FactType.PLAIN)
        if fact.type is FactType.TUPLE and not whole_tuples:
            parts = (user for user in node.users if is_unpacking(user, facts))
            tensors = (part for part in parts if is_tensor(facts.get(part)))
            alive.update(itertools.islice(tensors, 1))
        elif is_plain and len(alive) > 1 and not _acts(node, fact):
            alive.discard(node)
    return alive


def _acts(node: fx.Node, fact: Fact) -> bool:
    """Whether the call matters though nothing uses its value: assertions, and calls for effect."""
    gives_nothing = fact.type is FactType.PLAIN and fact.plain is None
    return gives_nothing or leaves_state(node) or "assert" in str(node.target) or node.is_impure()


def with_modes(recording: Recording, keep: Set[fx.Node], without: Set[fx.Node]) -> list[fx.Node]:
    """``keep`` with the mode changes in force around its nodes, except ``without``, in order."""
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


def _grad_changes(recording: Recording, keep: Set[fx.Node], without: Set[fx.Node]) -> set[fx.Node]:
    """Grad mode settings that matter to ``keep``, and one to end as the whole graph does."""
    settings = [node for node in recording.nodes if mode_of(node) is Mode.GRAD]
    state = start = recording.grad
    pending: fx.Node | None = None
    changes: set[fx.Node] = set()
    for node in recording.nodes if settings else ():
        if mode_of(node) is Mode.GRAD and node not in without:
            pending = node
        elif node in keep and pending is not None:
            if pending.args[0] is not state:
                changes.add(pending)
                state = bool(pending.args[0])
            pending = None
    if state is not start and settings[-1].args[0] is start:
        changes.add(settings[-1])
    return changes
