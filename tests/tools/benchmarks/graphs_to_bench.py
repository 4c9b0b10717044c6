"""Graphs of a wanted size, as dynamo gives them to a backend."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from minidbg.fx.copying import capture_by_dynamo


def chain(calls: int) -> tuple[fx.GraphModule, list[Any]]:
    """One value through unary ops."""
    graph = fx.Graph()
    value = graph.placeholder("x")
    for op in itertools.islice(itertools.cycle((torch.sin, torch.cos, torch.relu, torch.tanh)), calls):
        value = graph.call_function(op, (value,))
    graph.output((value,))
    return fx.GraphModule(nn.Module(), graph), [torch.randn(4)]


class Mlp(nn.Module):
    def __init__(self, layers: int, width: int = 8) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for linear, norm in zip(self.linears, self.norms, strict=True):
            x = torch.relu(norm(linear(x)))
        return x


def captured(model: nn.Module, x: Tensor) -> tuple[fx.GraphModule, Any]:
    with torch.no_grad():
        return capture_by_dynamo(model, (x,))


GRAPHS: dict[str, Callable[[int], tuple[fx.GraphModule, Any]]] = {
    "chain": chain,
    "mlp": lambda calls: captured(Mlp(max(1, calls // 3)), torch.randn(4, 8)),
}
