"""Graphs and predicates for the tests of the reducer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from minidbg.core.outcome import Outcome, Verdict
from minidbg.reduction.driver import reduce_graph
from minidbg.reduction.search import Candidate, Oracle, Search

OPS = (torch.sin, torch.cos, torch.relu)


def chain(calls: int) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """``op0``, ``op1``, ...: unary ops of three kinds in a row."""
    return graph_of(lambda graph, x: (row(graph, x, calls, OPS)[-1],)), [torch.linspace(0, 1, 4)]


def row(
    graph: fx.Graph, x: fx.Node, calls: int, ops: Sequence[Callable[..., Any]] = (torch.sin,)
) -> list[fx.Node]:
    """``calls`` unary ops in a row, each over the one before."""
    nodes = [x]
    for number in range(calls):
        target = ops[number % len(ops)]
        nodes.append(graph.create_node("call_function", target, (nodes[-1],), name=f"op_{number}"))
    return nodes[1:]


def graph_of(build: Callable[[fx.Graph, fx.Node], Any]) -> fx.GraphModule:
    """A graph over one input; ``build(graph, x)`` returns the output."""
    graph = fx.Graph()
    graph.output(build(graph, graph.placeholder("x")))
    return fx.GraphModule(torch.nn.Module(), graph)


def call_names(graph_module: fx.GraphModule) -> list[str]:
    return [node.name for node in graph_module.graph.nodes if node.op.startswith("call")]


def call_count(graph_module: fx.GraphModule) -> int:
    return len(call_names(graph_module))


class Needs:
    """Fails where all of these nodes are; counts its calls and remembers what it was asked."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)
        self.asked: list[list[str]] = []

    def __call__(self, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        found = call_names(graph_module)
        self.asked.append(found)
        return self.names <= set(found)

    @property
    def calls(self) -> int:
        return len(self.asked)


def answers(fails: Callable[[fx.GraphModule, Sequence[Any]], bool]) -> Oracle:
    """An oracle with the answers of a predicate."""

    def ask(candidates: Sequence[Candidate]) -> list[Outcome]:
        asked = [fails(one.graph_module, one.inputs) for one in candidates]
        return [Outcome(Verdict.REPRODUCES if failed else Verdict.GONE) for failed in asked]

    return ask


def searched(
    graph_module: fx.GraphModule, inputs: Sequence[Any], ask: Oracle, *, simplify: bool = False, **how: Any
) -> Search:
    """A search that has come to its end."""
    search = Search(Candidate.whole(graph_module, inputs), ask, **how)
    reduce_graph(search, simplify=simplify)
    return search
