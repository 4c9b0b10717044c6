"""Graphs of a wanted size, as dynamo gives them to a backend."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn


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


class Blocks(nn.Module):
    """Transformer blocks with attention written out."""

    def __init__(self, layers: int, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.ins = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.ups = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.downs = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for number, (first, out, up, down) in enumerate(
            zip(self.ins, self.outs, self.ups, self.downs, strict=True)
        ):
            h = self.norms[2 * number](x)
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in first(h).chunk(3, -1))
            weights = torch.softmax(q @ k.transpose(-1, -2) / 2.0, -1)
            x = x + out((weights @ v).transpose(1, 2).flatten(-2))
            x = x + down(nn.functional.gelu(up(self.norms[2 * number + 1](x))))
        return x


def captured(model: nn.Module, x: Tensor) -> tuple[fx.GraphModule, list[Any]]:
    """The graph of ``model`` as dynamo gives it to a backend."""
    found: list[tuple[fx.GraphModule, list[Any]]] = []

    def keep(graph_module: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        found.append((graph_module, list(example_inputs)))
        return graph_module.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=keep, fullgraph=True)(x)
    return found[0]


GRAPHS: dict[str, Callable[[int], tuple[fx.GraphModule, list[Any]]]] = {
    "chain": chain,
    "mlp": lambda calls: captured(Mlp(max(1, calls // 3)), torch.randn(4, 8)),
    "transformer": lambda calls: captured(Blocks(max(1, calls // 32)), torch.randn(2, 4, 8)),
}
