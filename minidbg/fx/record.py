"""Values inside a graph, found by running it eagerly: what any node may become an input with.

Only what is asked for is kept; the rest is computed again. Values are as they were at the moment of
use, also where the graph writes to its tensors. Runs never write to the caller's tensors, and leave
no mode behind.
"""

from __future__ import annotations

import copy
import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx
from torch.multiprocessing.reductions import StorageWeakRef

from minidbg import torch_internals
from minidbg.core.foreign import message_of
from minidbg.fx.copying import clone_values, storage_key
from minidbg.fx.effects import (
    STATISTICS,
    Fact,
    Mode,
    fact_of,
    graph_attribute,
    is_call,
    leave_blocks,
    mode_of,
    op_name,
    tensors_in,
)
from minidbg.fx.mutation import written_arguments, written_sources
from minidbg.torch_internals.devices import generator_states, set_generator_state

NOT_RECORDED = object()
"""Stands for a value that has to be computed."""


class EagerFailure(Exception):
    """The graph, or the part of it that was needed, fails in eager."""


class StorageSerials:
    """Numbers for storages that stay different when a storage dies and its address is reused."""

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[int, Any]] = {}
        self._next = 0

    def of(self, value: Any) -> frozenset[int]:
        return frozenset(self._serial(tensor) for tensor in tensors_in(value))

    def _serial(self, tensor: Tensor) -> int:
        key = storage_key(tensor)
        known = self._numbers.get(key)
        if known is not None and known[1]() is not None:
            return known[0]
        self._next += 1
        self._numbers[key] = (self._next, _weak_storage(tensor))
        return self._next


def _weak_storage(tensor: Tensor) -> Callable[[], Any]:
    try:
        reference: Any = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
    except (RuntimeError, NotImplementedError):  # as in storage_key: the tensor stands for it
        return weakref.ref(tensor)
    return lambda: None if reference.expired() else reference


def versions(node: fx.Node, targets: Iterable[fx.Node], env: Env) -> list[tuple[Tensor, Any]]:
    """Each tensor that may be written, and what tells it: a version or copy of small statistics."""
    tensors = [tensor for target in targets for tensor in tensors_in(env[target])]
    if op_name(node) in STATISTICS:
        return [(tensor, tensor.clone()) for tensor in tensors if tensor.dim() <= 1]
    # a Triton kernel moves no version: what it may write counts as written
    if torch_internals.is_kernel_launch(node):
        return [(tensor, None) for tensor in tensors]
    return [(tensor, None if tensor.is_inference() else tensor._version) for tensor in tensors]


def written_tensors(node: fx.Node, before: Iterable[tuple[Tensor, Any]]) -> Iterator[Tensor]:
    for tensor, was in before:
        if isinstance(was, Tensor):
            if not torch.equal(was, tensor):
                yield tensor
        elif was is None or tensor._version != was:
            yield tensor


NodeAt: TypeAlias = tuple[int, fx.Node]
"""A position in the graph and the node whose value is wanted as just before that position runs."""
Held: TypeAlias = dict[NodeAt, Any]

Env: TypeAlias = dict[fx.Node, Any]
"""The values of nodes that are alive."""

Visit: TypeAlias = Callable[[int, Env], None]
Wrote: TypeAlias = Callable[[int, Iterable[Tensor]], None]

ModeContext: TypeAlias = Callable[[], AbstractContextManager[Any]]
"""Makes the block in which a graph runs."""


class Recording:
    """The values of ``graph_module`` run on ``inputs``, in the grad mode when this is made.

    ``inputs`` are one for each placeholder, and are only read. Random ops give the same values each
    time. ``around`` gives the modes in which the graph runs: autocast, grad mode; by default those
    of the moment.
    """

    def __init__(
        self,
        graph_module: fx.GraphModule,
        inputs: Sequence[Any],
        *,
        around: ModeContext = nullcontext,
    ) -> None:
        self.graph_module, self.inputs = graph_module, tuple(inputs)
        self.nodes: list[fx.Node] = list(graph_module.graph.nodes)
        self.placeholders = [node for node in self.nodes if node.op == "placeholder"]
        self.input_of = dict(zip(self.placeholders, self.inputs, strict=True))
        self.index = {node: position for position, node in enumerate(self.nodes)}
        self.writing: dict[fx.Node, list[fx.Node]] = {
            node: into
            for node in self.nodes
            if is_call(node) and (into := [*dict.fromkeys(written_arguments(node))])
        }
        """Nodes that may write to values that they did not make, with the nodes of those values."""
        self.mode_changes = frozenset(node for node in self.nodes if mode_of(node) is not Mode.NONE)
        self.around = around
        with around():
            self.grad = torch.is_grad_enabled()
        self._random_states = generator_states(self.inputs)
        self.last_use = {
            node: max((self.index[user] for user in node.users), default=self.index[node])
            for node in self.nodes
        }
        self._cloned = written_names(graph_module, self.inputs) if self.writing else frozenset()
        """Names of placeholders and attributes that the graph may write to."""
        self._in_use: dict[NodeAt, weakref.ref[Tensor]] = {}
        self.facts: dict[fx.Node, Fact] = {}
        """What the value of each node is; nodes after an eager failure are missing."""
        self.storages: dict[fx.Node, frozenset[int]] = {}
        """Serial numbers of the storages behind each value; empty when nothing is ever written."""
        self._writes: dict[int, list[int]] = {}
        """Storage serial to the positions that write to it."""
        self.failure: EagerFailure | None = None
        self._run_whole()

    # --- what is known about the nodes ---

    def _run_whole(self) -> None:
        serials = StorageSerials()

        def look(position: int, env: Env) -> None:
            if position == 0:
                return
            node = self.nodes[position - 1]
            self.facts[node] = fact_of(env[node])
            if self.writing:
                self.storages[node] = serials.of(env[node])

        def wrote(position: int, tensors: Iterable[Tensor]) -> None:
            for serial in serials.of(list(tensors)):
                self._writes.setdefault(serial, []).append(position)

        try:
            self.run(len(self.nodes) - 1, look, {}, wrote)
        except EagerFailure as failure:
            self.failure = failure

    def writes_to(self, node: fx.Node, before: int) -> list[fx.Node]:
        """The nodes before position ``before`` that write to the value of ``node``."""
        first = self.index[node]
        positions = {
            position
            for storage in self.storages.get(node, frozenset())
            for position in self._writes.get(storage, ())
            if first < position < before
        }
        return [self.nodes[position] for position in sorted(positions)]

    @property
    def outputs(self) -> list[fx.Node]:
        """The nodes that the graph returns, each once, tuples and dicts opened."""
        return list(dict.fromkeys(self.nodes[-1].all_input_nodes))

    # --- values ---

    def values(self, wanted: Sequence[NodeAt]) -> list[Any]:
        """Values at wanted moments. Tensors share storage as then, nobody else's if written later.

        Raises EagerFailure when the graph fails before it has them all.
        """
        moments = [self._clamped(moment) for moment in wanted]
        found = {moment: self._known(moment) for moment in moments}
        missing: dict[int, list[NodeAt]] = {}
        for moment, value in found.items():
            if value is NOT_RECORDED:
                missing.setdefault(moment[0], []).append(moment)
        if missing:
            held: Held = {}

            def hold(position: int, env: Env) -> None:
                for moment in missing.get(position, ()):
                    held[moment] = env[moment[1]]

            self.run(max(missing), hold, held)
            for moment, value in held.items():
                found[moment] = standing_alone(value)
                if isinstance(found[moment], Tensor):
                    self._in_use[moment] = weakref.ref(found[moment])
        return [found[moment] for moment in moments]

    def _clamped(self, moment: NodeAt) -> NodeAt:
        """The earliest moment with this value, to stop a run early; always one where it lives."""
        position, node = moment
        first = self.index[node] + 1
        if not self.writing:
            return first, node
        return max(first, min(position, self.last_use[node])), node

    def _known(self, moment: NodeAt) -> Any:
        """The value where no run is needed: an input surely unwritten, or a value still in use."""
        position, node = moment
        if node.op == "placeholder" and not (self.writing and self.writes_to(node, position)):
            return self.input_of[node]
        recorded = self._in_use.get(moment)
        value = recorded() if recorded is not None else None
        return NOT_RECORDED if value is None else value

    # --- running ---

    def run(self, stop: int, visit: Visit, held: Held, wrote: Wrote | None = None) -> None:
        """Run up to ``stop``; ``visit`` sees each position's values before it runs, and puts into
        ``held`` what is to stay as it is.

        ``wrote`` hears who wrote to which tensors. Raises EagerFailure.
        """
        env: Env = {}
        with self._surroundings(env):
            # cloned where the graph writes to them; aliasing among the clones is kept
            own = [node for node in self.placeholders if node.name in self._cloned]
            clones = clone_values([self.input_of[node] for node in own])
            values = self.input_of | dict(zip(own, clones, strict=True))
            for position, node in enumerate(self.nodes[:stop]):
                visit(position, env)
                writes = node in self.writing
                if writes:
                    self._protect(node, env, held)
                before = versions(node, self.writing[node], env) if wrote and writes else []
                env[node] = values[node] if node in values else self._execute(node, env)
                if wrote and writes:
                    wrote(position, written_tensors(node, before))
                for used in node.all_input_nodes:
                    if self.last_use[used] == position:
                        del env[used]
            visit(stop, env)

    def _execute(self, node: fx.Node, env: Env) -> Any:
        if node.op == "get_attr":
            value = operator.attrgetter(str(node.target))(self.graph_module)
            is_own = node.name in self._cloned and isinstance(value, Tensor)
            return clone_values([value])[0] if is_own else value
        args: Any = fx.map_arg(node.args, env.__getitem__)
        kwargs = fx.map_arg(node.kwargs, env.__getitem__)
        try:
            if node.op == "call_function":
                return node.target(*args, **kwargs)  # type: ignore[operator]
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)
            # a copy, since a call may change its buffers
            called = copy.deepcopy(self.graph_module.get_submodule(str(node.target)))
            return called(*args, **kwargs)
        except Exception as error:  # the graph is foreign code: its failure is an answer
            why = f"{type(error).__name__}: {message_of(error)}"
            raise EagerFailure(f"{node.format_node()} failed in eager: {why}") from error

    def _protect(self, node: fx.Node, env: Env, held: Held) -> None:
        """Before ``node`` writes: held values in its arguments' storages get one of their own."""
        touched = set(map(storage_key, tensors_in([env[target] for target in self.writing[node]])))
        endangered = {
            moment: value
            for moment, value in held.items()
            if any(storage_key(tensor) in touched for tensor in tensors_in(value))
        }
        held |= zip(endangered, clone_values([*endangered.values()]), strict=True)

    @contextmanager
    def _surroundings(self, env: Env) -> Iterator[None]:
        """Modes and random state as before the first node; all as it was when the block ends."""
        restoring = torch_internals.restoring_random_numbers(self.inputs)
        with restoring, self.around(), torch_internals.preserving_thread_state():
            for device, state in self._random_states:
                set_generator_state(device, state)
            torch.set_grad_enabled(self.grad)
            try:
                yield
            finally:
                leave_blocks(env)


def written_names(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> frozenset[str]:
    """Placeholders and attributes that the graph may write to, and those sharing their memory."""
    sources = [node for node in graph_module.graph.nodes if node.op in ("placeholder", "get_attr")]
    values = dict(zip(graph_module.graph.find_nodes(op="placeholder"), inputs, strict=True))
    values |= {node: graph_attribute(node) for node in sources if node not in values}
    memory = {node: set(map(storage_key, tensors_in(values[node]))) for node in sources}
    found = {sources[index] for index in written_sources(graph_module, sources)}
    touched = {key for node in found for key in memory[node]}
    return frozenset(node.name for node in sources if node in found or memory[node] & touched)


def standing_alone(value: Any) -> Any:
    """``value`` without the autograd history behind it, which keeps all tensors of a run alive.

    What exists only inside a level of vmap or grad stays as it is: no op takes it after the level.
    """
    has_history = isinstance(value, Tensor) and value.grad_fn is not None
    if has_history and not torch_internals.is_wrapped(value):
        return value.detach().requires_grad_()
    if type(value) in (list, tuple):
        return type(value)(map(standing_alone, value))
    return value


def runs_in_eager(
    graph_module: fx.GraphModule, inputs: Sequence[Any], around: ModeContext = nullcontext
) -> bool:
    """Whether the graph runs to its end on ``inputs``, which are only read."""
    return Recording(graph_module, inputs, around=around).failure is None
