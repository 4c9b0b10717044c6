"""Copies that can be edited."""

from __future__ import annotations

import torch
from graphs_to_write import graph_of
from torch import fx, nn

from minidbg.graphs.copying import copy_graph_module
from minidbg.graphs.size import canonical_text


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


def test_one_nested_graph_used_twice_stays_one() -> None:
    copied = copy_graph_module(nested())
    assert copied.body is copied.holder.body
    assert copied.body is not nested().body


def test_tensors_and_plain_submodules_are_shared() -> None:
    gm = nested()
    copied = copy_graph_module(gm)
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
