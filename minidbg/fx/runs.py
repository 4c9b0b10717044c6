"""Eager runs of one graph that never write to the caller's tensors and leave no mode behind."""

from __future__ import annotations

import copy
import itertools
import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
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
    graph_attribute,
    keeps_state,
    mode_of,
    op_name,
    tensors_in,
)
from minidbg.fx.mutation import written_sources
from minidbg.torch_internals.devices import generator_states, set_generator_state


class EagerFailure(Exception):
    """The graph, or the part of it that was needed, fails in eager; ``node`` is where."""

    def __init__(self, node: fx.Node, error: Exception) -> None:
        self.node = node
        self.error = error
        super().__init__(f"{node.format_node()} failed in eager: {type(error).__name__}: {message_of(error)}")


@dataclass(slots=True)
class ValueFacts:
    """What one whole run showed of each node's value, and of the writes to it."""

    facts: dict[fx.Node, Fact] = field(default_factory=dict)
    storages: dict[fx.Node, frozenset[int]] = field(default_factory=dict)
    """Serial numbers of the storages behind a value; kept only for graphs that may write."""
    writes: dict[int, list[int]] = field(default_factory=dict)
    """Storage serial to the positions that write to it."""
    failure: EagerFailure | None = None


class StorageSerials:
    """Numbers for storages that stay different when a storage dies and its address is used again."""

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[int, Any]] = {}
        self._next = 0

    def serials(self, value: Any) -> frozenset[int]:
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
    except (RuntimeError, NotImplementedError):  # as in storage_key: the tensor stands for its storage
        return weakref.ref(tensor)
    return lambda: None if reference.expired() else reference


def versions(node: fx.Node, targets: Iterable[fx.Node], env: Env) -> list[tuple[Tensor, Any]]:
    """Each tensor that may be written with what tells whether it was: its version, or a copy of small statistics."""
    tensors = [tensor for target in targets for tensor in tensors_in(env[target])]
    if op_name(node) in STATISTICS:
        return [(tensor, tensor.clone()) for tensor in tensors if tensor.dim() <= 1]
    # a Triton kernel moves no version: what it may write counts as written
    unknown = torch_internals.is_kernel_launch(node)
    return [(tensor, None if unknown or tensor.is_inference() else tensor._version) for tensor in tensors]


def written_tensors(node: fx.Node, before: Iterable[tuple[Tensor, Any]]) -> Iterator[Tensor]:
    for tensor, was in before:
        if isinstance(was, Tensor):
            if not torch.equal(was, tensor):
                yield tensor
        elif was is None or tensor._version != was:
            yield tensor


NodeAt: TypeAlias = tuple[int, fx.Node]
"""A position in the graph and the node whose value is wanted as it is just before that position runs."""

Env: TypeAlias = dict[fx.Node, Any]
"""The values of nodes that are alive."""

Visit: TypeAlias = Callable[[int, Env], None]
Wrote: TypeAlias = Callable[[int, Iterable[Tensor]], None]

ModeContext: TypeAlias = Callable[[], AbstractContextManager[Any]]
"""Makes the block in which a graph runs."""


class Runs:
    """Runs of ``graph_module`` on ``inputs``, each with the same random values.

    ``writing`` are the nodes that may write to values that they did not make, with the nodes of
    those values. The random states of the moment and ``grad`` hold before the first node, inside
    the block that ``around`` makes.
    """

    def __init__(
        self,
        graph_module: fx.GraphModule,
        inputs: Sequence[Any],
        writing: Mapping[fx.Node, Sequence[fx.Node]],
        around: ModeContext,
        *,
        grad: bool,
    ) -> None:
        self.graph_module = graph_module
        self.inputs = inputs
        self.writing = writing
        self.nodes: list[fx.Node] = list(graph_module.graph.nodes)
        self.placeholders = [node for node in self.nodes if node.op == "placeholder"]
        self.index = {node: position for position, node in enumerate(self.nodes)}
        self.last_use = {
            node: max((self.index[user] for user in node.users), default=self.index[node])
            for node in self.nodes
        }
        self.around = around
        self.grad = grad
        self._random_states = generator_states(inputs)
        self._dying: dict[int, list[fx.Node]] = {}
        """The nodes that a position uses last."""
        for node, position in self.last_use.items():
            if position > self.index[node]:
                self._dying.setdefault(position, []).append(node)
        self._cloned = written_names(graph_module, self.inputs) if writing else frozenset()
        """Names of placeholders and attributes that the graph may write to."""

    # --- running ---

    def run(self, stop: int, visit: Visit, held: dict[NodeAt, Any], wrote: Wrote | None = None) -> None:
        """Run up to ``stop``; ``visit`` sees each position's values before it runs, and puts into
        ``held`` what is to stay as it is.

        ``wrote`` hears who wrote to which tensors. Raises EagerFailure.
        """
        env: Env = {}
        with self._surroundings(env):
            modules: dict[str, torch.nn.Module] = {}
            arguments = iter(self._fresh_inputs())
            for position, node in enumerate(self.nodes[:stop]):
                visit(position, env)
                if node in self.writing:
                    self._protect(node, env, held)
                before = versions(node, self.writing[node], env) if wrote and node in self.writing else []
                env[node] = next(arguments) if node.op == "placeholder" else self._execute(node, env, modules)
                if wrote and node in self.writing:
                    wrote(position, written_tensors(node, before))
                for dead in self._dying.get(position, ()):
                    env.pop(dead, None)
            visit(stop, env)

    def _execute(self, node: fx.Node, env: Env, modules: dict[str, torch.nn.Module]) -> Any:
        if node.op == "get_attr":
            return self._attribute(node)
        args: Any = fx.map_arg(node.args, env.__getitem__)
        kwargs = fx.map_arg(node.kwargs, env.__getitem__)
        try:
            if node.op == "call_function":
                return node.target(*args, **kwargs)  # type: ignore[operator]
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)
            return self._module(node, modules)(*args, **kwargs)
        except Exception as error:  # the graph is foreign code: its failure is an answer
            raise EagerFailure(node, error) from error

    def _attribute(self, node: fx.Node) -> Any:
        value = operator.attrgetter(str(node.target))(self.graph_module)
        return clone_values([value])[0] if node.name in self._cloned and isinstance(value, Tensor) else value

    def _module(self, node: fx.Node, modules: dict[str, torch.nn.Module]) -> torch.nn.Module:
        """The submodule that ``node`` calls; a copy for this run when its buffers may change."""
        name = str(node.target)
        if name not in modules:
            module = self.graph_module.get_submodule(name)
            modules[name] = copy.deepcopy(module) if keeps_state(module) else module
        return modules[name]

    def _fresh_inputs(self) -> list[Any]:
        """The inputs, those that the graph writes to as clones; aliasing among the clones is kept."""
        is_cloned = [node.name in self._cloned for node in self.placeholders]
        clones = iter(clone_values(list(itertools.compress(self.inputs, is_cloned))))
        return [
            next(clones) if chosen else value for chosen, value in zip(is_cloned, self.inputs, strict=True)
        ]

    def _protect(self, node: fx.Node, env: Env, held: dict[NodeAt, Any]) -> None:
        """Before ``node`` writes: held values that share a storage with its arguments move to one of their own."""
        touched = {
            storage_key(tensor) for argument in self.writing[node] for tensor in tensors_in(env[argument])
        }
        endangered = {
            moment: value
            for moment, value in held.items()
            if any(storage_key(tensor) in touched for tensor in tensors_in(value))
        }
        held |= zip(endangered, clone_values([*endangered.values()]), strict=True)

    @contextmanager
    def _surroundings(self, env: Env) -> Iterator[None]:
        """Modes and random state as they are before the first node; all as it was when the block ends."""
        outer_grad, outer_random = torch.is_grad_enabled(), generator_states(self.inputs)
        for device, state in self._random_states:
            set_generator_state(device, state)
        try:
            with self.around(), torch_internals.preserving_thread_state():
                torch.set_grad_enabled(self.grad)
                try:
                    yield
                finally:
                    self._leave_blocks(env)
        finally:
            torch.set_grad_enabled(outer_grad)
            for device, state in outer_random:
                set_generator_state(device, state)

    def _leave_blocks(self, env: Env) -> None:
        """Run the exits of the blocks that are still open, innermost first."""
        for node in sorted(env, key=self.index.__getitem__, reverse=True):
            exits = (user for user in node.users if mode_of(user) is Mode.EXIT)
            if mode_of(node) is Mode.ENTER and (leave := next(exits, None)) is not None:
                self._execute(leave, env, {})


def written_names(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> frozenset[str]:
    """The placeholders and attributes that the graph may write to, and those that share memory with one."""
    sources = [node for node in graph_module.graph.nodes if node.op in ("placeholder", "get_attr")]
    values = dict(zip(graph_module.graph.find_nodes(op="placeholder"), inputs, strict=True))
    memory = {
        node: set(map(storage_key, tensors_in(values[node] if node in values else graph_attribute(node))))
        for node in sources
    }
    found = {sources[index] for index in written_sources(graph_module, sources)}
    touched = {key for node in found for key in memory[node]}
    return frozenset(node.name for node in sources if node in found or memory[node] & touched)


def standing_alone(value: Any) -> Any:
    """``value`` without the autograd history that led to it; the history keeps a whole run's tensors alive.

    What exists only inside a level of vmap or grad stays as it is: no op takes it once the level is closed.
    """
    if isinstance(value, Tensor) and value.grad_fn is not None and not torch_internals.is_wrapped(value):
        return value.detach().requires_grad_()
    if type(value) in (list, tuple):
        return type(value)(map(standing_alone, value))
    return value
