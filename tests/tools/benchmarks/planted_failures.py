"""Failures planted into a graph, as predicates that say yes or no and nothing else: what a thin buggy backend would do."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

Predicate = Callable[[fx.GraphModule, Sequence[Any]], bool]


def calls_of(graph_module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in graph_module.graph.nodes if node.op.startswith("call")]


def needs(names: Sequence[str]) -> Predicate:
    """Nodes that must all be there for the failure to show."""
    return lambda graph_module, inputs: {*names} <= {node.name for node in calls_of(graph_module)}


def needs_op(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """One op of a kind that is nowhere else in the graph: see ``with_unique_op``."""
    return any(node.target is torch.erf for node in graph_module.graph.nodes)


class WrongAt(fx.Interpreter):
    """Runs a graph whose node of this name gives wrong values."""

    def __init__(self, graph_module: fx.GraphModule, name: str) -> None:
        super().__init__(graph_module)
        self.name = name

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        is_wrong = n.name == self.name and n.op.startswith("call") and isinstance(result, Tensor)
        return 1 - 2 * result if is_wrong else result


def wrong_result(name: str) -> Predicate:
    """A backend whose code for one node gives wrong values; the outputs are held against eager's."""

    def fails(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        try:
            right, wrong = (
                WrongAt(graph_module, at).run(*(value.clone() for value in inputs)) for at in ("", name)
            )
        except Exception:  # noqa: BLE001 - a candidate that does not run is not interesting
            return False
        return any(
            not torch.allclose(one, other, rtol=1e-4, atol=1e-5)
            for one, other in zip(right, wrong, strict=True)
        )

    return fails


def planted(
    graph_module: fx.GraphModule, inputs: Sequence[Any], seed: int
) -> Iterator[tuple[str, fx.GraphModule, Predicate]]:
    """The failures for one graph, each with its name and the graph that has it; places are random but for the first and the last."""
    nodes, chance = calls_of(graph_module), random.Random(seed)
    names = [node.name for node in nodes]
    last, near = len(names) - 1, chance.randrange(len(names) - 1)
    places = {
        "first": [0],
        "middle": [last // 2 + chance.randrange(-last // 8, last // 8)],
        "last": [last],
        "adjacent pair": [near, near + 1],
        "far pair": [chance.randrange(last // 3), last - chance.randrange(last // 3)],
        "three": chance.sample(range(last + 1), 3),
        "five": chance.sample(range(last + 1), 5),
    }
    for label, chosen in places.items():
        yield label, graph_module, needs([names[place] for place in chosen])
    yield "cluster of 12", graph_module, needs(neighbours(chance.choice(nodes), 12, chance))
    yield "unique op", with_unique_op(graph_module, chance), needs_op
    shown = (wrong_result(name) for name in chance.sample(names, len(names)))  # a chain of sines forgets some
    if fails := next((one for one in shown if one(graph_module, inputs)), None):
        yield "wrong result", graph_module, fails


def neighbours(node: fx.Node, size: int, chance: random.Random) -> list[str]:
    """The names of so many calls that take from each other, grown from ``node``."""
    found = {node: None}
    while len(found) < size:
        around = (other for one in found for other in (*one.all_input_nodes, *one.users))
        edge = [other for other in around if other.op.startswith("call") and other not in found]
        if not edge:
            break
        found[chance.choice(edge)] = None
    return [one.name for one in found]


def with_unique_op(graph_module: fx.GraphModule, chance: random.Random) -> fx.GraphModule:
    """The graph with one unary call turned into an op that is nowhere else."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(graph_module.graph, {}))
    node = chance.choice([node for node in graph.nodes if node.target in (torch.relu, torch.sin)])
    node.target, node.args, node.kwargs = torch.erf, node.args[:1], {}
    return fx.GraphModule(graph_module, graph)
