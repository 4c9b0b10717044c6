"""Failures planted into a graph, as predicates that say yes or no and nothing else: what a thin buggy backend would do."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn


@dataclass(frozen=True)
class Planted:
    """Nodes that must all be there for the failure to show, by name."""

    label: str
    names: frozenset[str]

    def __call__(self, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        there = {node.name for node in graph_module.graph.nodes if node.op.startswith("call")}
        return self.names <= there


@dataclass(frozen=True)
class PlantedOp:
    """One op of a kind that is nowhere else in the graph."""

    label: str = "unique op"

    def __call__(self, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        return any(node.target is torch.erf for node in graph_module.graph.nodes)


class Values(fx.Interpreter):
    """Runs a graph and hands each call's arguments and result to ``see``, which may answer another result."""

    def __init__(
        self, graph_module: fx.GraphModule, see: Callable[[fx.Node, tuple[Any, ...], Any], Any]
    ) -> None:
        super().__init__(graph_module)
        self.see = see

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if not n.op.startswith("call"):
            return result
        args, _ = self.fetch_args_kwargs_from_env(n)
        return self.see(n, args, result)


@dataclass(frozen=True)
class PlantedFact:
    """A node that fails only on arguments of a kind: another dtype, a size, strides."""

    label: str
    name: str
    holds: Callable[[Tensor], bool]

    def __call__(self, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        found = False

        def see(node: fx.Node, args: tuple[Any, ...], result: Any) -> Any:
            nonlocal found
            if node.name == self.name:
                found = any(isinstance(value, Tensor) and self.holds(value) for value in args)
            return result

        return runs(Values(graph_module, see), inputs) is not None and found


@dataclass(frozen=True)
class PlantedResult:
    """A backend whose code for one node gives wrong values; the outputs are held against eager's."""

    label: str
    name: str
    wrong: Callable[[Tensor], Tensor]

    def __call__(self, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        def see(node: fx.Node, args: tuple[Any, ...], result: Any) -> Any:
            return self.wrong(result) if node.name == self.name and isinstance(result, Tensor) else result

        right = runs(Values(graph_module, lambda node, args, result: result), inputs)
        left = runs(Values(graph_module, see), inputs)
        if right is None or left is None:
            return False
        return any(
            not torch.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)
            for one, other in zip(left, right, strict=True)
            if isinstance(one, Tensor)
        )


@dataclass(frozen=True)
class PlantedPattern:
    """Ops of these kinds, each taking the result of the one before: no node of them matters alone."""

    label: str
    kinds: tuple[str, ...]

    def __call__(self, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        return any(self._ends_at(node, self.kinds) for node in graph_module.graph.nodes)

    def _ends_at(self, node: fx.Node, kinds: tuple[str, ...]) -> bool:
        if not node.op.startswith("call") or kind_of(node) != kinds[-1]:
            return False
        return len(kinds) == 1 or any(self._ends_at(one, kinds[:-1]) for one in node.all_input_nodes)


@dataclass
class Flaky:
    """Shows itself in half of the runs; the oracle asks seven times before it says no."""

    planted: Planted
    label: str = "flaky"
    dice: random.Random = field(default_factory=lambda: random.Random(0))

    def __call__(self, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        return self.planted(graph_module, inputs) and any(self.dice.random() < 0.5 for _ in range(7))


@dataclass(frozen=True)
class WithDecoy:
    """Two bugs: where the second one's nodes are there without the first one's, it fails otherwise, which is no yes."""

    label: str
    planted: Planted
    decoy: Planted

    def __call__(self, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        if self.planted(graph_module, inputs):
            return True
        self.decoy(graph_module, inputs)  # "fails differently"
        return False


def runs(interpreter: fx.Interpreter, inputs: Sequence[Any]) -> tuple[Any, ...] | None:
    """The outputs, or None where the graph does not run."""
    try:
        left = interpreter.run(*(value.clone() if isinstance(value, Tensor) else value for value in inputs))
    except Exception:  # noqa: BLE001 - a candidate that does not run is not interesting
        return None
    return left if isinstance(left, tuple) else (left,)


def kind_of(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


class Predicate(Protocol):
    """What both tools ask: whether the graph still fails."""

    @property
    def label(self) -> str: ...

    def __call__(self, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool: ...


def planted(graph_module: fx.GraphModule, inputs: Sequence[Any], seed: int) -> Iterator[Predicate]:
    """The failures for one graph; places are random but for the first and the last."""
    names = [node.name for node in graph_module.graph.nodes if node.op.startswith("call")]
    chance, last = random.Random(seed), len(names) - 1

    def at(label: str, places: Iterable[int]) -> Planted:
        return Planted(label, frozenset(names[place] for place in places))

    near = chance.randrange(last)
    somewhere = at("decoy", [last // 3])
    yield at("first", [0])
    yield at("middle", [last // 2 + chance.randrange(-last // 8, last // 8)])
    yield at("last", [last])
    yield PlantedOp()
    yield WithDecoy("decoy", somewhere, at("decoy", [2 * last // 3]))
    yield Flaky(at("flaky", [chance.randrange(last)]))
    yield from by_values(graph_module, inputs, chance)
    yield at("adjacent pair", [near, near + 1])
    yield at("far pair", [chance.randrange(last // 3), last - chance.randrange(last // 3)])
    yield at("three", chance.sample(range(last + 1), 3))
    yield at("five", chance.sample(range(last + 1), 5))
    nodes = [node for node in graph_module.graph.nodes if node.op.startswith("call")]
    for size in (6, 12, 20):
        yield Planted(f"cluster of {size}", frozenset(neighbours(chance.choice(nodes), size, chance)))


def neighbours(node: fx.Node, size: int, chance: random.Random) -> list[str]:
    """The names of so many calls that take from each other, grown from ``node``."""
    found = {node: None}
    while len(found) < size:
        edge = [
            other
            for one in found
            for other in (*one.all_input_nodes, *one.users)
            if other.op.startswith("call") and other not in found
        ]
        if not edge:
            break
        found[chance.choice(edge)] = None
    return [one.name for one in found]


WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "wrong result": lambda value: 1 - 2 * value,
    "wrong in a range": lambda value: torch.where(value > value.mean(), 1 - 2 * value, value),
    "nan": lambda value: torch.where(value >= value.max(), torch.nan, value),
}


def one_that_shows(
    label: str,
    wrong: Callable[[Tensor], Tensor],
    nodes: Sequence[fx.Node],
    graph_module: fx.GraphModule,
    inputs: Sequence[Any],
    chance: random.Random,
) -> PlantedResult:
    """At a random node, but one whose wrong value the rest of the graph does not hide: a chain of sines forgets."""
    for node in [*chance.sample(nodes, min(20, len(nodes))), *reversed(nodes[-20:])]:
        found = PlantedResult(label, node.name, wrong)
        if found(graph_module, inputs):
            return found
    return found


def by_values(
    graph_module: fx.GraphModule, inputs: Sequence[Any], chance: random.Random
) -> Iterator[Predicate]:
    """Failures that depend on what flows through the graph."""
    seen: list[tuple[fx.Node, Any]] = []

    def see(node: fx.Node, args: tuple[Any, ...], result: Any) -> Any:
        seen.append((node, args))
        return result

    runs(Values(graph_module, see), inputs)
    given = [
        (node, value) for node, args in seen for value in args if isinstance(value, Tensor) and value.dim()
    ]
    node, value = chance.choice(given)
    yield PlantedFact(
        "needs shape",
        node.name,
        lambda value, size=value.shape[-1]: value.dim() > 0 and value.shape[-1] == size,
    )  # type: ignore[misc]
    node, _ = chance.choice(given)
    yield PlantedFact("needs dtype", node.name, lambda value: value.dtype is torch.float32)
    odd = [(node, value) for node, value in given if not value.is_contiguous()]
    if odd:
        yield PlantedFact(
            "needs strides", chance.choice(odd)[0].name, lambda value: not value.is_contiguous()
        )
    floats = [
        node
        for node, args in seen
        if any(isinstance(value, Tensor) and value.is_floating_point() for value in args)
    ]
    for label, wrong in WRONG.items():
        yield one_that_shows(label, wrong, floats, graph_module, inputs, chance)
    chains = [
        (kind_of(source), kind_of(node))
        for node, _ in given
        for source in node.all_input_nodes
        if source.op.startswith("call")
    ]
    rare = min(chains, key=chains.count)
    yield PlantedPattern("pattern", rare)


def with_unique_op(graph_module: fx.GraphModule, seed: int) -> fx.GraphModule:
    """The graph with one unary call turned into an op that is nowhere else."""
    graph = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(graph_module.graph, new))
    alike = [
        node
        for node in graph.nodes
        if node.target in (torch.relu, torch.sin, torch.softmax, nn.functional.gelu)
    ]
    node = random.Random(seed).choice(alike)
    node.target, node.args, node.kwargs = torch.erf, node.args[:1], {}
    return fx.GraphModule(graph_module, graph)
