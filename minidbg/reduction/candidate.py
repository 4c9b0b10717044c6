"""``Candidate``: a smaller case not yet tried, or one that was tried and failed; and what the oracle says about one."""

from __future__ import annotations

import copy
import enum
import hashlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import fx

from minidbg import torch_internals
from minidbg.fx.copying import copy_graph_module, storage_bytes, storage_key
from minidbg.fx.effects import graph_attribute, is_call


class OracleAnswer(enum.Enum):
    INTERESTING = "interesting"
    """It fails in the same way."""
    NOT = "not"
    """It does not fail."""
    OTHER = "other"
    """It fails, but in another way."""
    INVALID = "invalid"
    """It proves nothing: eager itself fails, or it cannot be run here."""


AskGraph: TypeAlias = Callable[[fx.GraphModule, tuple[Any, ...]], OracleAnswer]
AskTogether: TypeAlias = Callable[[Sequence[tuple[fx.GraphModule, tuple[Any, ...]]]], Sequence[OracleAnswer]]
"""Several questions at once, for an oracle with several workers; the answers in the order of the questions."""


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


class OwnGraph:
    """A graph module of which one can be given away: where ``make`` is there, the next is made when it is needed."""

    def __init__(self, made: fx.GraphModule, make: Callable[[], fx.GraphModule] | None = None) -> None:
        self._made: fx.GraphModule | None = made
        self._make = make

    def module(self) -> fx.GraphModule:
        if self._made is None:
            assert self._make is not None, "it was given away only because it can be made"
            self._made = self._make()
            self._make = None  # it holds the recording that this was cut out of, and so its tensors
        return self._made

    def give_away(self) -> fx.GraphModule:
        """A graph module whose new owner may change it."""
        if self._make is None:
            return _copy_module(self.module())
        given, self._made = self.module(), None
        return given


def _copy_module(graph_module: fx.GraphModule) -> fx.GraphModule:
    """A copy that shares nothing that may change; tensors and modules inside are copied as well."""
    holds = any(node.op in ("get_attr", "call_module") for node in graph_module.graph.nodes)
    return copy.deepcopy(graph_module) if holds else copy_graph_module(graph_module)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A graph and its inputs, not to be changed. ``tokens`` tell input values apart without looking at them."""

    graph: OwnGraph
    inputs: tuple[Any, ...]
    tokens: tuple[Hashable, ...]
    faithful: bool = False
    """Whether eager need not be asked, since all of it ran in eager before."""
    epoch: str = ""
    """Changes with each edit that changes values, so that recorded ones are not taken for earlier ones."""
    variant: str | None = ""
    """How it was cut out, beyond which nodes it keeps; None for what was made otherwise."""

    @property
    def graph_module(self) -> fx.GraphModule:
        """The graph module, always the same one once it has been looked at after the oracle's call."""
        return self.graph.module()

    @property
    def calls(self) -> list[fx.Node]:
        return [node for node in self.graph_module.graph.nodes if is_call(node)]

    def call(self, name: str) -> fx.Node | None:
        return next((node for node in self.calls if node.name == name), None)

    @cached_property
    def key(self) -> str:
        """Equal for equal candidates. Of small ones the names of the nodes do not count; of large
        ones cut out that would take long."""
        if self.variant is None or len(self.graph_module.graph.nodes) <= SMALL:
            return fingerprint(self.graph_module, self.tokens)
        return f"{self.epoch} {self.variant} {structure(self.graph_module)}"

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
