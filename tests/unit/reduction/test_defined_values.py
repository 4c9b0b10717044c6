"""The parts by which a smaller program is held against the one before: results that are as full, and indices that stay distinct."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nested import nested_tensor

from minidbg.fx.record import Recording
from minidbg.reduction.simplify import are_distinct, indices_within, is_as_full


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


X = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, 0.0]])


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
    assert is_as_full(one, one)
