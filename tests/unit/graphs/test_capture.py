"""What dynamo captures, and what is written of it; test_constructs.py has the round trips."""

from __future__ import annotations

import operator

import pytest
import torch
from constructs import arithmetic_of_sizes, literals, square, views_and_writes
from torch import Tensor, nn

from minidbg import _torch
from minidbg.graphs.copying import NoGraph, capture_by_dynamo, copy_graph_module
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


def test_size_arithmetic_is_compared_in_the_order_of_its_use() -> None:
    gm, inputs = capture_by_dynamo(arithmetic_of_sizes, (*square(), *square(), 3), dynamic=True)
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
    (x,) = square()
    gm, inputs = capture_by_dynamo(literals, (x,))
    for ours, theirs in zip(instantiate(write_module(gm))(*inputs), literals(x), strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_source_lines_name_the_file_of_the_program() -> None:
    gm, _ = capture_by_dynamo(views_and_writes, square())
    line = views_and_writes.__code__.co_firstlineno + 1
    assert f"y = x.clone()  # constructs.py:{line}\n" in write_module(gm).text
