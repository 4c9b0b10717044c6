"""A graph's inputs as they were before a call, and runs of the graph on copies of them.

Nothing of these runs reaches the user: the tensors that may be written are copies, the others are seen through aliases
without autograd history, and gradients are asked for by ``torch.autograd.grad``, never accumulated.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from minidbg import torch_internals
from minidbg.fx.copying import bytes_of, clone_values, copy_graph_module
from minidbg.fx.mutation import written_attributes
from minidbg.judge.arithmetic import are_close
from minidbg.judge.compare import Comparison, Difference, written_unseen
from minidbg.judge.harness import Change, left_behind, left_by_run, needs_gradient, unchanged
from minidbg.judge.randomness import Derandomized, draws_alone
from minidbg.source.subclasses import is_constructed
from minidbg.torch_internals.devices import generator_states, set_generator_state
from minidbg.torch_internals.tensors import has_plain_memory
from minidbg.words.run_spec import RunSpec
from minidbg.wrapper.chain import Link, compile_at_run_time
from minidbg.wrapper.rollback import memory_of, tensors_in
from minidbg.wrapper.verify_refusals import sharing_memory, too_large_in_float64

SMALL_BYTES = 64 << 20
"""Inputs that take no more are all copied, so that a backend that writes where it must not is found out."""


@dataclass(frozen=True, slots=True)
class Before:
    graph: fx.GraphModule
    """With tensors of its own, where it writes to any."""
    model: fx.GraphModule
    """The user's, whose tensors the compiled function writes to."""
    inputs: tuple[Any, ...]
    """Copies, or aliases of what no run may write to."""
    written: frozenset[int]
    """The inputs that the graph may write to, or that share memory with one."""
    copied: frozenset[int]
    generators: tuple[tuple[str, Tensor], ...]
    sums: tuple[tuple[int, int], ...] = ()
    """Of the inputs that are too large to copy and that nobody may write to, by index: the sum of their bits."""
    outputs_only: bool = False
    """Whether what runs do to their inputs is not compared."""

    def fresh(self, *, everything: bool = False) -> tuple[Any, ...]:
        """Inputs for one run; what it may write is its own. ``everything``: the run may write to what it should not."""
        chosen = self.copied if everything else self.written
        return with_copies(self.inputs, chosen)

    def set_generators(self) -> None:
        for device, state in self.generators:
            set_generator_state(device, state)

    def wants_backward(self) -> bool:
        values = [*tensors_in(self.inputs), *self.graph.parameters()]
        return torch.is_grad_enabled() and any(map(needs_gradient, values))

    def left(self, outputs: Any, args: Sequence[Any], gradients: dict[str, Any] | None) -> dict[str, Any]:
        return self.seen(left_behind(outputs, self.model, tuple(args), gradients or {}))

    def seen(self, left: dict[str, Any]) -> dict[str, Any]:
        """The part of what a run left behind that is compared: of a part of a graph the outputs."""
        return {**left, "inputs_after": {}, "gradients": {}} if self.outputs_only else left

    def spoilt_unseen(self, args: Sequence[Any]) -> Difference | None:
        """That an input has been written to which is not copied, and which eager leaves as it is."""
        for index, before in self.sums:
            if sum_of_bits(args[index]) != before:
                return written_unseen(index)
        return None

    def put_back(self, args: Sequence[Any]) -> None:
        for index in sorted(self.copied - self.written):
            value, copied = args[index], self.inputs[index]
            plain = isinstance(value, Tensor) and value.layout is torch.strided and not is_constructed(value)
            # what has another form now stays as it is
            if (
                plain
                and value.shape == copied.shape
                and not are_close(value.detach(), copied.detach(), 0.0, 0.0)
            ):
                with torch.no_grad(), torch_internals.same_versions([value]):
                    memory_of(value).copy_(memory_of(copied))

    def eager(
        self, change: Change = unchanged, seed: int | None = None, *, backward: bool, may_refuse: bool = False
    ) -> dict[str, Any]:
        """What one run of eager leaves behind: of the graph, of a changed one with changed inputs, or with another seed.

        Its gradients are None where ``may_refuse`` and their backward fails; else it raises what that raises.
        """
        if change is not unchanged and (why := too_large_in_float64(self.graph, self.inputs)):
            raise MemoryError(why)
        self.set_generators()
        if seed is not None:
            torch.manual_seed(seed)
        graph = own_attributes(self.graph if change is unchanged else copy_graph_module(self.graph))
        if change is not unchanged:  # its forward is replaced, which a lazy one would not heed
            graph = change(fx.GraphModule(graph, graph.graph))
        inputs = tuple(change(self.fresh()))
        # a lazy forward would print what is raised
        function = torch_internals.without_lazy_recompile(graph.forward)
        left = left_by_run(function, graph, inputs, backward=backward, may_refuse=may_refuse)
        return self.seen(left)


def compared(inside: Before, spec: RunSpec, actual: dict[str, Any], expected: dict[str, Any]) -> Comparison:
    both = bool(actual["gradients"] and expected["gradients"])
    if not both:
        actual, expected = ({**run, "gradients": {}} for run in (actual, expected))
    return Comparison(actual, expected, partial(inside.eager, backward=both), spec)


def before(graph: fx.GraphModule, args: Sequence[Any], mutated: frozenset[int]) -> Before:
    written = frozenset(sharing_memory(args, mutated))
    copied = written
    if bytes_of(tensors_in(args)) <= SMALL_BYTES:
        copied = frozenset(range(len(args)))
    with torch.inference_mode(False):
        inputs = with_copies(args, copied)
    large = [
        (index, value) for index, value in enumerate(args) if index not in copied and has_plain_memory(value)
    ]
    sums = tuple((index, sum_of_bits(value)) for index, value in large)
    return Before(own_attributes(graph), graph, inputs, written, copied, generator_states(args), sums)


def sum_of_bits(value: Tensor) -> int:
    """A number that changes where an element does, and takes a moment to read."""
    memory = memory_of(value)
    with torch.no_grad():
        numbers = torch.view_as_real(memory) if memory.is_complex() else memory
        if numbers.itemsize == 8:  # in a sum of 64 bits the sign of an even number of elements would not show
            numbers = torch.stack([numbers.view(torch.int64) >> 32, numbers.view(torch.int64) & 0xFFFFFFFF])
        whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(numbers.itemsize, torch.int64)
        return int(numbers.view(whole).sum(dtype=torch.int64))


def with_copies(values: Sequence[Any], chosen: frozenset[int]) -> tuple[Any, ...]:
    """``values``: copies of the chosen ones, which alias among themselves as before; aliases of the others."""
    indices = sorted(chosen)
    with torch.inference_mode(False):
        clones = dict(zip(indices, clone_values([values[index] for index in indices]), strict=True))
        return tuple(clones[index] if index in clones else alias(value) for index, value in enumerate(values))


def alias(value: Any) -> Any:
    """The same memory outside the user's autograd graph; hooks stay behind."""
    if not isinstance(value, Tensor) or value.is_inference():
        return value
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(value.detach(), requires_grad=value.requires_grad)
    return value.detach().requires_grad_(value.requires_grad)


def own_attributes(graph: fx.GraphModule) -> fx.GraphModule:
    """``graph``, or a copy whose tensors a run may write to without being seen."""
    return copy.deepcopy(graph) if written_attributes(graph) else graph


def run_compiled_anew(
    inside: Before,
    link: Link,
    *,
    backward: bool,
    goes_on: Callable[[dict[str, Any]], bool] = lambda left: True,
) -> dict[str, Any]:
    """What the graph leaves behind when ``link`` compiles it here and now. Raises what the backend raises.

    No gradients unless ``goes_on`` is true of what the forward leaves behind: their code need not be compiled.
    """
    graph = own_attributes(inside.graph)
    compiled_fn = compile_at_run_time(link, graph, inside.fresh(everything=True))
    inside.set_generators()
    inputs = inside.fresh(everything=True)
    with torch_internals.counters_put_back():  # the backward is compiled when it runs
        left = left_by_run(compiled_fn, graph, inputs, backward=backward, goes_on=goes_on, may_refuse=True)
    return inside.seen(left)


def draws_by(link: Link, inside: Before, fed: Derandomized) -> Derandomized | None:
    """``fed`` with the numbers that ``link`` draws when it compiles just the calls that draw; None where it does not.

    Raises what the backend raises.
    """
    found = draws_alone(fed)
    if found is None:
        return None
    graph, inputs = found
    with torch_internals.thread_state_kept(), torch.no_grad():
        compiled_fn = compile_at_run_time(link, graph, inputs)
        inside.set_generators()
        results = clone_values(compiled_fn(*inputs))
    return fed.with_results(results)
