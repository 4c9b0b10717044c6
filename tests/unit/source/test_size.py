"""Counting, and the text that names do not change."""

from __future__ import annotations

import operator
from typing import Any

import torch
from support.graphs_to_write import graph_of, module_of
from torch import fx

from minidbg.source.size import call_nodes, call_targets, canonical_text

CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint


def with_body(*targets: str, last: str = "relu") -> fx.GraphModule:
    body = graph_of(lambda g, x: g.call_method(last, (g.call_method("cos", (x,)),)))

    def build(g: fx.Graph, x: fx.Node) -> fx.Node:
        for target in targets:
            x = g.call_function(CHECKPOINT, (g.get_attr(target), x))
        return x

    return graph_of(build, root=dict.fromkeys(targets, body))


def named(one: str, two: str) -> fx.GraphModule:
    graph = fx.Graph()
    x = graph.placeholder(one)
    graph.output(graph.create_node("call_function", operator.add, (x, 1), {}, name=two))
    return module_of(graph)


def holding(*values: torch.Tensor) -> fx.GraphModule:
    names = "ab"[: len(values)]
    root = dict(zip(names, values, strict=True))
    return graph_of(lambda g, x: tuple(g.get_attr(name) for name in names), root=root)


def calling(layer: torch.nn.Module) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.call_module("layer", (graph.placeholder("x"),)))
    root = torch.nn.Module()
    root.layer = layer
    return fx.GraphModule(root, graph)


def linear(weight: float, size: int = 2) -> torch.nn.Module:
    made = torch.nn.Linear(size, size, bias=False)
    torch.nn.init.constant_(made.weight, weight)
    return made


def test_only_nodes_that_compute_count_and_a_nested_graph_once() -> None:
    assert call_nodes(with_body("body")) == 3
    assert call_nodes(with_body("one", "other")) == 4
    assert call_targets(with_body("body")) == (
        "{", ".cos", ".relu", "}", "torch.ops.higher_order.tag_activation_checkpoint",
    )  # fmt: skip


def test_the_canonical_text_is_equal_for_graphs_that_differ_in_names_only() -> None:
    one, pair = torch.ones(2), [(operator.add, "xy"), (operator.add, "yx"), (operator.sub, "xy")]

    def adding(target: Any, *args: Any, **kwargs: Any) -> fx.GraphModule:
        return graph_of(lambda g, x, y: g.call_function(target, tuple({"x": x, "y": y}.get(a, a) for a in args), kwargs), inputs=2)  # fmt: skip

    different = [
        *(adding(target, *args) for target, args in pair),
        adding(operator.add, "x", 1),
        adding(operator.add, "x", 1.0),
        adding(torch.add, "x", "y", alpha=2),
        adding(torch.add, "x", "y", alpha=3),
        graph_of(lambda g, x, y: (g.call_function(operator.add, (x, y)),), inputs=2),
        graph_of(lambda g, x, y: g.call_method("add", (x, y)), inputs=2),
        *map(holding, [one, torch.nn.Parameter(one), torch.nn.Parameter(one, requires_grad=False)]),
        *map(holding, [torch.zeros(2), torch.ones(5000), one.to("meta")]),
        *(holding(*values) for values in [(one, one), (one, torch.ones(2))]),
        *map(calling, [linear(1.0), linear(2.0), linear(1.0, 3), torch.nn.ReLU(), torch.nn.LeakyReLU(0.5)]),
        with_body("body"),
        with_body("body", last="sin"),
        with_body("one", "other"),
    ]
    texts = list(map(canonical_text, different))
    assert [text for text in texts if texts.count(text) > 1] == []
    equal = [
        (named("x", "y"), named("a", "b")),
        (with_body("body"), with_body("other")),
        (holding(torch.ones(2)), holding(torch.ones(2))),
        (holding(torch.zeros(5000)), holding(torch.ones(5000))),
        (holding(torch.zeros(2, device="meta")), holding(torch.ones(2, device="meta"))),
        (calling(linear(1.0)), calling(linear(1.0))),
    ]
    assert [pair for pair in equal if len(set(map(canonical_text, pair))) > 1] == []
    assert "0x" not in canonical_text(adding(lambda a, b: a, "x", object()))
