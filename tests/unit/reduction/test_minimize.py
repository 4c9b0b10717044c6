"""``minimize``: what a user's own predicate sees and gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from graphs_to_reduce import Needs, call_count, call_names, chain, graph_of, row
from torch import fx

from minidbg.core.errors import MinidbgError, NotReproduced
from minidbg.reduction.driver import minimize


def test_single_culprit_is_all_that_is_left() -> None:
    graph_module, inputs = chain(60)
    result = minimize(graph_module, inputs, Needs("op_40"))
    assert call_names(result.graph_module) == ["op_40"]
    assert len(result.inputs) == 1
    assert result.certified
    expected = inputs[0]
    for node in list(graph_module.graph.nodes)[1:41]:
        expected = node.target(expected)  # type: ignore[operator]
    assert torch.equal(result.inputs[0], expected)


@pytest.mark.parametrize("calls", [1, 50])
def test_predicate_that_never_holds_is_reported(calls: int) -> None:
    with pytest.raises(NotReproduced, match="does not fail"):
        minimize(*chain(calls), lambda graph_module, inputs: False)


def test_predicate_may_change_what_it_gets() -> None:
    graph_module, inputs = chain(40)
    needs = Needs("op_30")

    def destructive(candidate: fx.GraphModule, values: Sequence[Any]) -> bool:
        answer = needs(candidate, values)
        for value in values:
            value.fill_(99.0)
        for node in reversed(list(candidate.graph.nodes)):
            if node.op.startswith("call"):
                node.target = torch.exp
        candidate.recompile()
        return answer

    before = graph_module.code
    result = minimize(graph_module, inputs, destructive)
    assert graph_module.code == before
    assert torch.equal(inputs[0], torch.linspace(0, 1, 4))
    assert call_names(result.graph_module) == ["op_30"]
    assert result.graph_module.graph.find_nodes(op="call_function", target=torch.sin)
    assert result.inputs[0].max() < 99


def test_missing_inputs_are_told_with_their_number() -> None:
    with pytest.raises(MinidbgError, match="takes 1 inputs, 0 were given"):
        minimize(chain(3)[0], [], Needs("op_1"))


def test_what_the_predicate_raises_goes_to_the_caller() -> None:
    def breaks(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        minimize(*chain(10), breaks)


def test_calls_are_limited_and_the_best_so_far_is_kept() -> None:
    result = minimize(*chain(300), needs := Needs("op_200"), max_calls=5)
    assert needs.calls == result.oracle_calls == 5
    assert not result.certified
    assert "op_200" in call_names(result.graph_module)
    assert call_count(result.graph_module) < 300


def test_seconds_are_limited() -> None:
    result = minimize(*chain(300), Needs("op_200"), seconds=0.0)
    assert result.oracle_calls == 0
    assert not result.certified
    assert call_count(result.graph_module) == 300


def test_interrupt_keeps_the_best_so_far() -> None:
    needs = Needs("op_10")

    def interrupted(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        if needs.calls == 4:
            raise KeyboardInterrupt
        return needs(graph_module, inputs)

    result = minimize(*chain(300), interrupted)
    assert result.interrupted
    assert not result.certified
    assert "op_10" in call_names(result.graph_module)
    assert call_count(result.graph_module) < 150


def test_grad_mode_left_behind_by_a_failing_predicate_changes_nothing() -> None:
    needs = Needs("op_20")

    def leaves_its_mode(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
        torch.set_grad_enabled(False)
        return needs(graph_module, inputs)

    minimize(*chain(40), leaves_its_mode)
    assert torch.is_grad_enabled()


def test_graph_that_fails_in_eager_is_still_reduced_before_its_failure() -> None:
    graph_module = graph_of(lambda graph, x: (graph.call_method("view", (row(graph, x, 20)[-1], 7)),))
    result = minimize(graph_module, [torch.ones(4)], Needs("op_3"))
    assert call_names(result.graph_module) == ["op_3"]


def test_python_time_grows_about_linearly() -> None:
    """Ten times the nodes, at most twenty times the work: counted in nodes handed to the predicate."""

    def handed(calls: int) -> int:
        needs = Needs(f"op_{calls // 3}")
        minimize(*chain(calls), needs)
        return sum(map(len, needs.asked))

    assert handed(1000) < 20 * handed(100)
