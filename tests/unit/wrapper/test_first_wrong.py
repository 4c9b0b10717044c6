"""Which node of a graph with all values as outputs is the first that the backend gets wrong."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from minidbg.wrapper.verify_runs import first_as_far_off


def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    steps = x.floor()
    total = steps.sum()
    beside = y + 1
    return beside * (y * total)


@pytest.mark.parametrize(
    ("floor", "total", "first"),
    [(1.0, 3.0, "floor"), (0.0, 3.0, "sum_1"), (0.0, 0.0, "mul"), (1e-7, 1e-6, "mul")],
)
def test_the_first_value_on_the_way_that_is_as_far_off_is_the_first_wrong_one(
    floor: float, total: float, first: str
) -> None:
    """One that passes for rounding is named by what it spoils; what is not on the way says nothing, nor does a rounding error."""
    graph = fx.symbolic_trace(scaled).graph
    calls = [node for node in graph.nodes if node.op.startswith("call")]
    assert [node.name for node in calls] == ["floor", "sum_1", "add", "mul", "mul_1"]
    exact = [torch.full((3,), 9.0), torch.tensor(27.0), torch.ones(3), torch.full((3,), 27.0), torch.ones(3)]
    off = [floor, total, 5.0, 3.0, 3.0]
    labels = {f"output {place}": node for place, node in enumerate(calls)}
    wrong = [value + error for value, error in zip(exact, off, strict=True)]
    found = first_as_far_off(labels, "output 3", {"outputs": wrong}, {"outputs": exact})
    assert found is not None
    assert found.name == first


def test_values_of_another_form_and_integers_say_nothing() -> None:
    graph = fx.symbolic_trace(lambda x: (x.argmax() * x).sum()).graph
    calls = [node for node in graph.nodes if node.op.startswith("call")]
    exact = [torch.tensor(3), torch.ones(3), torch.tensor(3.0)]
    wrong = [torch.tensor(2), torch.ones(4), torch.tensor(9.0)]
    labels = {f"output {place}": node for place, node in enumerate(calls)}
    found = first_as_far_off(labels, "output 2", {"outputs": wrong}, {"outputs": exact})
    assert found is not None
    assert found.name == "sum_1"
