"""A minimum is a program whose result eager defines, and one that does what it did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nn import functional as F

from minidbg.fx.effects import tensors_in
from minidbg.reduction.core import Minimized, minimize
from minidbg.reduction.defined import open_points
from minidbg.source.describing import describe
from minidbg.source.fills import FillKind, fit
from minidbg.source.specs import Exactness
from minidbg.source.tensors import materialise


def simplified(function: Callable[..., Any], inputs: Sequence[Any], op: str) -> Minimized:
    """The simplest graph with a call of ``op``: nothing else is needed for the failure."""

    def fails(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        return any(
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
        (lambda a: a.unfold(0, 4, 2), "unfold", (0, 1, 1)),
        (lambda a: a.unfold(1, 3, 2), "unfold", (0, 1, 1)),
        (lambda a: a.sin().mul_(3.7), "mul_", (0.5,)),
        (lambda a: a * 0.1, "mul", (0.5,)),
        (lambda a: a / 3.0, "truediv", (0.5,)),
        (lambda a: a.add(3.0), "add", (1.0,)),
        (lambda a: a.transpose(1, 2), "transpose", (0, 1)),
        (lambda a: a.narrow(0, 2, 3), "narrow", (0, 0, 1)),
        (lambda a: a.topk(5)[0], "topk", (1,)),
        (lambda a: a.repeat_interleave(3, 0), "repeat_interleave", (1,)),
        (lambda a: a.new_full((8, 8), 3.5) + a.sum(), "new_full", ((1, 1), 1.0)),
        (lambda a: F.leaky_relu(a, 0.3), "leaky_relu", ()),
        (lambda a: a.clamp(-0.3, 0.4), "clamp", ()),
        (lambda a: a.cumsum(2), "cumsum", (0,)),
    ],
)
def test_constants_are_as_plain_as_leaves_something_to_be_wrong(
    function: Callable[..., Any], op: str, constants: tuple[Any, ...]
) -> None:
    result = simplified(function, [x(8, 8, 8)], op)
    node = call_of(result, op)
    assert node.args[len(node.args) - len(constants) :] == constants
    for value in tensors_in([result.graph_module(*result.inputs)]):
        assert value.numel()
        assert value.isfinite().all()
        assert (value != 0).any() or value.dtype is torch.int64


def whole(*size: int) -> Tensor:
    return torch.randint(1, 50, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("function", "inputs", "op", "constants"),
    [
        (lambda a: a.abs() ** 2.5, [x(8, 8)], "pow", (0.5,)),
        (lambda a: a.pow(3), [x(8, 8)], "pow", (2,)),
        (lambda a: a & 12, [whole(8, 8)], "and_", (1, 2)),
        (lambda a, b: torch.lerp(a, b, 0.3), [x(8, 8), x(8, 8).sin()], "lerp", (0.5,)),
        (lambda a: torch.roll(a, 3, 1), [x(8, 8)], "roll", (1,)),
        (lambda a: torch.full_like(a, 3.5) * a, [x(8, 8)], "full_like", (0.5, 1.0)),
    ],
)
def test_a_constant_leaves_something_to_be_computed_from_other_operands_than_ones(
    function: Callable[..., Any], inputs: Sequence[Tensor], op: str, constants: tuple[Any, ...]
) -> None:
    assert call_of(simplified(function, inputs, op), op).args[-1] in constants


@pytest.mark.parametrize(
    ("function", "op"),
    [
        (lambda a: a[2:5, 1:7:2], "getitem"),
        (lambda a: torch.diff(a), "diff"),
        (lambda a: torch.combinations(a[0], 2), "combinations"),
        (lambda a: a.std(1), "std"),
        (lambda a: torch.logit(a, 0.1), "logit"),
        (lambda a: (a.abs() + 1).log().reciprocal(), "reciprocal"),
        (lambda a: a.new_ones(3) / a[:3, 0].abs(), "truediv"),
    ],
)
def test_no_result_becomes_empty_or_infinite(function: Callable[..., Any], op: str) -> None:
    result = simplified(function, [x(8, 8)], op)
    for value in tensors_in([result.graph_module(*result.inputs)]):
        assert value.numel()
        assert value.isfinite().all()


def test_a_zero_that_the_program_had_stays() -> None:
    result = simplified(lambda a: a.unfold(0, 0, 3), [x(8)], "unfold")
    assert call_of(result, "unfold").args[1:] == (0, 0, 1)


def places(*values: int) -> Tensor:
    return torch.tensor(values)


WRITES: dict[str, Callable[..., Any]] = {
    "index_put_": lambda a, i, v: a.clone().index_put_((i,), v),
    "index_copy": lambda a, i, v: a.index_copy(0, i, v),
    "scatter": lambda a, i, v: a.scatter(0, i, v),
}


@pytest.mark.parametrize("op", WRITES)
def test_places_to_write_to_stay_distinct(op: str) -> None:
    result = simplified(WRITES[op], [x(16), places(11, 3, 14), x(3)], op)
    (index,) = (value for value in result.inputs if value.dtype is torch.int64)
    assert torch.unique(index).numel() == index.numel()
    assert not open_points(result.graph_module, result.inputs)


def test_places_of_two_indices_stay_distinct_together() -> None:
    """Neither index is by itself: one in the place of both would write to a place twice."""

    def write(a: Tensor, i: Tensor, j: Tensor, v: Tensor) -> Tensor:
        return a.clone().index_put_((i, j), v)

    def fails(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        return "index_put_" in graph_module.code and inputs[-1].numel() == 3

    inputs = [x(4, 4), places(0, 0, 2), places(1, 3, 1), x(3)]
    result = minimize(fx.symbolic_trace(write), inputs, fails, simplify=True)
    assert not open_points(result.graph_module, result.inputs)
    (index, *_) = (value for value in result.inputs if value.dtype is torch.int64)
    assert index.numel() == 3


def test_indices_that_nothing_writes_to_may_become_equal() -> None:
    result = simplified(lambda a, i: a.index_select(0, i), [x(16), places(11, 3, 14)], "index_select")
    assert [value.tolist() for value in result.inputs] == [[1.0, 1.0], [1]]


@pytest.mark.parametrize("op", ["argsort", "argmax"])
def test_no_elements_become_equal_whose_order_is_the_result(op: str) -> None:
    def fails(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        return op in graph_module.code and inputs[0].numel() >= 4

    result = minimize(fx.symbolic_trace(lambda a: getattr(a, op)()), [x(8)], fails, simplify=True)
    (value,) = result.inputs
    assert torch.unique(value).numel() == value.numel() == 4


def test_what_the_program_left_open_may_stay_open() -> None:
    a = torch.tensor([1.5, 1.5, 1.5, 0.5])

    def fails(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        return "argmax" in graph_module.code and inputs[0].numel() >= 2

    result = minimize(fx.symbolic_trace(lambda a: a.argmax()), [a], fails, simplify=True)
    assert torch.equal(result.inputs[0], torch.ones(2))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("size", [(20,), (4, 5)])
def test_distinct_integers_are_made_anew_as_distinct_ones(dtype: torch.dtype, size: tuple[int, ...]) -> None:
    value = (torch.randperm(60, generator=torch.Generator().manual_seed(0))[:20] + 7).to(dtype).reshape(size)
    assert fit(value).kind is FillKind.DISTINCT
    (made,) = materialise(describe((value,), ["i"], Exactness.SEEDED))
    assert (made.dtype, made.shape) == (value.dtype, value.shape)
    assert torch.unique(made).numel() == 20
    assert int(value.min()) <= int(made.min())
    assert int(made.max()) <= int(value.max())


def test_what_is_written_to_twice_is_told() -> None:
    def told(function: Callable[..., Any], *inputs: Any) -> bool:
        return bool(open_points(fx.symbolic_trace(function), inputs))

    ones = torch.ones(3)
    for again, index in ((True, places(1, 1, 2)), (False, places(1, 0, 2))):
        for write in WRITES.values():
            assert told(write, x(4), index, ones) is again
        assert told(lambda a, i, v: a.clone().put_(i, v), x(4), index, ones) is again
    index = places(1, 1, 2)
    assert not told(lambda a, i, v: a.scatter_add(0, i, v), x(4), index, ones)
    assert not told(lambda a, i, v: a.clone().index_put_((i,), v, accumulate=True), x(4), index, ones)
    assert not told(lambda a, i: a.scatter(0, i, 2.0), x(4), index)
    assert not told(lambda a, i: a[i], x(4), index)
