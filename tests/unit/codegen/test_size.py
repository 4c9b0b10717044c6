"""Counting, and the text that names do not change."""

from __future__ import annotations

import operator
from typing import Any

import torch
from support.graphs_to_write import graph_of
from torch import fx

from minidbg.codegen.size import call_nodes, canonical_text, targets_of_calls

CHECKPOINT = torch.ops.higher_order.tag_activation_checkpoint
ONE = torch.ones(2)


def with_body(*targets: str, last: str = "relu") -> fx.GraphModule:
    body = graph_of(lambda g, x: g.call_method(last, (g.call_method("cos", (x,)),)))

    def build(g: fx.Graph, x: fx.Node) -> fx.Node:
        for target in targets:
            x = g.call_function(CHECKPOINT, (g.get_attr(target), x))
        return x

    return graph_of(build, root=dict.fromkeys(targets, body))


def holding(*values: torch.Tensor) -> fx.GraphModule:
    root = dict(zip("ab", values, strict=False))
    return graph_of(lambda g, x: tuple(map(g.get_attr, root)), root=root)


def adding(target: Any, *args: Any, name: str = "add", **kwargs: Any) -> fx.GraphModule:
    def build(g: fx.Graph, x: fx.Node, y: fx.Node) -> fx.Node:
        given = tuple({"x": x, "y": y}.get(one, one) for one in args)
        return g.create_node("call_function", target, given, kwargs, name)

    return graph_of(build, inputs=2)


def test_only_nodes_that_compute_count_and_a_nested_graph_once() -> None:
    assert call_nodes(with_body("body")) == 3
    assert call_nodes(with_body("one", "other")) == 4
    assert targets_of_calls(with_body("body")) == (
        ".cos",
        ".relu",
        "torch.ops.higher_order.tag_activation_checkpoint",
    )


def test_the_canonical_text_is_equal_for_graphs_that_differ_in_names_only() -> None:
    different = [
        *(adding(operator.add, *args) for args in ("xy", "yx", ("x", 1), ("x", 1.0))),
        adding(operator.sub, *"xy"),
        *(adding(torch.add, *"xy", alpha=alpha) for alpha in (2, 3)),
        graph_of(lambda g, x, y: (g.call_function(operator.add, (x, y)),), inputs=2),
        graph_of(lambda g, x, y: g.call_method("add", (x, y)), inputs=2),
        *map(holding, [ONE, torch.nn.Parameter(ONE), torch.nn.Parameter(ONE, requires_grad=False)]),
        *map(holding, [torch.zeros(2), torch.ones(5000), ONE.to("meta")]),
        *(holding(*values) for values in [(ONE, ONE), (ONE, torch.ones(2))]),
        *(with_body("body", last=last) for last in ("relu", "sin")),
        with_body("one", "other"),
    ]
    texts = list(map(canonical_text, different))
    assert [text for text in texts if texts.count(text) > 1] == []
    equal = [
        (adding(operator.add, *"xy"), adding(operator.add, *"xy", name="total")),
        (with_body("body"), with_body("other")),
        (holding(ONE), holding(torch.ones(2))),
        (holding(torch.zeros(5000)), holding(torch.ones(5000))),
        (holding(torch.zeros(2, device="meta")), holding(torch.ones(2, device="meta"))),
    ]
    assert [pair for pair in equal if len(set(map(canonical_text, pair))) > 1] == []
    assert "0x" not in canonical_text(adding(lambda a, b: a, "x", object()))
