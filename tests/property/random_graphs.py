"""Seeded random graphs and predicates for the property tests of the reducer."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from minidbg import torch_internals

Predicate = Callable[[fx.GraphModule, Sequence[Any]], bool]

UNARY = (torch.sin, torch.cos, torch.relu, torch.tanh, torch.neg)
BINARY = (torch.add, torch.mul, torch.maximum)


class GraphMaker:
    """Builds one random graph of ``[4, 4]`` tensors, with the features asked for."""

    def __init__(self, seed: int, *, calls: int, writes: bool = False, modes: bool = False) -> None:
        self.random = random.Random(seed)
        self.graph = fx.Graph()
        self.values: list[fx.Node] = [
            self.graph.placeholder(f"x{number}") for number in range(self.random.randint(1, 4))
        ]
        self.inputs = len(self.values)
        kinds = [self.unary, self.unary, self.binary, self.binary, self.split, self.cat, self.transpose]
        kinds += [self.write] if writes else []
        kinds += [self.block, self.no_grad] if modes else []
        while sum(node.op.startswith("call") for node in self.graph.nodes) < calls:
            self.random.choice(kinds)()

    def pick(self) -> fx.Node:
        """A value, more often a late one."""
        return self.values[-min(len(self.values), self.random.choice((1, 1, 1, 2, 3, 5, 8)))]

    def keep(self, node: fx.Node) -> None:
        self.values.append(node)

    def unary(self) -> None:
        self.keep(self.graph.call_function(self.random.choice(UNARY), (self.pick(),)))

    def binary(self) -> None:
        self.keep(self.graph.call_function(self.random.choice(BINARY), (self.pick(), self.pick())))

    def transpose(self) -> None:
        self.keep(self.graph.call_method("t", (self.pick(),)))

    def split(self) -> None:
        parts = self.graph.call_method("split", (self.pick(), 2))
        both = [self.graph.call_function(operator.getitem, (parts, place)) for place in (0, 1)]
        self.keep(self.graph.call_function(torch.cat, (both[:: self.random.choice((1, -1))],)))

    def cat(self) -> None:
        wide = self.graph.call_function(torch.cat, ([self.pick(), self.pick()], 1))
        self.keep(self.graph.call_function(torch.narrow, (wide, 1, 2, 4)))

    def write(self) -> None:
        value = self.pick()
        if self.random.random() < 0.5:
            self.keep(self.graph.call_method("mul_", (value, 2.0)))
        else:
            view = self.graph.call_function(operator.getitem, (value, 0))
            self.graph.call_method("add_", (view, 1.0))

    def block(self) -> None:
        enter, leave = torch_internals.AUTOCAST_FUNCTIONS
        opened = self.graph.call_function(enter, ("cpu", torch.bfloat16, True, None))
        product = self.graph.call_function(torch.mm, (self.pick(), self.pick()))
        self.graph.call_function(leave, (opened,))
        self.keep(self.graph.call_method("float", (product,)))

    def no_grad(self) -> None:
        self.graph.call_function(torch_internals.SET_GRAD, (False,))
        self.unary()
        self.graph.call_function(torch_internals.SET_GRAD, (True,))

    def finish(self) -> tuple[fx.GraphModule, list[torch.Tensor]]:
        """The graph module and inputs for it."""
        outputs = {self.values[-1]} | set(self.random.sample(self.values, min(2, len(self.values))))
        self.graph.output(tuple(node for node in self.values if node in outputs))
        generator = torch.Generator().manual_seed(self.random.randint(0, 2**31))
        inputs = [torch.randn(4, 4, generator=generator) for _ in range(self.inputs)]
        return fx.GraphModule(torch.nn.Module(), self.graph), inputs


def calls(graph_module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in graph_module.graph.nodes if node.op.startswith("call")]


def random_predicate(seed: int, whole: fx.GraphModule, inputs: Sequence[Any]) -> Predicate:
    """A predicate that holds for ``whole``: monotone for some seeds, not so for others."""
    chance = random.Random(seed)
    outputs = chance.randint(1, len(whole.graph.output_node().args[0]))
    names = [node.name for node in calls(whole)]
    wanted = set(chance.sample(names, min(len(names), chance.choice((1, 1, 2, 2, 3, 5)))))

    def has_all(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        return wanted <= {node.name for node in calls(graph_module)}

    def is_connected(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        return has_all(graph_module, inputs) and any(
            node.name in wanted and any(user.op != "output" for user in node.users)
            for node in calls(graph_module)
        )

    def odd_company(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        return has_all(graph_module, inputs) and len(calls(graph_module)) % 3 == len(names) % 3

    def many_targets(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        targets = {str(node.target) for node in calls(graph_module)}
        return len(targets) >= len({str(node.target) for node in calls(whole)}) // 2

    def has_outputs(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        results = graph_module(*[value.clone() for value in inputs])
        return has_all(graph_module, inputs) and len(results) >= outputs

    chosen = (has_all, is_connected, odd_company, many_targets, has_outputs)[seed % 5]
    # dead code may keep a kind from holding for the whole
    return chosen if chosen(whole, inputs) else has_all
