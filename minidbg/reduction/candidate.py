"""``Candidate``: a smaller case not yet tried, or one that was tried and failed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import fx

from minidbg import torch_internals
from minidbg.core.outcome import Verdict
from minidbg.fx.copying import storage_bytes, storage_key
from minidbg.fx.effects import graph_attribute, is_call

SHOWN = (Verdict.REPRODUCES, Verdict.FLAKY)
"""Verdicts of what fails in the same way."""


class BudgetSpent(Exception):
    """No call is left. Passes let it through; the driver ends the reduction with the best so far."""


def last_that_holds(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The last place that holds, by bisection: ``low`` is taken to hold, and ``high`` not to."""
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


SMALL = 256
"""Nodes of a candidate up to which it is told from others without regard to names."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A graph and its inputs, not to be changed. ``tokens`` tell input values apart without looking at them."""

    graph_module: fx.GraphModule
    inputs: tuple[Any, ...]
    tokens: tuple[Hashable, ...]
    faithful: bool = False
    """Whether eager need not be asked, since all of it ran in eager before."""
    epoch: str = ""
    """Changes with each edit that changes values, so that recorded ones are not taken for earlier ones."""
    by_names: bool = False
    """Whether it was cut out of a larger one, so that the names of its nodes tell it from others."""

    @property
    def calls(self) -> list[fx.Node]:
        return [node for node in self.graph_module.graph.nodes if is_call(node)]

    def call(self, name: str) -> fx.Node | None:
        return next((node for node in self.calls if node.name == name), None)

    @cached_property
    def key(self) -> str:
        """Equal for equal candidates. Of small ones the names of the nodes do not count; of large
        ones cut out that would take long."""
        if self.by_names and len(self.graph_module.graph.nodes) > SMALL:
            return f"{self.epoch} {structure(self.graph_module)}"
        return fingerprint(self.graph_module, self.tokens)

    @cached_property
    def storages(self) -> dict[int, int]:
        """Bytes of each storage behind the inputs."""
        tensors = (value for value in self.inputs if isinstance(value, torch.Tensor))
        return {storage_key(value): storage_bytes(value) for value in tensors}

    @cached_property
    def size(self) -> tuple[int, ...]:
        """What a reduction makes smaller, most important first: calls, inputs and tensors of its own, outputs."""
        nodes = list(self.graph_module.graph.nodes)
        nested = sum(_calls_within(node) for node in nodes)
        returned = nodes[-1].args[0] if nodes else ()
        outputs = len(returned) if isinstance(returned, tuple | list) else 1
        taken = len(self.inputs) + sum(map(_tensors_of, nodes))
        return nested, taken, outputs


def _calls_within(node: fx.Node) -> int:
    """1 for a call; for a submodule its leaves, for a nested graph the calls in it."""
    if node.op == "call_module":
        module = graph_attribute(node)
        leaves = [inner for inner in module.modules() if not any(inner.children())] if module else []
        return max(1, len(leaves))
    if is_call(node):
        return 1
    nested = graph_attribute(node) if node.op == "get_attr" else None
    return sum(map(_calls_within, nested.graph.nodes)) if isinstance(nested, fx.GraphModule) else 0


def _tensors_of(node: fx.Node) -> int:
    """The tensors that a node brings: an attribute, or what a submodule owns."""
    value = graph_attribute(node) if node.op in ("get_attr", "call_module") else None
    if isinstance(value, torch.nn.Module) and node.op == "call_module":
        return len({id(one) for one in (*value.parameters(), *value.buffers())})
    return int(isinstance(value, torch.Tensor))


# --- telling candidates apart ---


def fingerprint(graph_module: fx.GraphModule, tokens: Sequence[Hashable]) -> str:
    """Equal for graphs that differ in names only and have inputs with the same tokens. 32 hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    for line in _lines(graph_module):
        digest.update(line.encode())
    digest.update(repr(tokens).encode())
    return digest.hexdigest()


def structure(graph_module: fx.GraphModule) -> str:
    """Equal for graphs cut out of the same one that keep the same nodes and outputs. Cheap; 32 hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    nodes = list(graph_module.graph.nodes)
    digest.update(" ".join([node.name for node in nodes]).encode())
    digest.update(repr(nodes[-1].args).encode())
    return digest.hexdigest()


def _lines(graph_module: fx.GraphModule) -> Iterator[str]:
    numbers: dict[fx.Node, str] = {}
    for node in graph_module.graph.nodes:
        numbers[node] = f"%{len(numbers)}"
        args, kwargs = _value_text(node.args, numbers), _value_text(node.kwargs, numbers)
        yield f"{node.op} {_target(node)} {args} {kwargs}\n"


def _target(node: fx.Node) -> str:
    if node.op in ("placeholder", "output"):
        return ""
    if node.op == "get_attr":
        value = graph_attribute(node)
        if isinstance(value, fx.GraphModule):
            return "".join(_lines(value))
        return f"{node.target} {id(value)}"
    if isinstance(node.target, str) or torch_internals.is_overload(node.target):
        return str(node.target)
    return f"{getattr(node.target, '__name__', '')} {id(node.target)}"


def _value_text(value: Any, numbers: dict[fx.Node, str]) -> str:
    if isinstance(value, fx.Node):
        return numbers[value]
    if isinstance(value, tuple | list):
        return "(" + ",".join([_value_text(part, numbers) for part in value]) + ")"
    if isinstance(value, dict):
        return "{" + ",".join([f"{key}:{_value_text(part, numbers)}" for key, part in value.items()]) + "}"
    if isinstance(value, slice):
        return f"slice{_value_text((value.start, value.stop, value.step), numbers)}"
    return repr(value)
