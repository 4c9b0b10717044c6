"""Counting, and the text that names do not change."""

from __future__ import annotations

import operator

import torch
from graphs_to_write import graph_of, module_of
from torch import fx

from minidbg.source.size import call_nodes, call_targets, canonical_text


def with_body(target: str = "body") -> fx.GraphModule:
    body = graph_of(lambda g, x: g.call_method("relu", (g.call_method("cos", (x,)),)))

    def build(g: fx.Graph, x: fx.Node) -> fx.Node:
        used = g.get_attr(target)
        g.get_attr(target)
        return g.call_function(torch.ops.higher_order.tag_activation_checkpoint, (used, x))

    return graph_of(build, root={target: body})


def test_only_nodes_that_compute_count_and_nested_graphs_once() -> None:
    assert call_nodes(with_body()) == 3


def test_targets_show_nested_graphs_in_braces() -> None:
    checkpoint = "torch.ops.higher_order.tag_activation_checkpoint"
    assert call_targets(with_body()) == ("{", ".cos", ".relu", "}", checkpoint)


def test_names_of_nodes_inputs_and_attributes_do_not_matter() -> None:
    def named(one: str, two: str) -> str:
        graph = fx.Graph()
        x = graph.placeholder(one)
        graph.output(graph.create_node("call_function", operator.add, (x, 1), {}, name=two))
        return canonical_text(module_of(graph))

    assert named("x", "y") == named("a", "b")
    assert canonical_text(with_body("body")) == canonical_text(with_body("other"))


def test_targets_arguments_and_structure_do_matter() -> None:
    texts = [
        canonical_text(graph_of(build, inputs=2))
        for build in (
            lambda g, x, y: g.call_function(operator.add, (x, y)),
            lambda g, x, y: g.call_function(operator.add, (y, x)),
            lambda g, x, y: g.call_function(operator.sub, (x, y)),
            lambda g, x, y: g.call_function(operator.add, (x, 1)),
            lambda g, x, y: g.call_function(operator.add, (x, 1.0)),
            lambda g, x, y: (g.call_function(operator.add, (x, y)),),
            lambda g, x, y: g.call_method("add", (x, y)),
        )
    ]
    assert len(set(texts)) == len(texts)


def test_values_of_small_constants_matter_and_addresses_do_not() -> None:
    def holding(value: torch.Tensor) -> str:
        return canonical_text(graph_of(lambda g, x: g.get_attr("c"), root={"c": value}))

    assert holding(torch.ones(2)) == holding(torch.ones(2))
    assert holding(torch.ones(2)) != holding(torch.zeros(2))
    assert holding(torch.zeros(5000)) == holding(torch.ones(5000))
    assert "0x" not in canonical_text(graph_of(lambda g, x: g.call_function(lambda a: a, (x, object()))))
