"""The parts by which a plainer program is held against the one before: what a result tells, and indices that stay distinct."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nested import nested_tensor

from minidbg.fx.record import Recording
from minidbg.reduction.defined import (
    are_distinct,
    indices_within,
    is_as_full,
    keeps_its_results,
    open_points,
)


@pytest.mark.parametrize(
    ("value", "distinct"),
    [
        (torch.tensor([2, 0, 1]), True),
        (torch.tensor([2, 0, 2]), False),
        (torch.tensor([[2, 0], [1, 3]], dtype=torch.uint8), True),
        (torch.tensor([2]), False),
        (torch.tensor([], dtype=torch.int64), False),
        (torch.tensor([2.0, 0.0]), False),
        (torch.tensor([2 + 0j, 0j]), False),
        (torch.tensor([True, False]), False),
        (torch.tensor([2, 0], device="meta"), False),
        (torch.tensor([[0, 2], [3, 0]]).to_sparse(), False),
    ],
)
def test_distinct_whole_numbers_may_be_places_to_write_to(value: Tensor, distinct: bool) -> None:
    assert are_distinct(value) is distinct


@pytest.mark.parametrize(
    ("indices", "most", "expected"),
    [
        ([7, 3, 5], 9, [7, 3, 5]),
        ([7, 3, 5], 4, [2, 0, 1]),
        ([7, 3, 5], 2, [2, 0, 1]),
        ([7, 3, 5], 1, [1, 1, 1]),
        ([7, 3, 7], 5, [5, 3, 5]),
        ([[7, 3], [5, 9]], 3, [[2, 0], [1, 3]]),
    ],
    ids=["inside", "room for all", "just room for all", "too few places", "not distinct before", "shape"],
)
def test_indices_come_back_inside_and_stay_distinct_where_there_is_room(
    indices: list[Any], most: int, expected: list[Any]
) -> None:
    assert indices_within(torch.tensor(indices), most).tolist() == expected


def recorded(program: Callable[..., Any], *inputs: Any) -> Recording:
    return Recording(fx.symbolic_trace(program), inputs)


ONES, X = torch.ones(2, 3), torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, 0.0]])

RESULTS: dict[str, tuple[Callable[..., Any], Callable[..., Any], bool]] = {
    "another number": (lambda x: x * 3.0, lambda x: x * 0.5, True),
    "a zero": (lambda x: x * 3.0, lambda x: x * 0.0, False),
    "a zero that was one": (lambda x: x * 0.0, lambda x: x * 0.0, True),
    "an infinity": (lambda x: x / 2.0, lambda x: x / 0.0, False),
    "nothing": (lambda x: x[:, :2], lambda x: x[:, :0], False),
    "nothing that was nothing": (lambda x: x[:, :0], lambda x: x[:1, :0], True),
    "a smaller part": (lambda x: x[:, :2], lambda x: x[:, :1], True),
    "another rank": (lambda x: x[0], lambda x: x[0, 0], False),
    "another dtype": (lambda x: x.to(torch.float64), lambda x: x.to(torch.int64), False),
    "fewer results": (lambda x: x.chunk(3, 1), lambda x: x.chunk(1, 1), False),
    "as many results": (lambda x: x.chunk(3, 1), lambda x: x[:, :3].chunk(3, 1), True),
}


@pytest.mark.parametrize(("before", "after", "keeps"), RESULTS.values(), ids=RESULTS)
def test_a_plainer_program_still_gives_what_can_be_told_right_from_wrong(
    before: Callable[..., Any], after: Callable[..., Any], keeps: bool
) -> None:
    assert keeps_its_results(recorded(before, X), recorded(after, X)) is keeps


CHANGED: dict[str, tuple[Callable[..., Any], Callable[..., Any], bool]] = {
    "times one": (lambda x: x.mul(3.0), lambda x: x.mul(1.0), False),
    "plus nothing": (lambda x: x.add(3.0), lambda x: x.add(0.0), False),
    "a call that did nothing before": (lambda x: x.mul(1.0), lambda x: x.mul(1.0), True),
    "a dimension with itself": (lambda x: x.transpose(0, 1), lambda x: x.transpose(0, 0), False),
    "a clamp to one number": (lambda x: x.clamp(-1.0, 1.0), lambda x: x.clamp(1.0, 1.0), False),
    "a clamp of nothing": (lambda x: x.clamp(-1.0, 1.0), lambda x: x.clamp(-9.0, 9.0), False),
    "another power": (lambda x: x.pow(3), lambda x: x.pow(2), True),
}


@pytest.mark.parametrize(("before", "after", "keeps"), CHANGED.values(), ids=CHANGED)
def test_the_call_whose_constant_is_plainer_still_does_something(
    before: Callable[..., Any], after: Callable[..., Any], keeps: bool
) -> None:
    one, two = recorded(before, X), recorded(after, X)
    (changed,) = (node.name for node in two.nodes if node.op == "call_method")
    assert keeps_its_results(one, two, changed) is keeps


def test_operands_of_ones_do_not_hide_that_a_power_of_one_does_nothing() -> None:
    one, two = recorded(lambda x: x.pow(3), ONES), recorded(lambda x: x.pow(1), ONES)
    assert not keeps_its_results(one, two, "pow_1")
    assert keeps_its_results(one, recorded(lambda x: x.pow(2), ONES), "pow_1")


@pytest.mark.parametrize(
    ("before", "after", "full"),
    [
        (lambda x: x[:, :2], lambda x: x[:, :1], True),
        (lambda x: x[:, :2], lambda x: x[:, :0], False),
        (lambda x: x[:, :0], lambda x: x[:, :0], True),
        (lambda x: x / 2.0, lambda x: x / 0.0, False),
        (lambda x: x / 0.0, lambda x: x / 0.0, True),
        (lambda x: x * 3.0, lambda x: x * 0.0, True),
    ],
    ids=["smaller", "empty", "empty before", "infinite", "infinite before", "zero"],
)
def test_fewer_elements_are_as_full_as_long_as_there_are_some_and_they_are_finite(
    before: Callable[..., Any], after: Callable[..., Any], full: bool
) -> None:
    assert is_as_full(recorded(before, X), recorded(after, X)) is full


def test_what_has_no_such_ops_is_taken_to_say_as_much() -> None:
    jagged = nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    one = recorded(lambda x: x * 2.0, jagged)
    assert keeps_its_results(one, one)
    assert is_as_full(one, one)


OPEN: dict[str, tuple[Callable[..., Any], tuple[Any, ...], bool]] = {
    "put": (lambda x, i, v: x.clone().put_(i, v), (X, torch.tensor([1, 1]), torch.ones(2)), True),
    "put of each once": (lambda x, i, v: x.clone().put_(i, v), (X, torch.tensor([1, 2]), torch.ones(2)), False),
    "put that adds": (
        lambda x, i, v: x.clone().put_(i, v, accumulate=True),
        (X, torch.tensor([1, 1]), torch.ones(2)),
        False,
    ),
    "scatter that reduces": (
        lambda x, i, v: x.scatter(0, i, v, reduce="add"),
        (torch.zeros(4), torch.tensor([1, 1]), torch.ones(2)),
        False,
    ),
    "two equal largest": (lambda x: x.argmax(), (torch.ones(3),), True),
    "one largest": (lambda x: x.argmax(), (torch.arange(3.0),), False),
    "what eager does not run": (lambda x: x @ x, (X,), False),
}  # fmt: skip


@pytest.mark.parametrize(("program", "inputs", "is_open"), OPEN.values(), ids=OPEN)
def test_what_torch_leaves_open_in_a_program_is_told(
    program: Callable[..., Any], inputs: tuple[Any, ...], is_open: bool
) -> None:
    state = torch.get_rng_state()
    before = [value.clone() for value in inputs]
    assert bool(open_points(fx.symbolic_trace(program), inputs)) is is_open
    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, before, inputs)), "inputs are only read"
