"""Copies of graph modules and of values are what a backend cannot tell from the original; captures of dynamo are whole."""

from __future__ import annotations

import pytest
import torch
from support.graphs_to_write import graph_of
from support.travelled import described, shared
from torch import Tensor, fx, nn

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


def inference() -> Tensor:
    with torch.inference_mode():
        return torch.ones(2)


def test_a_clone_is_what_the_value_is_and_shares_what_it_shares_but_no_memory_with_it() -> None:
    """Strides, offset, parameters, leaves, inference, lazy conjugation and negation, aliasing."""
    x, leaf = torch.zeros(4), torch.ones(2, requires_grad=True)
    complex_ = torch.randn(3, dtype=torch.complex64)
    values = [
        torch.randn(6, 4)[1:, ::2].t(), torch.nn.Parameter(torch.ones(2), requires_grad=False), leaf,
        leaf * 2, inference(), complex_.conj(), torch._neg_view(complex_.conj()), x, x[1:3], x, 3, None,
    ]  # fmt: skip
    clones = clone_values(values)
    assert [described(one) for one in clones] == [described(one) for one in values]
    assert shared(clones[7:]) == shared(values[7:])
    pairs = zip(clones[:10], values, strict=False)
    assert all(one.untyped_storage()._cdata != other.untyped_storage()._cdata for one, other in pairs)
    clones[3].add_(1)
    clones[8].fill_(7)
    assert clones[7].tolist() == [0, 7, 7, 0]
    assert x.tolist() == [0, 0, 0, 0]
    (imaginary,) = clone_values([complex_.conj().imag])
    assert imaginary.is_neg()
    assert torch.equal(imaginary, complex_.conj().imag)


def test_a_clone_of_a_view_is_a_view_of_the_clone_of_its_base() -> None:
    """AOTAutograd compiles inputs that share memory by their base, and looks for it at each call."""
    base = torch.randn(3, 4)
    for values in ((base, base[1]), (base[1], base)):
        clones = clone_values(values)
        (cloned,) = (clone for clone, value in zip(clones, values, strict=True) if value is base)
        (view,) = (clone for clone in clones if clone is not cloned)
        assert view._base is cloned
        assert torch.equal(view, base[1])


def test_tuples_are_opened_and_tensors_without_a_plain_storage_are_cloned_too() -> None:
    x, sparse = torch.ones(2), torch.eye(3).to_sparse()
    (clone, nothing), other = clone_values([(x, None), sparse])
    assert nothing is None
    assert clone is not x
    assert torch.equal(other.to_dense(), torch.eye(3))


def test_capture_gives_the_graph_and_the_live_inputs_and_runs_nothing() -> None:
    model = nn.BatchNorm1d(3)
    x = torch.randn(2, 3)
    gm, inputs = capture_by_dynamo(model, (x,))
    assert any(value is model.weight for value in inputs)
    assert any(value is x for value in inputs)
    assert int(model.num_batches_tracked) == 0
    gm(*inputs)
    assert int(model.num_batches_tracked) == 1


def test_one_function_can_be_captured_any_number_of_times() -> None:
    def double(x: Tensor) -> Tensor:
        return x * 2

    for _ in range(12):
        capture_by_dynamo(double, (torch.ones(2),))


def test_a_function_without_operations_has_no_graph() -> None:
    with pytest.raises(NoGraph):
        capture_by_dynamo(lambda x: 3, (torch.ones(2),))
