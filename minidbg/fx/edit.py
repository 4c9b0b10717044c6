"""Smaller graphs out of larger ones: keep some nodes; recorded values stand where the others were.

``extract`` gives a ``Piece``: a new GraphModule and an input per placeholder. No edit changes its
argument. Node names stay, so that a node can be followed through a reduction; so does ``node.meta``.
"""

from __future__ import annotations

import itertools
import operator
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import fx

from minidbg import torch_internals
from minidbg.fx.copying import copy_node, with_history
from minidbg.fx.effects import LEAVE_STATE, Fact, FactType, Mode, is_call, mode_of, nested_graphs, op_name
from minidbg.fx.record import EagerFailure, Recording

Path: TypeAlias = tuple[int, ...]
"""Which part of a tuple value; empty for the value itself."""
PieceKey: TypeAlias = tuple[fx.Node, int, Path]
"""A recorded value: the node, how many dropped writes it has seen, and which part of it."""


@dataclass(frozen=True, slots=True)
class Piece:
    graph_module: fx.GraphModule
    inputs: tuple[Any, ...]
    origins: tuple[PieceKey, ...]
    """Per input where its value comes from in the graph that this was cut out of."""
    faithful: bool
    """Whether each kept node computes what it did in the whole graph, so eager is not asked."""


class CannotExtract(Exception):
    """A value that kept nodes need has no form as input or constant, or could not be recorded."""


def alike(facts: Mapping[fx.Node, Fact], one: fx.Node, other: fx.Node) -> bool:
    """Whether both are tensors of the same shape, dtype and device."""
    first, second = facts.get(one), facts.get(other)
    return is_tensor(first) and is_tensor(second) and first.like == second.like


def is_tensor(fact: Fact | None) -> TypeGuard[Fact]:
    return fact is not None and fact.type is FactType.TENSOR


def is_unpacking(node: fx.Node, facts: Mapping[fx.Node, Fact]) -> bool:
    """Whether ``node`` only takes a part out of a tuple value."""
    whole = node.args[0] if node.target is operator.getitem else None
    fact = facts.get(whole) if isinstance(whole, fx.Node) else None
    return fact is not None and fact.type is FactType.TUPLE


def dropped_writes(recording: Recording, calls: Mapping[fx.Node, None], node: fx.Node, before: int) -> int:
    """How many writes to the value of ``node`` came before a position and are not kept."""
    writers = recording.writes_to(node, before) if recording.writing else ()
    return sum(writer not in calls for writer in writers)


def extract(
    recording: Recording,
    keep: Set[fx.Node],
    *,
    outputs: Set[fx.Node] | None = None,
    without_modes: Set[fx.Node] = frozenset(),
    passed_through: bool = False,
    bypass: bool = False,
    stand_ins: Mapping[fx.Node, fx.Node] = MappingProxyType({}),
    without: Set[fx.Node] = frozenset(),
    whole_tuples: bool = False,
    returns_writes: bool = True,
) -> Piece:
    """The graph of just the calls in ``keep``; each value that they take from elsewhere is an input
    with its recorded value. Raises CannotExtract.

    ``outputs``: which original outputs stay so, all by default; unused kept nodes become outputs.
    ``without_modes``: mode changes around kept nodes that do not stay: blocks entered, settings
    made. ``passed_through``: whether inputs that were outputs stay so. ``bypass``: whether a kept
    value stands for each dropped one of the same shape computed from it. ``stand_ins``: values that
    stand where dropped ones were. ``without``: inputs to take out of lists; None stands where one
    was a whole argument. ``whole_tuples``: see ``kept_calls``. ``returns_writes``: whether a graph
    that only writes returns its last write, where the whole returns anything.
    """
    facts, index, storages = recording.facts, recording.index, recording.storages
    calls = dict.fromkeys(
        kept_calls(recording, keep, without_modes, stand_ins.values(), whole_tuples=whole_tuples)
    )
    instead: dict[fx.Node, fx.Node] = {}
    for node in recording.nodes if bypass or stand_ins else ():  # one may stand for another
        if node in calls or not is_call(node):
            continue
        if node in stand_ins:
            instead[node] = instead.get(stand_ins[node], stand_ins[node])
        elif bypass:
            similar = (other for other in node.all_input_nodes if alike(facts, other, node))
            ends = (instead.get(other, other) for other in similar)
            instead[node] = next(filter(calls.__contains__, ends), node)
    takes = {
        node: [instead.get(taken, taken) for taken in node.all_input_nodes if taken not in without]
        for node in calls
    }

    # --- what the kept nodes take from elsewhere ---
    placeholders, attributes = dict[fx.Node, None](), dict[fx.Node, None]()
    lifted: dict[PieceKey, int] = {}
    for node, sources in takes.items():
        for source in (source for source in sources if source not in calls):
            dropped = dropped_writes(recording, calls, source, index[node])
            if source.op == "get_attr":
                attributes[source] = None
            elif source.op == "placeholder" and not dropped:
                placeholders[source] = None
            elif source not in facts:
                raise CannotExtract(f"{source.name} could not be recorded")
            else:
                for path, part in parts_of(facts[source]):
                    if part.type is FactType.OPAQUE:
                        raise CannotExtract(f"{source.name} has no form as an input")
                    example = source.meta.get("example_value")
                    is_symbol = isinstance(example, torch.SymInt | torch.SymFloat)
                    if is_tensor(part) or (part.type is FactType.NUMBER and is_symbol):
                        lifted.setdefault((source, dropped, path), index[node])

    # --- what comes out ---
    returned, unpacked = list[fx.Node](), list[tuple[fx.Node, Path]]()
    for node in recording.outputs:
        if outputs is not None and node not in outputs:
            continue
        if node.op == "placeholder":
            passed = passed_through and node not in without
        else:
            node = instead.get(node, node)
            passed = node in calls
        if passed and node not in returned:
            returned.append(node)
    used = {source for sources in takes.values() for source in sources}
    used.update(returned, recording.mode_changes)
    last_read: dict[int, int] = {}
    for node, sources in takes.items() if recording.writing else ():
        for source in sources:
            last_read |= dict.fromkeys(storages.get(source, ()), index[node])
    for node in returned if recording.writing else ():
        last_read |= dict.fromkeys(storages.get(node, ()), len(recording.nodes))
    for node in calls:
        fact = facts.get(node)
        if node in used:
            continue
        if node in recording.writing:
            # what no later node reads is shown: as the value of the node, or its target; what is
            # read stays as in the whole, as a compiler treats a returned value otherwise
            targets = recording.writing[node]
            written = (storage for target in targets for storage in storages.get(target, ()))
            is_read = any(last_read.get(storage, -1) > index[node] for storage in written)
            target = next(filter(calls.__contains__, targets), None)
            shown = node if is_tensor(fact) and (node.users or target is not None) else target
            if shown and not is_read and shown not in returned and is_tensor(facts.get(shown)):
                returned.append(shown)
        elif not fact or is_tensor(fact) or (fact.type is FactType.NUMBER and len(calls) == 1):
            returned.append(node)
        elif fact.type is FactType.TUPLE:
            tensors = (path for path, part in parts_of(fact) if is_tensor(part))
            for path in itertools.islice(tensors, 1):
                if whole_tuples:
                    returned.append(node)
                else:
                    unpacked.append((node, path))
    placeholders |= {node: None for node in returned if node.op == "placeholder"}
    if not (returned or unpacked) and returns_writes and recording.outputs:
        results = (node for node in reversed(calls) if is_tensor(facts.get(node)))
        returned += itertools.islice(results, 1)

    # --- symbolic ints in an input's shape stay inputs: a backend must be able to bind them ---
    examples = {node: node.meta.get("example_value") for node in recording.placeholders}
    if any(isinstance(value, torch.SymInt) for value in examples.values()):
        taken = (*placeholders, *(node for node, _, _ in lifted))
        symbols = set[str]().union(
            *(torch_internals.symbols_in(node.meta.get("example_value")) for node in taken)
        )
        for node, size in examples.items():
            if isinstance(size, torch.SymInt) and not symbols.isdisjoint(torch_internals.symbols_in(size)):
                placeholders[node] = None

    faithful = not (bypass or stand_ins or without or without_modes or recording.writing)
    ordered = sorted(placeholders, key=index.__getitem__)
    made = build(recording, calls, instead, without, ordered, lifted, attributes, returned, unpacked)
    try:
        whole = recording.values([(at, node) for (node, _, _), at in lifted.items()])
    except EagerFailure as failure:
        raise CannotExtract(str(failure)) from failure
    values = [part_of(value, path) for value, (_, _, path) in zip(whole, lifted, strict=True)]
    if recording.writing:
        values = list(map(with_history, values))
    plain = [recording.input_of[node] for node in ordered]
    origins: list[PieceKey] = [(node, 0, ()) for node in ordered]
    return Piece(made, (*plain, *values), (*origins, *lifted), faithful)


def build(
    recording: Recording,
    calls: Mapping[fx.Node, None],
    instead: Mapping[fx.Node, fx.Node],
    without: Set[fx.Node],
    placeholders: Sequence[fx.Node],
    lifted: Iterable[PieceKey],
    attributes: Iterable[fx.Node],
    returned: Iterable[fx.Node],
    unpacked: Iterable[tuple[fx.Node, Path]],
) -> fx.GraphModule:
    """The graph of ``calls``, in order, of ``placeholders`` and recorded values that are ``lifted``
    to inputs, and of ``attributes``; it returns values, and of ``unpacked`` tuples one part.
    ``instead`` has what stands for each dropped node."""
    graph, facts = fx.Graph(), recording.facts
    new, parts = dict[fx.Node, fx.Node](), dict[PieceKey, fx.Node]()

    def argument(node: fx.Node, position: int) -> Any:
        """What stands for ``node`` as an argument of the kept node at ``position``."""
        node = instead.get(node, node)
        if node in calls or node.op == "get_attr":
            return new[node]
        dropped = dropped_writes(recording, calls, node, position)
        if node.op == "placeholder" and not dropped:
            return new[node]
        return part_or_constant((node, dropped, ()), facts[node])

    def part_or_constant(key: PieceKey, fact: Fact) -> Any:
        if fact.type is not FactType.TUPLE:
            return parts.get(key, fact.plain)
        node, dropped, path = key
        return tuple(
            part_or_constant((node, dropped, (*path, at)), part) for at, part in enumerate(fact.parts)
        )

    for node in placeholders:
        new[node] = copy_node(graph, node, new.__getitem__)
    for key in lifted:
        node, _, path = key
        name = "_".join([node.name, *map(str, path)])
        parts[key] = graph.create_node("placeholder", name, (), {}, name)
        parts[key].target = parts[key].name  # the same node at two moments makes two inputs
        parts[key].meta = meta_of_part(node.meta, path)
    for node in attributes:
        new[node] = copy_node(graph, node, new.__getitem__)
    for node in calls:
        arguments = without_arguments(node, without) if without else None
        new[node] = copy_node(graph, node, partial(argument, position=recording.index[node]), arguments)
    results = [new[node] for node in returned]
    for node, path in unpacked:
        results.append(new[node])
        for at in path:
            results[-1] = graph.call_function(operator.getitem, (results[-1], at))
        results[-1].meta = meta_of_part(node.meta, path)
    graph.output(tuple(results))
    return torch_internals.lazy_graph_module(recording.graph_module, graph)


def kept_calls(
    recording: Recording,
    keep: Set[fx.Node],
    without_modes: Set[fx.Node],
    stand_ins: Iterable[fx.Node],
    *,
    whole_tuples: bool,
) -> list[fx.Node]:
    """``keep`` as it can stand, in order: no part without its whole, no number or constant unused
    in it, and around it the mode changes in force, except ``without_modes``.

    ``stand_ins`` are used though no kept node says so. Unless ``whole_tuples``, a tuple value none
    of whose parts are kept gets back its first part that is a tensor.
    """
    facts, index, alive = recording.facts, recording.index, set[fx.Node]()
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
    positions = sorted(index[node] for node in alive)
    for exit_ in (node for node in recording.mode_changes if mode_of(node) is Mode.EXIT):
        [enter] = exit_.all_input_nodes
        first_inside = bisect_right(positions, index[enter])
        holds = first_inside < len(positions) and positions[first_inside] < index[exit_]
        if holds and enter not in without_modes:
            alive |= {enter, exit_}
    alive |= _grad_changes(recording, alive, without_modes)
    return [node for node in recording.nodes if node in alive]


def _acts(node: fx.Node, fact: Fact) -> bool:
    """Whether the call matters though nothing uses its value: assertions, and calls for effect."""
    gives_nothing = fact.type is FactType.PLAIN and fact.plain is None
    is_state = node.op == "call_function" and op_name(node).endswith(LEAVE_STATE)
    return gives_nothing or is_state or "assert" in str(node.target) or node.is_impure()


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


def rewritten(
    graph_module: fx.GraphModule,
    *,
    arguments: Callable[[fx.Node], tuple[Any, Any]] | None = None,
    stand_ins: Mapping[fx.Node, fx.Node] = MappingProxyType({}),
    without: Set[fx.Node] = frozenset(),
) -> fx.GraphModule:
    """``graph_module`` node by node; ``arguments`` gives a call new args and kwargs, of old nodes.

    ``stand_ins``: nodes that earlier ones replace; they go. ``without``: unused nodes to leave out.
    """
    graph = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    for node in graph_module.graph.nodes:
        if node in stand_ins:
            new[node] = new[stand_ins[node]]
        elif node not in without:
            given = arguments(node) if arguments and is_call(node) else None
            new[node] = copy_node(graph, node, new.__getitem__, given)
    return torch_internals.lazy_graph_module(graph_module, graph)


def with_attributes_lifted(graph_module: fx.GraphModule, paths: Sequence[str]) -> fx.GraphModule:
    """``graph_module`` with an input, after the others, for each of its attributes at ``paths``."""
    graph = rewritten(graph_module).graph
    for path in paths:
        node, *others = (fetch for fetch in graph.find_nodes(op="get_attr") if fetch.target == path)
        for other in others:
            other.replace_all_uses_with(node)
            graph.erase_node(other)
        next(one for one in graph.nodes if one.op != "placeholder").prepend(node)
        node.op, node.target = "placeholder", node.name
    return torch_internals.lazy_graph_module(graph_module, graph)


def without_arguments(node: fx.Node, gone: Set[fx.Node]) -> tuple[Any, Any]:
    """Args and kwargs of ``node`` without these nodes: out of lists, and None where one was a whole
    argument, an end of a slice or in a dict.

    Raises CannotExtract where that leaves an empty list, or for the first argument, or any of a
    Triton kernel or an op that hands them to nested graphs.
    """
    if not any(argument in gone for argument in node.all_input_nodes):
        return node.args, node.kwargs
    if torch_internals.is_kernel_launch(node) or any(nested_graphs(node)):
        raise CannotExtract(f"{node.name} needs all of its arguments")
    if node.args and node.args[0] in gone:
        raise CannotExtract(f"{node.name} needs its first argument")
    args = tuple(_without(argument, gone) for argument in node.args)
    return args, {key: _without(argument, gone) for key, argument in node.kwargs.items()}


def _without(value: Any, gone: Set[fx.Node]) -> Any:
    if isinstance(value, fx.Node):
        return None if value in gone else value
    if isinstance(value, slice):
        return slice(*(_without(part, gone) for part in (value.start, value.stop, value.step)))
    if isinstance(value, dict):
        return {key: _without(part, gone) for key, part in value.items()}
    if not isinstance(value, tuple | list):
        return value
    rest = [part for part in value if not (isinstance(part, fx.Node) and part in gone)]
    if not rest and value:
        raise CannotExtract("a list would be empty")
    return type(value)([_without(part, gone) for part in rest])


def parts_of(fact: Fact, path: Path = ()) -> Iterator[tuple[Path, Fact]]:
    """The parts of a tuple value, tuples in it opened, each with its place; of another, itself."""
    if fact.type is not FactType.TUPLE:
        yield path, fact
    for index, part in enumerate(fact.parts):
        yield from parts_of(part, (*path, index))


def part_of(value: Any, path: Path) -> Any:
    for index in path:
        value = value[index]
    return value


def meta_of_part(meta: Mapping[str, Any], path: Path) -> dict[str, Any]:
    found = dict(meta)
    for key in ("example_value", "val"):
        if path and key in found:
            try:
                found[key] = part_of(found[key], path)
            except (TypeError, IndexError):
                del found[key]
    return found
