"""Graphs from dynamo, written, and given back by dynamo unchanged."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs_to_write import assert_round_trip
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from minidbg import _torch
from minidbg.graphs.attributes import by_name
from minidbg.graphs.capture import NoGraph, capture_by_dynamo
from minidbg.graphs.copying import copy_graph_module
from minidbg.graphs.size import call_targets
from minidbg.graphs.source import instantiate, write_module


def test_capture_gives_the_graph_and_the_live_inputs_and_runs_nothing() -> None:
    model = nn.BatchNorm1d(3)
    x = torch.randn(2, 3)
    gm, inputs = capture_by_dynamo(model, (x,))
    assert any(value is model.weight for value in inputs)
    assert any(value is x for value in inputs)
    assert int(model.num_batches_tracked) == 0
    gm(*inputs)
    assert int(model.num_batches_tracked) == 1


def test_capture_with_symbolic_shapes_gives_plain_numbers() -> None:
    _, inputs = capture_by_dynamo(lambda x: x * x.shape[0], (torch.ones(5, 2),), dynamic=True)
    assert 5 in [value for value in inputs if isinstance(value, int)]


def test_one_function_can_be_captured_any_number_of_times() -> None:
    def double(x: Tensor) -> Tensor:
        return x * 2

    for _ in range(12):
        capture_by_dynamo(double, (torch.ones(2),))


def test_a_function_without_operations_has_no_graph() -> None:
    with pytest.raises(NoGraph):
        capture_by_dynamo(lambda x: 3, (torch.ones(2),))


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding="same")
        self.batch = nn.BatchNorm2d(8)
        self.group = nn.GroupNorm(2, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.dropout(F.relu(self.group(self.batch(self.conv(x))), inplace=True), 0.1, self.training)
        return F.cross_entropy(self.head(hidden.mean((2, 3))), torch.tensor([0, 1]))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x.logsumexp(-1).sum()


def views_and_writes(x: Tensor) -> tuple[Tensor, ...]:
    y = x.clone()
    y += 1
    y[0] = 1
    y[:, 1] += 2
    y[x > 0] = 0
    y[-1:, ::2].mul_(2)
    y.masked_fill_(y > 1, float("-inf"))
    return y, x[None, ..., 0], x[1:-1], x.T, y.data + 1, x[torch.tensor([0, 1])]


def many_results(x: Tensor) -> dict[str, Any]:
    values, places = x.topk(2, dim=1, largest=False)
    return {"top": [values, places], "sorted": torch.sort(x).values, "parts": x.split([1, 3]), "s": x.size(0)}


def modes(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        y = x @ x
        with torch.autocast("cpu", enabled=False):
            z = x @ x
    with torch.no_grad():
        w = z.sum()
    with torch.inference_mode():
        v = z * 2
    return y + z + w + v.clone()


def branches(x: Tensor) -> Tensor:
    weight = torch.ones(4) * 3

    def inner(a: Tensor) -> Tensor:
        return torch.cond(a.max() > 1, lambda b: b + weight, lambda b: b.cos(), (a,))

    return torch.cond(x.sum() > 0, lambda a: checkpoint(torch.sin, a, use_reentrant=False), inner, (x,))


def loop(x: Tensor) -> Any:
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * 2), (torch.tensor(0), x))


def symbols(a: Tensor, b: Tensor, n: int) -> tuple[Any, ...]:
    size = a.shape[0] * 2 + b.size(1) // 3
    return (
        a.view(-1).sum() * size,
        a.reshape(a.shape[1], -1),
        torch.zeros(math.ceil(size / 3)),
        b[: n - 1] * n,
    )


def derivative(x: Tensor) -> Tensor:
    return torch.vmap(lambda row: row.sin().sum())(x) + torch.func.grad(lambda r: (r * r).sum())(x[0]).sum()


def literals(x: Tensor) -> tuple[Tensor, ...]:
    return (
        x.to("cpu", torch.half, copy=True),
        torch.empty_like(x, memory_format=torch.contiguous_format).zero_(),
        torch.full((2,), complex(float("inf"), -0.0)),
        torch.einsum("ij,jk->ik", x, x),
        torch.div(x, 2, rounding_mode="floor"),
        torch.tensor([[1, 2], [3, 4]]).float(),
        F.pad(x, (1, 1), value=float("nan")),
        2**x - -1 * (1 - x) // 3 % 5,
    )


SQUARE = torch.randn(4, 4)
GRAPHS: list[tuple[Callable[..., Any], tuple[Any, ...], bool | None]] = [
    (Norms().train(), (torch.randn(2, 3, 5, 5),), None),
    (Attention().train(), (torch.randn(2, 3, 16),), None),
    (views_and_writes, (SQUARE,), None),
    (many_results, (SQUARE,), None),
    (modes, (SQUARE.clone().requires_grad_(),), None),
    (branches, (SQUARE.clone().requires_grad_(),), None),
    (loop, (SQUARE,), None),
    (symbols, (SQUARE, SQUARE.clone(), 3), True),
    (branches, (SQUARE,), True),
    (derivative, (SQUARE,), None),
    (literals, (SQUARE,), None),
]


def name_of(value: Any) -> str:
    return getattr(value, "__name__", type(value).__name__) if callable(value) else ""


@pytest.mark.parametrize(("function", "args", "dynamic"), GRAPHS, ids=name_of)
def test_dynamo_hands_over_the_graph_that_was_written(
    function: Callable[..., Any], args: tuple[Any, ...], dynamic: bool | None
) -> None:
    gm, inputs = capture_by_dynamo(function, args, dynamic=dynamic)
    assert_round_trip(gm, inputs)
    if function is derivative and torch.__version__.startswith("2.11"):
        pytest.skip("dynamo of 2.11 does not take back what torch.func.grad leaves in a graph")
    again, _ = capture_by_dynamo(
        instantiate(write_module(gm, constant_expression=by_name)), inputs, dynamic=dynamic
    )
    # From 2.14 on dynamo writes arithmetic on sizes in an order of its own.
    compared = _torch.call_targets if dynamic else call_targets
    assert list(compared(again)) == list(compared(gm))


def test_size_arithmetic_is_compared_in_the_order_of_its_use() -> None:
    gm, inputs = capture_by_dynamo(symbols, (SQUARE, SQUARE.clone(), 3), dynamic=True)
    other = copy_graph_module(gm)
    named = {node.name: node for node in other.graph.nodes}
    named["mul"].prepend(named["floordiv"])
    assert call_targets(other) != call_targets(gm)
    assert _torch.call_targets(other) == _torch.call_targets(gm)
    for node in other.graph.nodes:
        node.meta.clear()  # as in a graph that was read from a script
    assert _torch.call_targets(other, inputs) == _torch.call_targets(gm)
    named["mul"].target = operator.sub
    assert _torch.call_targets(other, inputs) != _torch.call_targets(gm)


def test_a_written_graph_computes_the_same_values() -> None:
    gm, inputs = capture_by_dynamo(literals, (SQUARE,))
    for ours, theirs in zip(instantiate(write_module(gm))(*inputs), literals(SQUARE), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_source_lines_name_this_file() -> None:
    gm, inputs = capture_by_dynamo(views_and_writes, (SQUARE,))
    line = views_and_writes.__code__.co_firstlineno + 1
    assert f"y = x.clone()  # test_capture.py:{line}\n" in write_module(gm, inputs=inputs).text
