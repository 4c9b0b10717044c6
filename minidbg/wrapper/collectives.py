"""The collectives of one call: recorded while the backend runs it, replayed from memory while eager runs beside it.

No rank takes part in a collective twice, and none waits for another. What a rank gives to a collective counts among its results, so that a
wrong value is told where it arises: the ranks that received it computed rightly with what they got.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from minidbg import torch_internals
from minidbg.fx.copying import copy_graph_module
from minidbg.fx.effects import tensors_in
from minidbg.fx.ranks import WAIT, collective_name, is_collective, is_shared_value
from minidbg.judge.harness import leaves_of
from minidbg.judge.randomness import Derandomized
from minidbg.judge.snapshot import CannotCompare
from minidbg.repro.flights import Step
from minidbg.wrapper.flight import Record

AWAITED = frozenset(
    {
        "all_gather_into_tensor", "all_gather_into_tensor_coalesced", "all_reduce", "all_reduce_coalesced",
        "all_to_all_single", "broadcast", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced",
    }
)  # fmt: skip
"""Functional collectives whose results are there after waiting, and which do nothing else."""


@dataclass(slots=True, eq=False)
class Collective:
    """One call of a collective by this rank."""

    name: str
    key: tuple[Any, ...]
    """Name, shapes and dtypes of what was given, the other arguments: two calls that may be the same have the same key."""
    given: tuple[Tensor, ...]
    results: list[Tensor | None]
    """As they were after waiting; None while nobody has waited."""
    single: bool = True

    def answer(self, args: Sequence[Any], kwargs: dict[str, Any], in_place: bool) -> Any:
        """The results once more; in the dtype of what is given, where the run is one in another precision."""
        if any(one is None for one in self.results):
            raise CannotCompare(f"the graph does not wait for {self.name}, so its result is not known")
        known, given = [one for one in self.results if one is not None], list(tensors_in(args))
        other = given[0].dtype if given and given[0].dtype != self.given[0].dtype else None
        made = [one.to(other or one.dtype, copy=True) for one in known]
        places = given if in_place else list(tensors_in(kwargs.get("out", ())))
        if places:
            made = [place.copy_(one) for place, one in zip(places, made, strict=True)]
        return made[0] if self.single else made


class CollectiveMode(torch_internals.DispatchMode):
    """Sees each collective of a run, those inside operations on DTensors too."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a wrapper first: what it does inside comes by here again
        name = collective_name(func)
        if name is None:
            return func(*args, **(kwargs or {}))
        return self.collective(name, func, args, kwargs or {})

    def collective(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError


class CollectiveRecorder(CollectiveMode):
    """The backend's run: every collective takes place, and is remembered. The flight record says meanwhile that the rank waits."""

    def __init__(self, record: Record, limit_bytes: int) -> None:
        super().__init__()
        self.record, self.left_bytes = record, limit_bytes
        self.collectives: list[Collective] = []
        self.pending: dict[int, tuple[Collective, int]] = {}
        self.begun = False
        """Whether a collective has taken place, so that the call cannot be made again."""
        self.lost = ""
        """Why the run cannot be repeated from memory."""

    def collective(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = () if name == WAIT else tuple(map(self.kept, tensors_in(args)))
        self.begun = True
        self.record.quietly_move(Step.WAITING)
        result = func(*args, **kwargs)
        self.record.quietly_move(Step.RUN)
        if name == WAIT:
            one, index = self.pending.pop(result.data_ptr(), (None, 0))
            if one is not None:
                one.results[index] = self.kept(result)
            return result
        self.remember(Collective(name, key_of(name, args, kwargs), given, []), func, result)
        return result

    def remember(self, one: Collective, func: Any, result: Any) -> None:
        """Keep ``result``, at once or when it has been waited for."""
        outs = result if isinstance(result, list | tuple) else [result]
        is_awaited = "functional" in func.namespace
        is_known = one.name in AWAITED if is_awaited else is_plain(func)
        if not is_known or not all(isinstance(out, Tensor) for out in outs):
            self.lost = f"what {func} does cannot be answered from memory"
            return
        one.single = isinstance(result, Tensor)
        one.results = [None if is_awaited else self.kept(out) for out in outs]
        if is_awaited:
            self.pending |= {out.data_ptr(): (one, index) for index, out in enumerate(outs)}
        self.collectives.append(one)

    def kept(self, value: Tensor) -> Tensor:
        """A copy, while there is room for one."""
        self.left_bytes -= value.nbytes
        if self.left_bytes < 0:
            self.lost = (
                self.lost or "copies of what the ranks exchange would take more than value_limit_bytes"
            )
            self.collectives.clear()
            return value
        return copy_of(value)


@dataclass(slots=True)
class Replay:
    """Runs of eager on one rank: each collective gets what the backend's run got from the others."""

    recorder: CollectiveRecorder
    taken: list[Collective] = field(default_factory=list)
    """In the order in which eager asks for them, known after its first run."""

    def run(self, function: Any, inputs: Sequence[Any]) -> Any:
        """Outputs of ``function``, and what it gave to collectives. Raises CannotCompare where the backend's collectives are others."""
        if self.recorder.lost:
            raise CannotCompare(self.recorder.lost)
        with CollectiveReplay(self.recorder.collectives, self.taken) as replay:
            outputs = function(*inputs)
            self.taken = replay.taken
            return with_given(outputs, replay.given)

    def of_backend(self, outputs: Any) -> Any:
        """The same of the backend's run, in eager's order."""
        return with_given(outputs, [value for one in self.taken for value in one.given])

    def names_of_given(self, outputs: int) -> dict[str, str]:
        """The last of so many ``outputs``, which ``run`` has added, by the comparison's name for them, in words."""
        names = [one.name for one in self.taken for _ in one.given]
        return {
            f"output {outputs - len(names) + index}": f"what this rank gives to {name} (collective {index + 1} of {len(names)})"
            for index, name in enumerate(names)
        }


class CollectiveReplay(CollectiveMode):
    """Eager's run: no collective takes place."""

    def __init__(self, recorded: Sequence[Collective], order: Sequence[Collective]) -> None:
        super().__init__()
        self.unused, self.order = list(recorded), list(order)
        self.recorded = tuple(recorded)
        self.taken: list[Collective] = []
        self.given: list[Tensor] = []

    def collective(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name == WAIT:
            return args[0]
        given = list(tensors_in(args))
        one = self.order.pop(0) if self.order else self.same_as(key_of(name, args, kwargs), name, given)
        self.taken.append(one)
        self.given += map(copy_of, given)
        return one.answer(args, kwargs, in_place=is_in_place(func))

    def same_as(self, key: tuple[Any, ...], name: str, given: Sequence[Tensor]) -> Collective:
        """The collective of the backend's run that this one is; of several, the one that was given the same."""
        alike = [one for one in self.unused if one.key == key]
        again = [one for one in self.recorded if one.key == key and are_equal(one.given, given)]
        if not alike and not again:  # a compiler may merge two that are the same
            raise CannotCompare(f"the backend exchanges other values between ranks than eager does in {name}")
        found = next((one for one in alike if are_equal(one.given, given)), (alike or again)[0])
        if found in self.unused:
            self.unused.remove(found)
        return found


def is_plain(operator: Any) -> bool:
    """Whether all that the operator does is to give values."""
    path = torch_internals.operator_path(operator)
    return path is not None and not any(one.is_mutable for one in torch_internals.operator_schemas(path))


def is_in_place(operator: Any) -> bool:
    """Whether the result of a collective is written over what was given."""
    path = torch_internals.operator_path(operator)
    return path is not None and path.split(".")[3].endswith("_")


def with_given(outputs: Any, given: Iterable[Tensor]) -> tuple[Any, ...]:
    """The outputs, and then what the rank gave to collectives."""
    return (*(outputs if isinstance(outputs, list | tuple) else (outputs,)), *given)


def as_seen_here(left: dict[str, Any]) -> dict[str, Any]:
    """What a run left behind, with local shards for DTensors: their meshes are not compared."""
    after = {name: local(value) for name, value in left["inputs_after"].items()}
    return {**left, "outputs": tuple(map(local, left["outputs"])), "inputs_after": after}


def local(value: Any) -> Any:
    """The shard of this rank, after waiting for it; anything else as it is."""
    if is_shared_value(value) and isinstance(value, Tensor):
        with torch.no_grad():
            value = value.to_local()  # type: ignore[attr-defined]  # a DTensor
    wait = getattr(value, "trigger_wait", None)
    return value if wait is None else wait()


def copy_of(value: Tensor) -> Tensor:
    """A plain copy: strides are not what ranks exchange."""
    with torch.inference_mode(False):
        return value.detach().clone(memory_format=torch.contiguous_format)


def are_equal(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def key_of(name: str, args: Iterable[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """``Collective.key``; process groups by their names."""
    known = [
        (tuple(leaf.shape), leaf.dtype)
        if isinstance(leaf, Tensor)
        else str(getattr(leaf, "group_name", leaf))
        for leaf in leaves_of([*args, *(value for name, value in sorted(kwargs.items()) if name != "out")])
    ]
    return name, *known


def single_rank_graph(
    graph: fx.GraphModule, inputs: Sequence[Any], taken: Sequence[Collective]
) -> Derandomized | None:
    """``graph`` without its collectives: their results are inputs, and what the rank gives to them are outputs.

    None where the graph does not hold each of them as a node of its own.
    """
    made = copy_graph_module(graph)
    calls = [node for node in made.graph.nodes if node.op.startswith("call") and is_collective(node)]
    waits = [node for node in calls if collective_name(node.target) == WAIT]
    asking = [node for node in calls if node not in waits]
    plain = all(one.single for one in taken) and not any(is_in_place(node.target) for node in asking)
    if len(asking) != len(taken) or not plain or any(map(is_shared_value, inputs)):
        return None
    output, last = made.graph.output_node(), made.graph.find_nodes(op="placeholder")[-1:]
    given: list[Any] = []
    for node, one in zip(asking, taken, strict=True):
        with made.graph.inserting_after(*last):
            result = made.graph.placeholder(f"{node.name}_result")
        last = [result]
        result.__dict__["_dynamo_source"] = None  # AOTAutograd asks each input of a graph of dynamo's for it
        result.meta["example_value"] = one.results[0]
        given += [
            argument
            for argument in node.all_input_nodes
            if isinstance(argument.meta.get("example_value"), Tensor)
        ]
        node.replace_all_uses_with(result)
    for node in reversed(calls):
        if node in waits:
            node.replace_all_uses_with(node.all_input_nodes[0])
        made.graph.erase_node(node)
    output.args = (with_given(output.args[0], given),)
    made.graph.lint()
    made.recompile()
    return Derandomized(
        made, (*inputs, *(one.results[0] for one in taken)), tuple(node.name for node in asking), ()
    )
