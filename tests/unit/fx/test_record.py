"""Values inside a graph, as they are at the moment of use."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from minidbg import torch_internals
from minidbg.fx.copying import capture_by_dynamo
from minidbg.fx.effects import FactType
from minidbg.fx.record import EagerFailure, Recording


def recording(function: Callable[..., Any], *inputs: Any) -> Recording:
    return Recording(fx.symbolic_trace(function), inputs)


def node(found: Recording, name: str) -> fx.Node:
    return next(node for node in found.nodes if node.name == name)


def value(found: Recording, name: str, at: str) -> Any:
    """The value of the node ``name`` just before the node ``at`` runs."""
    return found.values([(found.index[node(found, at)], node(found, name))])[0]


def test_inputs_are_passed_on_without_a_copy() -> None:
    x = torch.ones(3)
    assert value(recording(lambda x: x.sin(), x), "x", "sin") is x


def writes(x: Tensor) -> Tensor:
    y = x.sin()
    first = y.cos()
    y.add_(1)
    view = y.view(-1)
    view.mul_(2)
    return first + y.tan()


def test_value_is_as_it_was_at_the_moment_of_use() -> None:
    found = recording(writes, torch.zeros(2, 2))
    assert torch.equal(value(found, "sin", "cos"), torch.zeros(2, 2))
    assert torch.equal(value(found, "sin", "add_"), torch.zeros(2, 2))
    assert torch.equal(value(found, "sin", "tan"), torch.full((2, 2), 2.0))


def test_values_of_levels_of_vmap_and_grad_are_had_when_the_levels_are_closed() -> None:
    rows = torch.vmap(torch.func.jacrev(lambda row: row.tanh().cumsum(0)))
    found = Recording(*capture_by_dynamo(rows, (torch.randn(3, 4),)))
    moments = [(found.index[one] + 1, one) for one in found.nodes if one.op.startswith("call")]
    assert any(found.facts[one].type is FactType.OPAQUE for _, one in moments)
    assert len([found.values([moment]) for moment in moments]) == len(moments)


def test_values_of_one_moment_keep_sharing_their_storage() -> None:
    found = recording(writes, torch.zeros(2, 2))
    at = found.index[node(found, "mul_")]
    y, view = found.values([(at, node(found, "sin")), (at, node(found, "view"))])
    assert y.untyped_storage().data_ptr() == view.untyped_storage().data_ptr()


def test_running_statistics_of_the_caller_are_never_written() -> None:
    mean, variance = torch.zeros(3), torch.ones(3)
    normalise = lambda x, m, v: torch.nn.functional.batch_norm(x, m, v, None, None, True).sin()  # noqa: E731
    found = recording(normalise, torch.randn(4, 3), mean, variance)
    assert found.failure is None
    assert torch.equal(mean, torch.zeros(3))
    assert [writer.name for writer in found.writes_to(node(found, "m"), 99)] == ["batch_norm"]


def test_submodules_with_statistics_are_run_as_copies() -> None:
    module = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.ReLU())
    found = Recording(fx.symbolic_trace(module), (torch.randn(4, 3),))
    assert found.failure is None
    assert int(module[0].num_batches_tracked) == 0


def test_random_values_are_the_same_each_time_and_the_callers_stream_is_left_alone() -> None:
    found = recording(lambda x: torch.rand_like(x).sin().cos(), torch.ones(4))
    state = torch.get_rng_state()
    later = value(found, "rand_like", "cos").clone()
    assert torch.equal(later, value(found, "rand_like", "sin")), "an earlier moment is computed anew"
    assert torch.equal(state, torch.get_rng_state())


def test_value_holds_no_autograd_history_but_still_requires_grad() -> None:
    x = torch.ones(3, requires_grad=True)
    found = value(recording(lambda x: x.sin().cos(), x), "sin", "cos")
    assert found.is_leaf
    assert found.requires_grad


def test_modes_in_the_graph_are_in_force_and_gone_afterwards() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    enter, leave = torch_internals.AUTOCAST_FUNCTIONS
    opened = graph.call_function(enter, ("cpu", torch.bfloat16, True, None))
    product = graph.call_function(torch.mm, (x, x))
    inside = graph.call_function(torch.mm, (product, product))
    graph.call_function(leave, (opened,))
    graph.call_function(torch_internals.SET_GRAD, (False,))
    graph.output((inside,))
    found = Recording(fx.GraphModule(torch.nn.Module(), graph), (torch.eye(2),))
    assert found.facts[product].traits[0] is torch.bfloat16
    (stopped_inside,) = found.values([(found.index[inside], product)])
    assert stopped_inside.dtype is torch.bfloat16
    (resumed_inside,) = found.values([(found.index[inside] + 1, inside)])
    assert resumed_inside.dtype is torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")
    assert torch.is_grad_enabled()


def test_failing_graph_gives_the_values_before_the_failure() -> None:
    found = recording(lambda x: x.sin().view(7).cos(), torch.ones(3))
    assert str(found.failure).startswith("%view ")
    assert torch.equal(value(found, "sin", "view"), torch.ones(3).sin())
    with pytest.raises(EagerFailure, match="view"):
        value(found, "view", "cos")


def test_facts_tell_tensors_numbers_tuples_and_the_rest_apart() -> None:
    def function(x: Tensor) -> Any:
        parts = x.split(1)
        return parts, x.size(0), x.shape, x.sum()

    kinds = {node.name: fact.type for node, fact in recording(function, torch.ones(2, 2)).facts.items()}
    assert kinds == {
        "x": FactType.TENSOR,
        "split": FactType.TUPLE,
        "size": FactType.NUMBER,
        "getattr_1": FactType.TUPLE,
        "sum_1": FactType.TENSOR,
    }


def test_modes_around_the_graph_are_those_asked_for() -> None:
    graph_module = fx.symbolic_trace(lambda x: torch.mm(x, x).sin())
    around = functools.partial(torch.autocast, "cpu", dtype=torch.bfloat16)
    found = Recording(graph_module, (torch.eye(2),), around=around)
    assert value(found, "mm", "sin").dtype is torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")
    x = torch.ones(3, requires_grad=True)
    found = Recording(fx.symbolic_trace(lambda x: x.sin().cos()), (x,), around=torch.no_grad)
    assert not value(found, "sin", "cos").requires_grad
    assert torch.is_grad_enabled()
