"""Questions that are asked together with what comes after them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from minidbg.fx.copying import clone_values
from minidbg.reduction import problem
from minidbg.reduction.candidate import OracleAnswer
from minidbg.reduction.core import Minimized, reduce_graph
from minidbg.reduction.result import UNLIMITED, Limits
from minidbg.source.size import canonical_text

Predicate = Callable[[fx.GraphModule, Sequence[Any]], bool]


def two_of_three(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    return torch.nn.functional.gelu(torch.tanh(x) @ y, approximate="tanh"), torch.relu(y + z).softmax(-1)


def needs(*targets: Any, least: int = 0) -> Predicate:
    """Fails with a call of each of these, and an input with more than ``least`` elements."""
    return lambda graph_module, inputs: (
        set(targets) <= {node.target for node in graph_module.graph.nodes}
        and any(value.numel() > least for value in inputs)
    )


SIZES_MATTER = needs(torch.nn.functional.gelu, least=12)
FAILURES = [needs(torch.relu), needs(torch.tanh, torch.relu), SIZES_MATTER]


class Questions:
    """An oracle that counts its questions, and how many came together."""

    def __init__(self, fails: Predicate) -> None:
        self.fails, self.rounds, self.questions = fails, 0, 0

    def answer(self, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> OracleAnswer:
        self.questions += 1
        fails = self.fails(graph_module, clone_values(inputs))
        return OracleAnswer.INTERESTING if fails else OracleAnswer.NOT

    def ask(self, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> OracleAnswer:
        self.rounds += 1
        return self.answer(graph_module, inputs)

    def ask_together(self, questions: Sequence[tuple[fx.GraphModule, tuple[Any, ...]]]) -> list[OracleAnswer]:
        self.rounds += 1
        return [self.answer(*question) for question in questions]


def reduced(fails: Predicate, limits: Limits) -> tuple[Minimized, Questions]:
    oracle = Questions(fails)
    inputs = tuple(torch.linspace(-1, 1, 16).reshape(4, 4) + number for number in range(3))
    graph_module = fx.symbolic_trace(two_of_three)
    result = reduce_graph(
        graph_module, inputs, oracle.ask, ask_together=oracle.ask_together, limits=limits, simplify=True
    )
    return result, oracle


@pytest.mark.parametrize("fails", FAILURES)
def test_questions_asked_two_at_a_time_lead_to_the_same_result(
    fails: Predicate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problem, "WORTH_LOOKING_AHEAD_S", 0.0)
    alone, _ = reduced(fails, replace(UNLIMITED, jobs=1))
    both, _ = reduced(fails, replace(UNLIMITED, jobs=2))
    assert canonical_text(both.graph_module) == canonical_text(alone.graph_module)
    for mine, other in zip(both.inputs, alone.inputs, strict=True):
        assert mine.shape == other.shape
        assert torch.equal(mine, other)
    told = [(attempt.phase, attempt.answer, attempt.digest) for attempt in alone.history]
    assert [(attempt.phase, attempt.answer, attempt.digest) for attempt in both.history] == told
    assert both.certified


def test_what_comes_next_is_asked_together_where_most_of_it_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem, "WORTH_LOOKING_AHEAD_S", 0.0)
    _, one = reduced(SIZES_MATTER, replace(UNLIMITED, jobs=1))
    _, two = reduced(SIZES_MATTER, replace(UNLIMITED, jobs=2))
    assert two.rounds <= 0.75 * one.rounds
    assert two.questions <= one.questions + 1, "what was foreseen is what is asked"


def test_quick_questions_are_asked_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem, "WORTH_LOOKING_AHEAD_S", 1e9)
    monkeypatch.setattr(problem.ReductionProblem, "ask_ahead", lambda *_: None)
    _, oracle = reduced(FAILURES[0], replace(UNLIMITED, jobs=2))
    assert oracle.rounds == oracle.questions


def test_a_limit_on_the_number_of_runs_is_spent_on_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem, "WORTH_LOOKING_AHEAD_S", 0.0)
    monkeypatch.setattr(problem.ReductionProblem, "ask_ahead", lambda *_: None)
    _, oracle = reduced(FAILURES[0], replace(UNLIMITED, jobs=2, max_calls=5))
    assert oracle.rounds == oracle.questions == 5
