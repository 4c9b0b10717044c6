"""Counting, and the text that names do not change."""

from __future__ import annotations

import operator

import torch
from support.graphs_to_write import graph_of, module_of
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


def test_a_nested_graph_and_a_submodule_are_told_by_what_they_hold() -> None:
    def calling(layer: torch.nn.Module) -> str:
        graph = fx.Graph()
        graph.output(graph.call_module("layer", (graph.placeholder("x"),)))
        root = torch.nn.Module()
        root.layer = layer
        return canonical_text(fx.GraphModule(root, graph))

    def linear(weight: float, size: int = 2) -> torch.nn.Module:
        made = torch.nn.Linear(size, size, bias=False)
        torch.nn.init.constant_(made.weight, weight)
        return made

    assert calling(linear(1.0)) == calling(linear(1.0))
    others = [linear(1.0), linear(2.0), linear(1.0, size=3), torch.nn.ReLU(), torch.nn.LeakyReLU(0.5)]
    assert len({calling(one) for one in others}) == len(others)
    other_body = with_body()
    next(iter(other_body.body.graph.find_nodes(op="call_method", target="relu"))).target = "sin"
    assert canonical_text(other_body) != canonical_text(with_body())


def test_one_attribute_that_is_used_twice_is_not_two_equal_ones() -> None:
    def using(first: torch.Tensor, second: torch.Tensor) -> str:
        def build(g: fx.Graph, x: fx.Node) -> fx.Node:
            return g.call_function(torch.add, (g.get_attr("a"), g.get_attr("b")))

        return canonical_text(graph_of(build, root={"a": first, "b": second}))

    one = torch.ones(2)
    assert using(one, one) != using(one, torch.ones(2))


def test_a_parameter_is_not_a_plain_tensor_and_a_gradient_is_told() -> None:
    def holding(value: torch.Tensor) -> str:
        return canonical_text(graph_of(lambda g, x: g.get_attr("c"), root={"c": value}))

    ones = torch.ones(2)
    kinds = [ones, torch.nn.Parameter(ones), torch.nn.Parameter(ones, requires_grad=False), ones.to("meta")]
    assert len({holding(one) for one in kinds}) == len(kinds)
    assert holding(torch.zeros(2, device="meta")) == holding(ones.to("meta")), "it has no values"


def test_two_calls_of_one_nested_graph_count_it_once() -> None:
    body = graph_of(lambda g, x: g.call_method("relu", (x,)))

    def build(g: fx.Graph, x: fx.Node) -> fx.Node:
        for name in ("one", "other"):
            x = g.call_function(torch.ops.higher_order.tag_activation_checkpoint, (g.get_attr(name), x))
        return x

    assert call_nodes(graph_of(build, root={"one": body, "other": body})) == 3
