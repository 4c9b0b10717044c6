"""Values inside a graph, found by running it eagerly: what any node may become an input with.

Only what is asked for is kept; the rest is computed again from the start or from the last cut. Values are as they were
at the moment of use, also where the graph writes to its tensors. The caller's inputs are never written to.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx

from minidbg.graphs.cloning import clone_values, storage_key
from minidbg.graphs.effects import Mode, is_call, keeps_state, mode_of
from minidbg.graphs.facts import Fact, fact_of, tensors_in
from minidbg.graphs.mutation import written_arguments
from minidbg.graphs.survey import EagerFailure, StorageSerials, Survey, versions, written

Moment: TypeAlias = tuple[int, fx.Node]
"""A position in the graph and the node whose value is wanted as it is just before that position runs."""


Around: TypeAlias = Callable[[], AbstractContextManager[Any]]
"""Makes the block in which a graph runs."""

UNKNOWN = object()
"""Stands for a value that has to be computed."""


class _InputWritten(Exception):
    """The graph is about to write to inputs that were not cloned; ``names`` are theirs."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names


@dataclass(slots=True)
class _Cut:
    """All that is needed to run on from ``position``."""

    position: int
    env: dict[fx.Node, Any]
    random_state: Tensor
    grad: bool


class Recording:
    """The values of ``graph_module`` run on ``inputs``, in the grad mode of the moment this is made.

    ``inputs`` are one for each placeholder, and are only read. Random ops give the same values each time.
    ``around`` gives the modes in which the graph runs: autocast, grad mode; by default those of the moment.
    ``parent`` is a recording of a graph that this one was cut out of, so that less has to be found out again;
    ``same_values`` says that each node computes what it did there.
    """

    def __init__(
        self,
        graph_module: fx.GraphModule,
        inputs: Sequence[Any],
        *,
        parent: Recording | None = None,
        same_values: bool = False,
        around: Around = nullcontext,
    ) -> None:
        self.graph_module = graph_module
        self.inputs = tuple(inputs)
        self.nodes: list[fx.Node] = list(graph_module.graph.nodes)
        self.index = {node: position for position, node in enumerate(self.nodes)}
        self.placeholders = [node for node in self.nodes if node.op == "placeholder"]
        self.input_of = dict(zip(self.placeholders, self.inputs, strict=True))
        harmless = parent.names - {node.name for node in parent.writing} if parent else frozenset()
        self.writing: dict[fx.Node, list[fx.Node]] = {
            node: targets
            for node in self.nodes
            if is_call(node) and node.name not in harmless and (targets := self._targets_of(node))
        }
        """Nodes that may write to values that they did not make, with the nodes of those values."""
        self._around: Around = parent._around if parent else around
        with self._around():
            self.grad: bool = parent.grad if parent else torch.is_grad_enabled()
        """Grad mode before the first node."""
        self._random_state = torch.get_rng_state()
        self.mode_changes = frozenset(node for node in self.nodes if mode_of(node) is not Mode.NONE)
        self._last_use = {
            node: max((self.index[user] for user in node.users), default=self.index[node])
            for node in self.nodes
        }
        self._dying = self._dying_at()
        self._cut: _Cut | None = None
        self._in_use: dict[Moment, weakref.ref[Tensor]] = {}
        self._cloned = self._written_directly()
        self._survey_done: Survey | None = None
        if parent is not None and same_values:
            self._survey_done = self._inherited(parent)

    # --- what is known about the nodes ---

    @property
    def facts(self) -> dict[fx.Node, Fact]:
        """What the value of each node is; nodes after an eager failure are missing."""
        return self._survey.facts

    @property
    def failure(self) -> EagerFailure | None:
        """Where the graph fails in eager, if it does."""
        return self._survey.failure

    @property
    def names(self) -> frozenset[str]:
        """The names of all nodes."""
        return frozenset(node.name for node in self.nodes)

    def _inherited(self, parent: Recording) -> Survey | None:
        """What the same nodes of ``parent`` showed; None when one is not known there."""
        at = {node.name: position for position, node in enumerate(self.nodes)}
        known = {node.name: node for node in parent.facts}
        if any(
            node.name not in known for node in self.nodes[:-1] if node.op != "placeholder" or self.writing
        ):
            return None
        survey = Survey()
        for node in self.nodes[:-1]:
            is_input = node.op == "placeholder"
            survey.facts[node] = fact_of(self.input_of[node]) if is_input else parent.facts[known[node.name]]
            if self.writing:
                survey.storages[node] = parent.storages[known[node.name]]
        for storage, positions in parent.writes.items():
            here = [
                at[parent.nodes[position].name] for position in positions if parent.nodes[position].name in at
            ]
            if here:
                survey.writes[storage] = here
        return survey

    @property
    def storages(self) -> dict[fx.Node, frozenset[int]]:
        """Serial numbers of the storages behind each value; empty when nothing is ever written."""
        return self._survey.storages

    @property
    def writes(self) -> dict[int, list[int]]:
        """Serial number of a storage to the positions that write to it."""
        return self._survey.writes

    @property
    def has_symbols(self) -> bool:
        """Whether a symbolic int is among the inputs."""
        return any(isinstance(node.meta.get("example_value"), torch.SymInt) for node in self.placeholders)

    def writes_to(self, node: fx.Node, before: int) -> list[fx.Node]:
        """The nodes before position ``before`` that write to the value of ``node``."""
        survey = self._survey
        if not survey.writes:
            return []
        first = self.index[node]
        positions = {
            position
            for storage in survey.storages.get(node, frozenset())
            for position in survey.writes.get(storage, ())
            if first < position < before
        }
        return [self.nodes[position] for position in sorted(positions)]

    @property
    def outputs(self) -> list[fx.Node]:
        """The nodes that the graph returns, each once, tuples and dicts opened."""
        return list(dict.fromkeys(self.nodes[-1].all_input_nodes))

    # --- values ---

    def values(self, wanted: Sequence[Moment]) -> list[Any]:
        """The value for each moment wanted. Tensors share storage as they did then, and nobody else's if written later.

        Raises EagerFailure when the graph fails before it has them all.
        """
        moments = [self._clamped(moment) for moment in wanted]
        found = {moment: self._known(moment) for moment in moments}
        missing = [moment for moment, value in found.items() if value is UNKNOWN]
        if missing:
            found |= self._replay(missing)
        return [found[moment] for moment in moments]

    def _clamped(self, moment: Moment) -> Moment:
        """The earliest moment with the same value, so that a run can stop early; always one at which it is alive."""
        position, node = moment
        first = self.index[node] + 1
        if not self.writing:
            return first, node
        return max(first, min(position, self._last_use[node])), node

    def _known(self, moment: Moment) -> Any:
        """The value where no run is needed: an input that nothing can have written to, or a value still in use."""
        position, node = moment
        if node.op == "placeholder" and not (self.writing and self.writes_to(node, position)):
            return self.input_of[node]
        recorded = self._in_use.get(moment)
        value = recorded() if recorded is not None else None
        return UNKNOWN if value is None else value

    def _replay(self, wanted: Sequence[Moment]) -> dict[Moment, Any]:
        by_position: dict[int, list[fx.Node]] = {}
        for position, node in wanted:
            by_position.setdefault(position, []).append(node)
        stop = max(by_position)
        held: dict[Moment, Any] = {}

        def hold(position: int, env: dict[fx.Node, Any]) -> None:
            for node in by_position.get(position, ()):
                held[(position, node)] = env[node]

        self._run_with_clones(stop, hold, held, self._take_cut(wanted))
        found = {moment: _standing_alone(value) for moment, value in held.items()}
        self._in_use |= {
            moment: weakref.ref(value) for moment, value in found.items() if isinstance(value, Tensor)
        }
        return found

    def _take_cut(self, wanted: Sequence[Moment]) -> _Cut | None:
        """The last cut, if all that is wanted comes after it. It is given away: what is dead after it need not be kept."""
        cut, self._cut = self._cut, None
        if cut is None:
            return None
        reaches = all(
            position >= cut.position and self._alive_at(node, cut.position) for position, node in wanted
        )
        return cut if reaches else None

    def _alive_at(self, node: fx.Node, position: int) -> bool:
        return self.index[node] >= position or self._last_use[node] >= position

    # --- running ---

    @property
    def _survey(self) -> Survey:
        if self._survey_done is None:
            self._survey_done = self._take_survey()
        return self._survey_done

    def _take_survey(self) -> Survey:
        survey = Survey()
        storages = StorageSerials()

        def look(position: int, env: dict[fx.Node, Any]) -> None:
            if position == 0:
                return
            node = self.nodes[position - 1]
            value = env[node]
            survey.facts[node] = fact_of(value)
            if self.writing:
                survey.storages[node] = storages.serials(value)

        def wrote(position: int, tensors: Iterable[Tensor]) -> None:
            for serial in storages.serials(list(tensors)):
                survey.writes.setdefault(serial, []).append(position)

        try:
            self._run_with_clones(len(self.nodes) - 1, look, {}, None, wrote)
        except EagerFailure as failure:
            survey.failure = failure
        return survey

    def _run_with_clones(
        self,
        stop: int,
        visit: Callable[[int, dict[fx.Node, Any]], None],
        held: dict[Moment, Any],
        cut: _Cut | None,
        wrote: Callable[[int, Iterable[Tensor]], None] | None = None,
    ) -> None:
        """Run up to ``stop``; begin again with more inputs cloned when the graph turns out to write to one."""
        for _ in range(3):
            try:
                return self._run(stop, visit, held, cut, wrote)
            except _InputWritten as found:
                held.clear()
                self._cloned |= found.names
        self._cloned |= {node.name for node in self.nodes if node.op in ("placeholder", "get_attr")}
        return self._run(stop, visit, held, cut, wrote)

    def _run(
        self,
        stop: int,
        visit: Callable[[int, dict[fx.Node, Any]], None],
        held: dict[Moment, Any],
        cut: _Cut | None,
        wrote: Callable[[int, Iterable[Tensor]], None] | None,
    ) -> None:
        start, env = (cut.position, cut.env) if cut else (0, {})
        with self._surroundings(cut, env):
            modules: dict[str, torch.nn.Module] = {}
            arguments = iter(self._fresh_inputs())
            own = self._uncloned_storages()
            for position in range(start, stop):
                node = self.nodes[position]
                visit(position, env)
                if node in self.writing:
                    self._protect(node, env, held, own)
                before = versions(node, self.writing[node], env) if wrote and node in self.writing else []
                env[node] = next(arguments) if node.op == "placeholder" else self._execute(node, env, modules)
                if wrote and node in self.writing:
                    wrote(position, written(node, before))
                for dead in self._dying.get(position, ()):
                    if dead is not node:
                        env.pop(dead, None)
            visit(stop, env)
            self._remember_cut(stop, env)

    def _execute(self, node: fx.Node, env: dict[fx.Node, Any], modules: dict[str, torch.nn.Module]) -> Any:
        if node.op == "get_attr":
            return self._attribute(node)
        args = fx.map_arg(node.args, env.__getitem__)
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
        value: Any = self.graph_module
        for part in str(node.target).split("."):
            value = getattr(value, part)
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
        chosen = [position for position, node in enumerate(self.placeholders) if node.name in self._cloned]
        values = list(self.inputs)
        for position, clone in zip(
            chosen, clone_values([values[position] for position in chosen]), strict=True
        ):
            values[position] = clone
        return values

    def _targets_of(self, node: fx.Node) -> list[fx.Node]:
        return list(dict.fromkeys(written_arguments(self.graph_module, node)))

    def _written_directly(self) -> frozenset[str]:
        """Names of placeholders and attributes that are an argument of a node that may write."""
        return frozenset(
            argument.name
            for arguments in self.writing.values()
            for argument in arguments
            if argument.op in ("placeholder", "get_attr")
        )

    def _uncloned_storages(self) -> dict[int, set[str]]:
        """Storages of the caller's to the names they go by in the graph; empty when nothing is ever written."""
        own: dict[int, set[str]] = {}
        if self.writing:
            for node, value in zip(self.placeholders, self.inputs, strict=True):
                if node.name not in self._cloned:
                    for tensor in tensors_in(value):
                        own.setdefault(storage_key(tensor), set()).add(node.name)
            for node in self.nodes:
                if node.op == "get_attr" and node.name not in self._cloned:
                    for tensor in tensors_in(self._attribute(node)):
                        own.setdefault(storage_key(tensor), set()).add(node.name)
        return own

    def _protect(
        self, node: fx.Node, env: dict[fx.Node, Any], held: dict[Moment, Any], own: dict[int, set[str]]
    ) -> None:
        """Before ``node`` writes: held values that share a storage with its arguments move to one of their own."""
        touched = {
            storage_key(tensor) for argument in self.writing[node] for tensor in tensors_in(env[argument])
        }
        names = frozenset(name for key in touched for name in own.get(key, ()))
        if names:
            raise _InputWritten(names)
        endangered = [
            moment
            for moment, value in held.items()
            if any(storage_key(tensor) in touched for tensor in tensors_in(value))
        ]
        for moment, clone in zip(
            endangered, clone_values([held[moment] for moment in endangered]), strict=True
        ):
            held[moment] = clone

    def _remember_cut(self, position: int, env: dict[fx.Node, Any]) -> None:
        """Keep what is alive here, unless a later run could write to it."""
        if self.writing or position >= len(self.nodes) - 1:
            return
        alive = {
            node: _standing_alone(value) for node, value in env.items() if self._alive_at(node, position)
        }
        self._cut = _Cut(position, alive, torch.get_rng_state(), torch.is_grad_enabled())

    @contextmanager
    def _surroundings(self, cut: _Cut | None, env: dict[fx.Node, Any]) -> Iterator[None]:
        """Modes and random state as they are where the run begins; all as it was when the block ends."""
        outer_grad, outer_random = torch.is_grad_enabled(), torch.get_rng_state()
        torch.set_rng_state(cut.random_state if cut else self._random_state)
        try:
            with self._around():
                torch.set_grad_enabled(cut.grad if cut else self.grad)
                try:
                    self._enter_blocks(cut, env)
                    yield
                finally:
                    self._leave_blocks(env)
        finally:
            torch.set_grad_enabled(outer_grad)
            torch.set_rng_state(outer_random)

    def _enter_blocks(self, cut: _Cut | None, env: dict[fx.Node, Any]) -> None:
        for node in list(env) if cut else ():
            if mode_of(node) is Mode.ENTER:
                env[node] = self._execute(node, env, {})

    def _leave_blocks(self, env: dict[fx.Node, Any]) -> None:
        """Run the exits of the blocks that are still open, innermost first."""
        for node in sorted(env, key=self.index.__getitem__, reverse=True):
            if mode_of(node) is Mode.ENTER:
                for user in node.users:
                    if mode_of(user) is Mode.EXIT:
                        self._execute(user, env, {})
                        break

    def _dying_at(self) -> dict[int, list[fx.Node]]:
        dying: dict[int, list[fx.Node]] = {}
        for node, position in self._last_use.items():
            if position > self.index[node]:
                dying.setdefault(position, []).append(node)
        return dying


def _standing_alone(value: Any) -> Any:
    """``value`` without the autograd history that led to it; the history keeps a whole run's tensors alive."""
    if isinstance(value, Tensor) and value.grad_fn is not None:
        return value.detach().requires_grad_()
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(map(_standing_alone, value))
    return value


def runs_in_eager(graph_module: fx.GraphModule, inputs: Sequence[Any], around: Around = nullcontext) -> bool:
    """Whether the graph runs to its end on ``inputs``, which are only read."""
    return Recording(graph_module, inputs, around=around).failure is None
