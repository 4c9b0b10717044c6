"""Levels of vmap, jvp and grad go where the failure does not need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from graphs_to_reduce import call_names
from torch import Tensor, fx
from torch.func import grad, jvp, vmap

from minidbg.fx.copying import capture_by_dynamo
from minidbg.fx.nested import without_levels
from minidbg.reduction.core import Minimized, minimize


def calls(word: str) -> Callable[[fx.GraphModule, Sequence[Any]], bool]:
    def fails(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        calls = (node for node in graph_module.graph.nodes if node.op.startswith("call"))
        return any(word in str(node.target) for node in calls)

    return fails


def reduced(function: Callable[..., Any], args: Sequence[Tensor], word: str) -> Minimized:
    return minimize(*capture_by_dynamo(function, tuple(args)), calls(word))


def per_sample(w: Tensor, x: Tensor) -> Tensor:
    return vmap(grad(lambda w, x: torch.logsumexp(w * x, 0)), in_dims=(None, 0))(w, x).relu().sum(0)


def twice(x: Tensor, w: Tensor) -> Any:
    return vmap(lambda row: vmap(lambda element: element.sinh().cos())(row).sum())(x) + w.sum()


def along(x: Tensor, w: Tensor) -> Any:
    return jvp(lambda y: (y.sinh() * w).cos(), (x,), (x + 1,))


@pytest.mark.parametrize(
    ("function", "sizes", "word"),
    [
        (per_sample, [(5,), (4, 5)], "logsumexp"),
        (twice, [(3, 4), (2,)], "sinh"),
        (along, [(5,), (5,)], "sinh"),
    ],
)
def test_one_op_that_fails_anywhere_is_left_without_levels(
    function: Callable[..., Any], sizes: Sequence[Any], word: str
) -> None:
    result = reduced(function, [torch.randn(size) for size in sizes], word)
    assert result.certified
    (node,) = (node for node in result.graph_module.graph.nodes if node.op.startswith("call"))
    assert f"aten.{word}.default" in str(node.target)
    assert node.stack_trace is not None
    result.graph_module(*result.inputs)


def test_a_level_that_is_needed_stays() -> None:
    result = reduced(twice, [torch.randn(3, 4), torch.randn(2)], "_vmap_increment_nesting")
    assert result.certified
    assert any("increment_nesting" in name for name in call_names(result.graph_module))


def test_without_levels_a_graph_computes_the_same() -> None:
    for function in (per_sample, twice, along):
        args = (
            (torch.randn(5), torch.randn(4, 5))
            if function is per_sample
            else (torch.randn(3, 5), torch.randn(5))
        )
        graph_module, inputs = capture_by_dynamo(function, args)
        plain = without_levels(graph_module, inputs)
        assert plain is not None
        assert not any("nesting" in name for name in call_names(plain))
        torch.testing.assert_close(tuple(plain(*inputs)), tuple(graph_module(*inputs)))
        assert not set(call_names(plain)) & set(call_names(graph_module))
        assert without_levels(plain, inputs) is None
