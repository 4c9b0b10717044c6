"""A minimum is a program that still computes something from its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nn import functional as F

from minidbg.fx.effects import tensors_in
from minidbg.reduction.driver import Minimized, minimize


def simplified(
    function: Callable[..., Any], inputs: Sequence[Any], op: str, least_places: int = 0
) -> Minimized:
    """The simplest graph with a call of ``op`` and room for so many places: nothing else is needed for the failure."""

    def fails(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        elements = {
            is_int: sum(one.numel() for one in inputs if (one.dtype is torch.int64) is is_int)
            for is_int in (True, False)
        }
        has_room = elements[True] >= least_places and elements[False] >= 2 * least_places
        return has_room and any(
            op in (node.target, getattr(node.target, "__name__", "")) for node in graph_module.graph.nodes
        )

    result = minimize(fx.symbolic_trace(function), inputs, fails, simplify=True)
    assert result.certified
    return result


def call_of(result: Minimized, op: str) -> fx.Node:
    (node,) = (
        node
        for node in result.graph_module.graph.nodes
        if op in (node.target, getattr(node.target, "__name__", ""))
    )
    return node


def x(*size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("function", "op", "constants"),
    [
        (lambda a: a.sin().mul_(3.7), "mul_", (0.5,)),
        (lambda a: a * 1.0, "mul", (0.5,)),
        (lambda a: a.add(3.0), "add", (0.5,)),
        (lambda a: a.pow(3), "pow", (2,)),
        (lambda a: a.roll(5, 1), "roll", (2, 1)),
        (lambda a: a.narrow(0, 2, 3), "narrow", (0, 2, 2)),
        (lambda a: a.cumsum(2), "cumsum", (2,)),
        (lambda a: F.leaky_relu(a, 0.3), "leaky_relu", ()),
        (lambda a: a[2:5, 1:7:2], "getitem", ()),
        (lambda a: torch.diff(a), "diff", ()),
        (lambda a: torch.combinations(a[0, 0], 2), "combinations", ()),
        (lambda a: a.std(1), "std", ()),
        (lambda a: torch.logit(a, 0.1), "logit", ()),
        (lambda a: (a.abs() + 1).log().reciprocal(), "reciprocal", ()),
        (lambda a: a.new_ones(3) / a[:3, 0, 0].abs(), "truediv", ()),
    ],
)
def test_constants_get_plain_but_never_neutral_and_no_result_becomes_empty_or_infinite(
    function: Callable[..., Any], op: str, constants: tuple[Any, ...]
) -> None:
    result = simplified(function, [x(8, 8, 8)], op)
    node = call_of(result, op)
    assert node.args[len(node.args) - len(constants) :] == constants
    for value in tensors_in([result.graph_module(*result.inputs)]):
        assert value.numel()
        assert value.isfinite().all()


@pytest.mark.parametrize(
    ("function", "op", "size"),
    [(lambda a: a[:, :0], "getitem", (1, 1)), (lambda a: a / 0.0, "truediv", (1, 1))],
    ids=["empty", "infinite"],
)
def test_a_result_that_was_empty_or_infinite_before_keeps_nothing_large(
    function: Callable[..., Any], op: str, size: tuple[int, ...]
) -> None:
    assert simplified(function, [x(8, 8)], op).inputs[0].shape == size


def places(*values: int) -> Tensor:
    return torch.tensor(values)


WRITES: dict[str, Callable[..., Any]] = {
    "index_put_": lambda a, i, v: a.clone().index_put_((i,), v),
    "index_copy": lambda a, i, v: a.index_copy(0, i, v),
    "scatter": lambda a, i, v: a.scatter(0, i, v),
}


@pytest.mark.parametrize("op", WRITES)
def test_places_to_write_to_stay_distinct(op: str) -> None:
    result = simplified(WRITES[op], [x(16), places(11, 3, 14), x(3)], op, least_places=3)
    (index,) = (value for value in result.inputs if value.dtype is torch.int64)
    assert torch.unique(index).numel() == 3
    assert max(value.numel() for value in result.inputs) < 16
