"""Candidates: which two are the same, what makes one smaller, and that the oracle's copy is its own."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs_to_reduce import chain
from torch import fx, nn

from minidbg.reduction.candidate import (
    SMALL,
    Candidate,
    OwnGraph,
    expected_calls,
    fingerprint,
    last_that_holds,
)

Build = Callable[[fx.Graph, fx.Node], Any]


def graph_of(build: Build, root: nn.Module | None = None, name: str = "x") -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(build(graph, graph.placeholder(name)))
    return fx.GraphModule(root or nn.Module(), graph)


def candidate(graph_module: fx.GraphModule, *inputs: Any, variant: str | None = "") -> Candidate:
    return Candidate(OwnGraph(graph_module), inputs or (torch.ones(2),), ("token",), variant=variant)


def calling(target: Callable[..., Any], *args: Any, **kwargs: Any) -> Build:
    return lambda graph, x: graph.call_function(target, (x, *args), kwargs)


def constant(value: float, name: str = "c") -> fx.GraphModule:
    root = nn.Module()
    root.register_buffer(name, torch.tensor(value))
    return graph_of(lambda graph, x: graph.call_function(torch.add, (x, graph.get_attr(name))), root)


def nested(target: Callable[..., Any]) -> fx.GraphModule:
    root = nn.Module()
    root.inner = graph_of(calling(target))
    return graph_of(lambda graph, x: graph.call_function(torch.add, (x, graph.get_attr("inner"))), root)


SAME: dict[str, tuple[fx.GraphModule, fx.GraphModule]] = {
    "names": (graph_of(calling(torch.relu)), graph_of(calling(torch.relu), name="another")),
    "a nested graph's object": (nested(torch.sin), nested(torch.sin)),
}
OTHER: dict[str, tuple[fx.GraphModule, fx.GraphModule]] = {
    "the op": (graph_of(calling(torch.relu)), graph_of(calling(torch.sin))),
    "an overload": (
        graph_of(calling(torch.ops.aten.add.Tensor, 1)),
        graph_of(calling(torch.ops.aten.add.Scalar, 1)),
    ),
    "a number": (graph_of(calling(torch.add, 1)), graph_of(calling(torch.add, 2))),
    "a number's type": (graph_of(calling(torch.add, 1)), graph_of(calling(torch.add, True))),
    "a keyword": (graph_of(calling(torch.sum, dim=0)), graph_of(calling(torch.sum, 0))),
    "a slice": (
        graph_of(lambda graph, x: graph.call_function(operator.getitem, (x, slice(0, None, 1)))),
        graph_of(lambda graph, x: graph.call_function(operator.getitem, (x, slice(0, None, 2)))),
    ),
    "a method": (
        graph_of(lambda graph, x: graph.call_method("sin", (x,))),
        graph_of(lambda graph, x: graph.call_method("cos", (x,))),
    ),
    "what is returned": (
        graph_of(lambda graph, x: (graph.call_function(torch.sin, (x,)), x)),
        graph_of(lambda graph, x: (graph.call_function(torch.sin, (x,)),)),
    ),
    "the nested graph": (nested(torch.sin), nested(torch.cos)),
    "the constant": (constant(1.0), constant(2.0)),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME)
def test_what_graphs_may_differ_in_and_be_one_question(one: fx.GraphModule, other: fx.GraphModule) -> None:
    assert candidate(one).key == candidate(other).key


@pytest.mark.parametrize(("one", "other"), OTHER.values(), ids=OTHER)
def test_graphs_that_differ_so_are_two_questions(one: fx.GraphModule, other: fx.GraphModule) -> None:
    assert candidate(one).key != candidate(other).key


def test_inputs_with_other_tokens_are_another_question() -> None:
    graph_module = graph_of(calling(torch.relu))
    assert fingerprint(graph_module, ("a",)) != fingerprint(graph_module, ("b",))


def test_large_graphs_are_told_apart_by_the_names_that_are_left_unless_they_were_made_otherwise() -> None:
    """Their texts would take long."""
    large, small = chain(SMALL)[0], chain(SMALL - 2)[0]
    assert len(small.graph.nodes) == SMALL
    assert " " in candidate(large).key
    assert " " not in candidate(large, variant=None).key
    assert " " not in candidate(small).key
    other = chain(SMALL)[0]
    next(iter(reversed(other.graph.nodes))).prev.name = "another"
    assert candidate(large).key != candidate(other).key
    assert candidate(large).key != candidate(large, variant="writes=True").key


def module_with(*layers: nn.Module) -> fx.GraphModule:
    root = nn.Module()
    root.layers = nn.Sequential(*layers)
    return graph_of(lambda graph, x: graph.call_module("layers", (x,)), root)


@pytest.mark.parametrize(
    ("graph_module", "size"),
    [
        (graph_of(lambda graph, x: x), (0, 1, 1, 0)),
        (graph_of(calling(torch.relu)), (1, 1, 1, 0)),
        (graph_of(lambda graph, x: (graph.call_function(torch.relu, (x,)), x)), (1, 1, 2, 0)),
        (module_with(nn.ReLU(), nn.Sequential(nn.ReLU(), nn.Tanh())), (3, 1, 1, 0)),
        (module_with(), (1, 1, 1, 0)),
        (nested(torch.sin), (2, 1, 1, 2)),
        (constant(1.0), (1, 1, 1, 0)),
    ],
    ids=["nothing", "a call", "outputs", "layers of a module", "a module of none", "a nested graph", "a constant"],
)  # fmt: skip
def test_calls_count_first_then_inputs_outputs_and_what_nested_graphs_carry(
    graph_module: fx.GraphModule, size: tuple[int, ...]
) -> None:
    assert candidate(graph_module).size == size


def test_storages_are_counted_once() -> None:
    x = torch.ones(10)
    found = candidate(graph_of(calling(torch.relu)), x, x[3:], 5, torch.ones(2)).storages
    assert sorted(found.values()) == [8, 40]


@pytest.mark.parametrize("graph_module", [constant(1.0), module_with(nn.Linear(2, 2)), chain(3)[0]])
def test_what_the_oracle_gets_is_its_own_and_may_be_spoilt(graph_module: fx.GraphModule) -> None:
    own = OwnGraph(graph_module)
    given = own.give_away()
    assert given is not own.module() is graph_module
    with torch.no_grad():
        for tensor in (*given.parameters(), *given.buffers()):
            tensor.zero_()
    given.graph.erase_node(given.graph.output_node())
    assert graph_module.graph.output_node() is not None
    assert all(bool(tensor.any()) for tensor in (*graph_module.parameters(), *graph_module.buffers()))


def test_a_graph_that_can_be_made_again_is_given_away_as_it_is_and_made_when_it_is_looked_at() -> None:
    first, second = chain(3)[0], chain(3)[0]
    made = iter([second])
    own = OwnGraph(first, lambda: next(made))
    assert own.module() is first
    assert own.give_away() is first
    assert own.module() is second
    assert own.give_away() is not second, "it cannot be made any more"
    assert own.module() is second


def test_bisection_finds_the_last_place_that_holds() -> None:
    for last in range(-1, 9):
        asked: list[int] = []
        found = last_that_holds(lambda place, last=last: asked.append(place) or place <= last, -1, 9)
        assert found == last
        assert len(asked) <= 4
        assert not {-1, 9} & set(asked)


def test_the_rest_of_a_reduction_is_a_bisection_and_single_removals() -> None:
    assert expected_calls((0, 0, 0)) == 0
    assert expected_calls((1, 1, 1, 0)) == 5
    assert expected_calls((1023, 20, 20, 5)) == 20 + 8 + 8 + 4
