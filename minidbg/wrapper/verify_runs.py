"""A graph's inputs as before a call, runs of the graph on copies of them, why there may be none;
and one run that returns each value, which shows the first that a backend gets wrong.

Nothing of these runs reaches the user: tensors that may be written are copies, others aliases
without autograd history, and gradients are asked for by ``torch.autograd.grad``, never accumulated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psutil
import torch
from torch import Tensor, fx

from minidbg import torch_internals
from minidbg.codegen.size import call_nodes
from minidbg.codegen.subclasses import is_constructed
from minidbg.core.foreign import fence
from minidbg.core.run_spec import RunSpec
from minidbg.core.settings import Settings
from minidbg.fx import copying
from minidbg.fx.copying import bytes_of, clone_values, copy_graph_module, returning, storage_key
from minidbg.fx.effects import is_call
from minidbg.fx.mutation import own_attributes, storages_of, written_arguments
from minidbg.fx.randomness import Derandomized, draws_alone
from minidbg.fx.ranks import talks_to_others
from minidbg.judge.compare import comparison_of
from minidbg.judge.differences import are_close
from minidbg.judge.run import Change, change_of_eager, collect_run, needs_gradient, unchanged
from minidbg.torch_internals import devices
from minidbg.torch_internals.devices import generator_states, set_generator_state
from minidbg.torch_internals.tensors import has_plain_memory
from minidbg.wrapper.chain import Link, compile_at_run_time
from minidbg.wrapper.rollback import capturing_device_graph, memory_of, tensors_among

RUN_MEMORY_SHARE = 0.8
"""Of what is free, the part that a verification may be expected to take."""
PRIME = 4093  # a prime: what moves by rows of a usual length is in another column
SMALL_BYTES = 64 << 20
"""Inputs that take no more are all copied, to find out a backend that writes where it must not."""


@dataclass(frozen=True, slots=True)
class CallSnapshot:
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
    """Of inputs too large to copy that nobody may write to, by index: the sum of their bits."""
    golden: str = ""
    """Where eager runs, if not where the inputs are: ``cpu``."""

    def fresh(self, *, everything: bool = False) -> tuple[Any, ...]:
        """Inputs for one run; what it may write is its own.
        ``everything``: the run may write to what it should not."""
        chosen = self.copied if everything else self.written
        return with_copies(self.inputs, chosen)

    def set_generators(self) -> None:
        for device, state in self.generators:
            set_generator_state(device, state)

    def wants_backward(self) -> bool:
        values = [*tensors_among(self.inputs), *self.graph.parameters()]
        return torch.is_grad_enabled() and any(map(needs_gradient, values))

    def put_back(self, args: Sequence[Any]) -> None:
        for index in sorted(self.copied):
            value, copied = args[index], self.inputs[index]
            plain = isinstance(value, Tensor) and value.layout is torch.strided
            # what has another form now stays as it is
            if (
                plain
                and not is_constructed(value)
                and value.shape == copied.shape
                and not are_close(value.detach(), copied.detach(), 0.0, 0.0)
            ):
                with torch.no_grad(), torch_internals.same_versions([value]):
                    memory_of(value).copy_(memory_of(copied))

    def changed_unseen(self, args: Sequence[Any]) -> Iterator[int]:
        """The inputs that eager leaves as they are and the call has not, where no leaf shows it;
        and those in whose memory the call has written beside what eager may write to."""
        yield from (index for index, bits in self.sums if sum_of_bits(args[index]) != bits)
        plain = [i for i in self.copied if has_plain_memory(args[i])]
        for key, index in {storage_key(args[i]): i for i in plain}.items():  # each memory once
            value = args[index]
            whole, before = map(copying.whole_memory, (value, self.inputs[index]))
            is_part = len(whole) == len(before) > value.numel() * value.itemsize
            if is_part and not torch.equal(whole, before):
                beside = whole != before
                for i in plain:  # each of which is a leaf
                    if storage_key(args[i]) == key:
                        copying.bytes_in(beside, args[i]).fill_(False)
                if beside.any():
                    yield index

    def changed_since(self, values: Sequence[Any]) -> list[tuple[Any, Any]]:
        """The inputs, as they are now, that were written to; each with its copy if it is small."""
        plain = [index for index in self.copied if has_plain_memory(values[index])]
        sums = (*self.sums, *((index, sum_of_bits(self.inputs[index])) for index in plain))
        changed = [index for index, bits in sums if sum_of_bits(values[index]) != bits]
        return [(values[i], self.inputs[i] if i in self.copied else None) for i in changed]

    def eager(
        self, change: Change = unchanged, seed: int | None = None, *, backward: int, may_refuse: bool = False
    ) -> dict[str, Any]:
        """What a run of eager leaves: of the graph, one changed with its inputs, or another seed.

        Gradients are None where ``may_refuse`` and their backward fails; else that error is raised.
        """
        change = change_of_eager(self.golden, change)
        if change is not unchanged:
            needed = 2 * (bytes_of(tensors_among(self.inputs)) + bytes_of_a_run(self.graph))
            if why := lack_of_memory(needed, self.inputs):
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
        return collect_run(function, graph, inputs, backward=backward, may_refuse=may_refuse)


def snapshot_of(
    graph: fx.GraphModule, args: Sequence[Any], mutated: frozenset[int], golden: str
) -> CallSnapshot:
    written = frozenset(indices_sharing_memory(args, mutated))
    is_small = bytes_of(tensors_among(args)) <= SMALL_BYTES
    copied = frozenset(range(len(args))) if is_small else written
    with torch.inference_mode(False):
        inputs = with_copies(args, copied)
    large = {index: value for index, value in enumerate(args) if index not in copied}
    sums = tuple((index, sum_of_bits(large[index])) for index in large if has_plain_memory(large[index]))
    graph_for_runs, states = own_attributes(graph), generator_states(args)
    return CallSnapshot(graph_for_runs, graph, inputs, written, copied, states, sums, golden)


def sum_of_bits(value: Tensor) -> int:
    """A number that changes where an element does, or its place, and takes a moment to read."""
    memory = memory_of(value)
    with torch.no_grad():
        numbers = torch.view_as_real(memory) if memory.is_complex() else memory
        if numbers.itemsize == 8:  # in a 64-bit sum the sign of an even number of elements is lost
            wide = numbers.view(torch.int64)
            numbers = torch.stack([wide >> 32, wide & 0xFFFFFFFF])
        whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(numbers.itemsize, torch.int64)
        flat = numbers.view(whole).reshape(-1)
        rows = flat[: len(flat) // PRIME * PRIME].view(-1, PRIME).sum(0, dtype=torch.int64)
        rest = flat[len(flat) // PRIME * PRIME :]
        rows[: len(rest)] += rest
        return int((rows * torch.arange(1, PRIME + 1, device=rows.device)).sum())


def bits_of(inputs: Sequence[Any], outputs: Any) -> dict[str, int]:
    """What backward leaves alone, by label, as sums of bits; nothing where that is much."""
    groups = ("input {} after the call", inputs), ("output {}", tensors_among([outputs]))
    values = {text.format(i): x for text, group in groups for i, x in enumerate(group)}
    plain = {label: value for label, value in values.items() if has_plain_memory(value)}
    is_small = bytes_of(plain.values()) <= SMALL_BYTES
    return {label: sum_of_bits(value) for label, value in plain.items() if is_small}


def with_copies(values: Sequence[Any], chosen: frozenset[int]) -> tuple[Any, ...]:
    """``values``: copies of the chosen, which alias each other as before; aliases of the others."""
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


def run_compiled_anew(inside: CallSnapshot, link: Link, *, backward: bool) -> dict[str, Any]:
    """What the graph leaves when ``link`` compiles it here and now. Raises what the backend raises."""
    graph = own_attributes(inside.graph)
    compiled_fn = compile_at_run_time(link, graph, inside.fresh(everything=True))
    inside.set_generators()
    inputs = inside.fresh(everything=True)
    with torch_internals.restoring_counters():  # the backward is compiled when it runs
        left = collect_run(compiled_fn, graph, inputs, backward=backward, may_refuse=True)
        return {**left, "gradients": left["gradients"] or None}


def draws_by(link: Link, inside: CallSnapshot, fed: Derandomized) -> Derandomized | None:
    """``fed`` with the numbers ``link`` draws when it compiles just the calls that draw; else None.
    Raises what the backend raises."""
    found = draws_alone(fed)
    if found is None:
        return None
    graph, inputs = found
    with torch_internals.preserving_thread_state(), torch.no_grad():
        compiled_fn = compile_at_run_time(link, graph, inputs)
        inside.set_generators()
        results = clone_values(compiled_fn(*inputs))
    return fed.with_results(results)


# ---- the first node whose value the backend gets wrong: a hint for people and for the reduction

MOST_TAPPED = 500
"""Calls of a graph that is compiled once more for this; a larger one is left to the reduction."""
MEMORY_FACTOR = 12
"""Three runs keep all values; and a hint is worth a quarter of what a verification may take."""


def first_differing_node(inside: CallSnapshot, link: Link, spec: RunSpec) -> fx.Node | None:
    """The first node whose value differs when each is an output that the graph never writes to,
    beside the way to what the program sees too; None where memory may not suffice."""
    with fence("no_hint"):  # often the backend's, for another graph
        calls = [node for node in inside.graph.graph.nodes if is_call(node)]
        arguments = {argument for node in calls for argument in written_arguments(node)}
        # a view of memory that is written to would show what a later node has done
        touched = {key for argument in arguments for key in (argument, *storages_of(argument))}
        examples = {node: node.meta.get("example_value") for node in calls}
        are_tensors = (node for node in calls if isinstance(examples[node], Tensor))
        nodes = [node for node in are_tensors if touched.isdisjoint((node, *storages_of(node)))]
        sizes = sum(map(bytes_of_example, examples.values()))
        is_too_large = lack_of_memory(MEMORY_FACTOR * sizes, inside.inputs)
        if not nodes or is_too_large or call_nodes(inside.graph) > MOST_TAPPED:
            return None
        part = replace(inside, graph=returning(inside.graph, nodes))
        both = run_compiled_anew(part, link, backward=False), part.eager(backward=False)
        actual, expected = ({**run, "inputs_after": {}} for run in both)
        if found := comparison_of(actual, expected, part.eager, spec).difference():
            return {f"output {index}": node for index, node in enumerate(nodes)}.get(found["where"])
    return None


# ---- why a graph is not verified: what must not run twice, or does not fit into memory


def refusal(
    graph: fx.GraphModule, args: Sequence[Any], mutated: frozenset[int], settings: Settings
) -> str | None:
    if capturing_device_graph():
        return "a device graph is being recorded"
    if name := talks_to_others(graph, args):
        return f"it talks to other ranks ({name}), and they would not take part twice"
    for node in torch_internals.all_nodes(graph):
        if node.op.startswith("call") and torch_internals.has_effects(node.target):
            return f"{node.name} has effects outside the graph, so it must not run twice"
    if any(map(torch_internals.is_freed, tensors_among(args))):
        return "the memory of an input has been freed"
    copies = bytes_of(tensors_among(args[index] for index in indices_sharing_memory(args, mutated)))
    if copies > settings.value_limit_bytes:
        return (
            f"copies of what it writes to would take {copies / 1e6:.0f} MB, "
            f"and value_limit_bytes allows {settings.value_limit_bytes / 1e6:.0f} MB"
        )
    tensors = tensors_among(args) if torch.is_grad_enabled() else []
    trained = [tensor for tensor in tensors if tensor.requires_grad]
    lack = lack_of_memory(2 * copies + 2 * bytes_of(trained) + bytes_of_a_run(graph), args)
    return lack and f"eager beside {lack}"


def lack_of_memory(needed: int, inputs: Sequence[Any]) -> str | None:
    accelerators = map(devices.free_bytes, devices.devices_of(tensors_among(inputs)))
    available = int(psutil.virtual_memory().available)
    free = next((number for number in accelerators if number is not None), available)
    if needed > RUN_MEMORY_SHARE * free:
        return f"it may need {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
    return None


def declared_otherwise(graph: fx.GraphModule, args: Sequence[Any], written: frozenset[int]) -> str:
    """What dynamo declared of an input of ``graph`` and did not keep to: no backend is to blame
    then. Empty where it kept to all.

    An input that the graph writes to is left out: what dynamo declared has been written to as well.
    So is a symbolic size.
    """
    placeholders = graph.graph.find_nodes(op="placeholder")
    for index, (node, given) in enumerate(zip(placeholders, args, strict=False)):
        declared = node.meta.get("example_value")
        if index in written or not (isinstance(declared, Tensor) and isinstance(given, Tensor)):
            continue
        pairs = zip(declarable(declared), declarable(given), strict=False)
        for (what, expected), (_, passed) in pairs:
            if not isinstance(expected, torch.SymInt) and passed != expected:
                return (
                    f"dynamo declared {node.name} as {what}{expected} and passed {what}{passed}: "
                    "not the backend's failure"
                ).replace("torch.", "")
    return ""


def declarable(value: Tensor) -> Iterator[tuple[str, Any]]:
    yield "", value.dtype
    yield "", value.device
    yield "requires_grad=", value.requires_grad
    yield "rank ", value.dim()
    yield from (("size ", size) for size in value.shape)
    strides = value.stride() if value.layout is torch.strided else ()
    yield from (("stride ", step) for step in strides)


def indices_sharing_memory(values: Sequence[Any], chosen: frozenset[int]) -> list[int]:
    storages = {storage_key(one) for index in chosen for one in tensors_among([values[index]])}
    return [
        index
        for index, value in enumerate(values)
        if index in chosen or any(storage_key(one) in storages for one in tensors_among([value]))
    ]


def bytes_of_a_run(graph: fx.GraphModule) -> int:
    """Most bytes that values of the graph take together at a moment, by the shapes dynamo knows."""
    examples = {node: node.meta.get("example_value") for node in graph.graph.nodes if is_call(node)}
    sizes = {node: bytes_of_example(example) for node, example in examples.items()}
    alive = most = 0
    counted = set[fx.Node]()
    for node in reversed(graph.graph.nodes):
        last_used = {node, *node.all_input_nodes} - counted
        counted |= last_used
        alive += sum(sizes.get(value, 0) for value in last_used)
        most = max(most, alive)
        if not torch.is_grad_enabled():
            alive -= sizes.get(node, 0)
    return most


def bytes_of_example(example: Any) -> int:
    if isinstance(example, tuple | list):
        return sum(map(bytes_of_example, example))
    if not isinstance(example, Tensor) or example.layout is not torch.strided:
        return 0
    sizes = map(torch_internals.hint, example.shape)
    return example.element_size() * math.prod(1 if size is None else int(size) for size in sizes)
