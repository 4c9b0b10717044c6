"""The tests of torch's own minifier (test/functorch/test_minifier.py), held to the same sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from minidbg.reduction.core import Minimized, minimize

aten = torch.ops.aten


def has(target: Any) -> Callable[[fx.GraphModule, Sequence[Any]], bool]:
    return lambda graph_module, inputs: any(node.target is target for node in graph_module.graph.nodes)


def makes_nan(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """The first output holds NaN although no input does."""
    if any(bool(torch.isnan(value).any()) for value in inputs):
        return False
    result = graph_module(*inputs)
    first = result if isinstance(result, Tensor) else result[0]
    return bool(torch.isnan(first).any())


def sizes(result: Minimized) -> tuple[int, int]:
    """All nodes, placeholders and output included, and inputs; as the original tests count them."""
    assert result.certified
    return len(result.graph_module.graph.nodes), len(result.inputs)


def test_has_mul_minifier() -> None:
    def failing(x: Tensor, y: Tensor) -> Tensor:
        y = y / 3
        x = x + 3
        x = x * y
        return x + y

    inputs = [torch.randn(3), torch.randn(3)]
    # torch's minifier leaves (4, 2): two inputs of the same shape, where one will do
    assert sizes(minimize(make_fx(failing)(*inputs), inputs, has(aten.mul.Tensor))) == (3, 1)


def test_has_add_mul() -> None:
    def failing(x: Tensor) -> tuple[Tensor]:
        x = x * 3
        x = x + 5
        x = x.cos()
        zero = x - x
        result = zero / zero
        result = result + 3
        return (result * 2,)

    inputs = [torch.randn(3)]
    assert sizes(minimize(make_fx(failing)(*inputs), inputs, makes_nan)) == (3, 1)


def test_input_returned() -> None:
    def failing(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        a = a.sin()
        c = c.cos()
        d = a * c
        return (a, b, c, d)

    def returns_an_input(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        output = graph_module.graph.output_node()
        return any(node.op == "placeholder" for node in output.all_input_nodes)

    inputs = [torch.randn(3) for _ in range(3)]
    assert sizes(minimize(make_fx(failing)(*inputs), inputs, returns_an_input)) == (2, 1)


def test_tup_use() -> None:
    def failing(a: Tensor, b: Tensor) -> tuple[Tensor]:
        tup = torch.std_mean(a)
        return (tup[0] + b * tup[1],)

    inputs = [torch.randn(3), torch.randn(3)]
    assert sizes(minimize(make_fx(failing)(*inputs), inputs, has(aten.add.Tensor))) == (4, 2)


def test_module() -> None:
    class MockModule(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.relu = torch.nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            y = self.relu(x)
            zero = y - y
            result = zero / zero
            return result + 3

    inputs = [torch.randn(3)]
    assert sizes(minimize(fx.symbolic_trace(MockModule()), inputs, makes_nan)) == (3, 1)
