"""What is never run twice, what memory does not allow, and how much a graph is thought to need."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from torch import fx

from minidbg.core.settings import Settings
from minidbg.wrapper.verify_runs import bytes_of_a_run, declared_otherwise, refusal, snapshot_of


def graph_of(*targets: Callable[..., Any], values: Any = None) -> fx.GraphModule:
    """A chain of calls, each with the value of the one before it."""
    graph = fx.Graph()
    node = graph.placeholder("x")
    for target in targets:
        node = graph.call_function(target, (node,))
        node.meta["example_value"] = values
    graph.output(node)
    return fx.GraphModule(torch.nn.Module(), graph)


X = (torch.ones(4),)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (torch.ones(4), ""),
        (torch.ones(4, dtype=torch.float64), "dynamo declared x as float32 and passed float64: not the"),
        (torch.ones(3), "as size 4 and passed size 3"),
        (torch.ones(8)[::2], "as stride 1 and passed stride 2"),
        (torch.ones(4, device="meta"), "as cpu and passed meta"),
        (torch.ones(4, requires_grad=True), "as requires_grad=False and passed requires_grad=True"),
    ],
)
def test_no_backend_is_blamed_for_an_input_that_is_not_what_dynamo_declared(given: Any, says: str) -> None:
    graph = graph_of(torch.sin)
    (x,) = graph.graph.find_nodes(op="placeholder")
    x.meta["example_value"] = torch.ones(4)
    found = declared_otherwise(graph, (given,), frozenset())
    assert says in found
    assert bool(says) == bool(found)
    assert declared_otherwise(graph, (given,), frozenset({0})) == "", "the graph may have written to it"


@pytest.mark.parametrize("target", [torch.ops.aten._print.default, torch.ops.aten._print], ids=str)
def test_what_others_see_is_not_run_twice(target: Any) -> None:
    why = refusal(graph_of(torch.sin, target), X, frozenset(), Settings())
    assert "effects outside the graph" in str(why)


def test_a_collective_inside_a_nested_graph_is_seen() -> None:
    outer = graph_of(torch.sin)
    outer.add_module("inner", graph_of(torch.ops._c10d_functional.wait_tensor.default))
    assert refusal(outer, X, frozenset(), Settings())


def test_copies_beyond_the_limit_are_refused() -> None:
    settings = Settings(value_limit_bytes=8)
    assert refusal(graph_of(torch.sin), X, frozenset(), settings) is None
    assert "value_limit_bytes" in str(refusal(graph_of(torch.sin), X, frozenset({0}), settings))
    assert refusal(graph_of(torch.sin), X, frozenset({0}), Settings(value_limit_bytes=16)) is None


def test_what_would_not_fit_beside_the_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    graph = graph_of(torch.sin, values=torch.empty(4000, device="meta"))
    assert "and 0.0 GB are free" in str(refusal(graph, X, frozenset(), Settings()))
    before = snapshot_of(graph, X, frozenset(), "")
    assert before.eager(backward=False)
    with pytest.raises(MemoryError, match="free"):  # one that explains a difference can be left out
        before.eager(lambda value: value, backward=False)


@pytest.mark.parametrize(("grad", "values"), [(True, 3), (False, 2)])
def test_values_count_until_their_last_use_or_until_backward(grad: bool, values: int) -> None:
    graph = graph_of(torch.sin, torch.cos, torch.tan, values=torch.empty(10, device="meta"))
    with torch.set_grad_enabled(grad):
        assert bytes_of_a_run(graph) == values * 40
