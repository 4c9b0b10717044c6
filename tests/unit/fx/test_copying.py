"""Copies of graph modules and of values are what a backend cannot tell from the original; captures of dynamo are whole."""

from __future__ import annotations

import pytest
import torch
from constructs import square, views_and_writes
from support.graphs_to_write import graph_of
from torch import Tensor, fx, nn

from minidbg.codegen.module_text import write_module
from minidbg.codegen.size import canonical_text
from minidbg.fx.copying import NoGraph, capture_by_dynamo, clone_values, copy_graph_module


def nested() -> fx.GraphModule:
    inner = graph_of(lambda g, x: g.call_method("relu", (x,)))

    def build(g: fx.Graph, x: fx.Node) -> fx.Node:
        y = g.call_function(torch.ops.higher_order.tag_activation_checkpoint, (g.get_attr("body"), x))
        z = g.call_module("holder.body", (y,))
        return g.call_module("lin", (g.call_function(torch.add, (z, g.get_attr("c"))),))

    holder = nn.Module()
    holder.body = inner
    root = nn.Module()
    root.body, root.holder, root.lin = inner, holder, nn.Linear(2, 2)
    root.register_buffer("c", torch.ones(2))
    return graph_of(build, root=root)


def test_a_copy_is_equal_and_computes_the_same() -> None:
    gm = nested()
    copied = copy_graph_module(gm)
    x = torch.randn(3, 2)
    assert canonical_text(copied) == canonical_text(gm)
    assert [node.name for node in copied.graph.nodes] == [node.name for node in gm.graph.nodes]
    torch.testing.assert_close(copied(x), gm(x))


def test_editing_a_copy_leaves_the_original() -> None:
    gm = nested()
    before = canonical_text(gm)
    copied = copy_graph_module(gm)
    for module in (copied, copied.body, copied.holder.body):
        for node in list(module.graph.nodes):
            if node.op == "call_method":
                node.target = "sigmoid"
            node.meta["edited"] = True
    copied.graph.eliminate_dead_code()
    assert canonical_text(gm) == before
    assert not any("edited" in node.meta for node in gm.graph.nodes)


def test_one_nested_graph_used_twice_stays_one_and_tensors_and_plain_submodules_are_shared() -> None:
    gm = nested()
    copied = copy_graph_module(gm)
    assert copied.body is copied.holder.body
    assert copied.body is not gm.body
    assert copied.c is gm.c
    assert copied.lin is gm.lin


def test_what_dynamo_leaves_on_module_and_nodes_comes_along() -> None:
    """AOTAutograd asserts on one of the two without the other."""
    gm = nested()
    gm._param_name_to_source = {"a": "b"}
    gm.meta["said"] = 1
    gm.unused = torch.ones(1)
    next(iter(gm.graph.nodes))._dynamo_source = "source"
    copied = copy_graph_module(gm)
    assert copied._param_name_to_source == {"a": "b"}
    assert next(iter(copied.graph.nodes))._dynamo_source == "source"
    assert copied.meta == {"said": 1}
    assert copied.unused is gm.unused


def test_strides_and_offset_stay() -> None:
    x = torch.randn(6, 4)[1:, ::2].t()
    (clone,) = clone_values([x])
    assert (clone.shape, clone.stride(), clone.storage_offset()) == (x.shape, x.stride(), x.storage_offset())
    assert torch.equal(clone, x)


def test_aliasing_stays() -> None:
    x = torch.zeros(4)
    one, view, same = clone_values([x, x[1:3], x])
    assert one is same
    view.fill_(7)
    assert one.tolist() == [0, 7, 7, 0]
    assert x.tolist() == [0, 0, 0, 0]


def test_parameters_stay_parameters() -> None:
    (clone,) = clone_values([torch.nn.Parameter(torch.ones(2), requires_grad=False)])
    assert isinstance(clone, torch.nn.Parameter)
    assert not clone.requires_grad


def test_leafness_stays_and_what_is_no_leaf_may_be_written() -> None:
    leaf = torch.ones(2, requires_grad=True)
    one, other = clone_values([leaf, leaf * 2])
    assert one.is_leaf
    assert one.requires_grad
    assert not other.is_leaf
    other.add_(1)


def test_what_is_no_tensor_is_passed_on_and_tuples_are_opened() -> None:
    x = torch.ones(2)
    number, (clone, nothing) = clone_values([3, (x, None)])
    assert (number, nothing) == (3, None)
    assert clone is not x


def test_tensors_without_a_plain_storage_are_cloned_too() -> None:
    sparse = torch.eye(3).to_sparse()
    conjugated = torch.randn(2, dtype=torch.complex64).conj()
    clones = clone_values([sparse, conjugated])
    assert torch.equal(clones[0].to_dense(), torch.eye(3))
    assert torch.equal(clones[1], conjugated)


def test_inference_tensors_stay_inference_tensors() -> None:
    with torch.inference_mode():
        x = torch.ones(2)
    (clone,) = clone_values([x])
    assert clone.is_inference()


def test_lazy_conjugation_and_negation_stay() -> None:
    x = torch.randn(3, dtype=torch.complex64)
    values = [x.conj(), x.conj().imag, torch._neg_view(x.conj())]
    for value, clone in zip(values, clone_values(values), strict=True):
        assert (clone.is_conj(), clone.is_neg()) == (value.is_conj(), value.is_neg())
        assert torch.equal(clone, value)
        assert clone.untyped_storage()._cdata != value.untyped_storage()._cdata


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


def test_source_lines_name_the_file_of_the_program() -> None:
    gm, _ = capture_by_dynamo(views_and_writes, square())
    line = views_and_writes.__code__.co_firstlineno + 1
    assert f"y = x.clone()  # constructs.py:{line}\n" in write_module(gm).text
