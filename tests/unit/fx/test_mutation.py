"""Which inputs a graph may write to."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.graphs_to_write import graph_of
from torch import Tensor, fx, nn

from minidbg.fx.copying import capture_by_dynamo
from minidbg.fx.mutation import mutated_placeholders, written_attributes


def written_inputs(build: Callable[..., Any], root: Any = None) -> set[int]:
    """Of a graph without meta: only names and schemas can tell."""
    return set(mutated_placeholders(graph_of(build, inputs=3, root=root)))


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda g, x, y, z: g.call_method("add_", (x, y)), {0}),
        (lambda g, x, y, z: g.call_method("add", (x, y)), set()),
        (lambda g, x, y, z: g.call_method("__iadd__", (y, x)), {1}),
        (lambda g, x, y, z: g.call_function(operator.iadd, (x, y)), {0}),
        (lambda g, x, y, z: g.call_function(operator.iand, (y, x)), {1}),
        (lambda g, x, y, z: g.call_function(operator.setitem, (z, 0, y)), {2}),
        (lambda g, x, y, z: g.call_function(torch.add, (x, y), {"out": z}), {2}),
        (lambda g, x, y, z: g.call_function(torch.sort, (x,)), set()),
        (lambda g, x, y, z: g.call_function(torch.ops.aten.add_.Tensor, (y, x)), {1}),
        (lambda g, x, y, z: g.call_function(torch._foreach_add_, ([x, y], 1)), {0, 1}),
        (lambda g, x, y, z: g.call_function(F.relu, (x,), {"inplace": True}), {0}),
        (lambda g, x, y, z: g.call_function(F.relu, (x,), {"inplace": False}), set()),
        (lambda g, x, y, z: g.call_function(F.dropout, (x, 0.5, True, True)), {0}),
        (lambda g, x, y, z: g.call_function(F.leaky_relu, (x, 0.1, True)), {0}),
        (lambda g, x, y, z: g.call_function(F.batch_norm, (x, y, z), {"training": True}), {1, 2}),
        (lambda g, x, y, z: g.call_function(F.batch_norm, (x, y, z, None, None, False)), set()),
        (lambda g, x, y, z: g.call_function(F.embedding, (x, y, None, 1.0)), {0, 1}),
        (lambda g, x, y, z: g.call_function(F.embedding, (x, y, None, None)), set()),
        (lambda g, x, y, z: g.call_function(lambda *a: a, (x, [z])), {0, 2}),
        (lambda g, x, y, z: g.call_method("add_", (g.call_method("view", (x, -1)), 1)), {0}),
        (lambda g, x, y, z: g.call_method("add_", (g.call_method("reshape", (x, -1)), 1)), {0}),
        (lambda g, x, y, z: g.call_method("add_", (g.call_function(getattr, (x, "T")), 1)), {0}),
        (lambda g, x, y, z: g.call_method("add_", (g.call_function(operator.getitem, (x, 0)), 1)), {0}),
        (lambda g, x, y, z: g.call_method("copy_", (g.call_method("set_", (x, y)), z)), {0, 1}),
    ],
)
def test_writes_are_told_from_names_and_schemas(build: Callable[..., Any], expected: set[int]) -> None:
    assert written_inputs(build) == expected


def test_what_is_written_in_a_nested_graph_counts_for_all_operands() -> None:
    checkpoint = torch.ops.higher_order.tag_activation_checkpoint

    def build(g: fx.Graph, x: fx.Node, y: fx.Node, z: fx.Node) -> fx.Node:
        return g.call_function(checkpoint, (g.get_attr("body"), x, y))

    writes = graph_of(lambda g, x, y: g.call_method("add_", (y, x)), inputs=2)
    reads = graph_of(lambda g, x, y: g.call_method("add", (y, x)), inputs=2)
    assert written_inputs(build, {"body": writes}) == {0, 1}
    assert written_inputs(build, {"body": reads}) == set()


def test_a_submodule_counts_as_writing() -> None:
    def build(g: fx.Graph, x: fx.Node, y: fx.Node, z: fx.Node) -> fx.Node:
        return g.call_module("inner", (x,))

    assert written_inputs(build, {"inner": nn.ReLU(inplace=True)}) == {0}


def test_storages_known_to_dynamo_tell_views_from_copies() -> None:
    def step(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        x[1:].t().mul_(2)
        y.clone().add_(1)
        F.dropout(z, 0.0, False).add_(1)
        return x + y

    gm, inputs = capture_by_dynamo(step, (torch.ones(4, 4), torch.ones(4, 4), torch.ones(4, 4)))
    before = [value.clone() for value in inputs]
    gm(*inputs)
    changed = {index for index, value in enumerate(before) if not torch.equal(value, inputs[index])}
    assert changed == set(mutated_placeholders(gm)) == {0, 2}


def test_inputs_that_share_memory_count_together() -> None:
    base = torch.ones(4)

    def step(x: Tensor, y: Tensor) -> Tensor:
        return x.add_(1) + y

    gm, _ = capture_by_dynamo(step, (base[:2], base[2:]))
    assert mutated_placeholders(gm) >= {0}


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.other = (nn.Parameter(torch.ones(2)) for _ in range(2))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, gradient: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.view(1, 2)[0].sub_(gradient)
        return self.other * gradient + self.steps


def test_parameters_that_the_graph_updates_are_written_attributes() -> None:
    gm = fx.symbolic_trace(Step())
    assert [id(value) for value in written_attributes(gm)] == [id(gm.steps), id(gm.weight)]
    assert not mutated_placeholders(gm)
