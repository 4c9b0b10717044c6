"""Reduction of random graphs under random predicates: it ends, never grows, still fails, and is minimal when it says so."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from brute_force import single_removals
from random_graphs import GraphMaker, Predicate, calls, random_predicate
from torch import fx

from minidbg.codegen.size import canonical_text
from minidbg.core.outcome import Outcome, Verdict
from minidbg.fx.copying import clone_values
from minidbg.reduction.driver import Minimized, minimize, reduce_graph
from minidbg.reduction.search import Candidate, Search

SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] * (seed % 4 > 0)) for seed in range(25)]
SOON_DONE = (10, 15, 20, 24)
"""Seeds whose reduction has no question worth asking beside another."""


def size(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> tuple[int, int, int]:
    return len(calls(graph_module)), len(inputs), len(graph_module.graph.output_node().args[0])


def reduced(seed: int, **features: bool) -> tuple[Minimized, Predicate, int]:
    graph_module, inputs = GraphMaker(seed, calls=5 + seed % 40, **features).finish()
    fails = random_predicate(seed, graph_module, inputs)
    before = [value.clone() for value in inputs]
    text = graph_module.code
    result = minimize(graph_module, inputs, fails)
    assert all(map(torch.equal, inputs, before)), "inputs were written"
    assert graph_module.code == text, "the graph was changed"
    return result, fails, len(calls(graph_module))


@pytest.mark.parametrize(
    "features", [{}, {"writes": True}, {"modes": True}, {"writes": True, "modes": True}], ids=str
)
@pytest.mark.parametrize("seed", SEEDS)
def test_result_is_smaller_and_still_fails(seed: int, features: dict[str, bool]) -> None:
    result, fails, calls_before = reduced(seed, **features)
    graph_module = result.graph_module
    graph_module.graph.lint()
    assert len(calls(graph_module)) <= calls_before
    assert fails(copy.deepcopy(graph_module), [value.clone() for value in result.inputs])
    graph_module(*[value.clone() for value in result.inputs])
    assert result.certified
    sizes = [len(calls(step)) for step, _ in result.steps]
    assert sizes == sorted(sizes, reverse=True)
    assert all(fails(copy.deepcopy(step), clone_values(inputs)) for step, inputs in result.steps)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_single_removal_of_a_certified_result_fails(seed: int) -> None:
    result, fails, _ = reduced(seed)
    for what, graph_module, inputs in single_removals(result.graph_module, result.inputs):
        if size(graph_module, inputs) < size(result.graph_module, result.inputs):
            assert not fails(graph_module, inputs), f"{what} can go: {graph_module.code}"


@pytest.mark.parametrize("seed", SEEDS[:15])
def test_simplified_result_still_fails_and_is_no_larger(seed: int) -> None:
    graph_module, inputs = GraphMaker(seed, calls=5 + seed % 40, writes=seed % 2 == 1).finish()
    fails = random_predicate(seed, graph_module, inputs)
    plain = minimize(graph_module, inputs, fails)
    simple = minimize(graph_module, inputs, fails, simplify=True)
    assert simple.certified
    assert fails(copy.deepcopy(simple.graph_module), [value.clone() for value in simple.inputs])
    assert size(simple.graph_module, simple.inputs) <= size(plain.graph_module, plain.inputs)
    elements = [sum(value.numel() for value in found.inputs) for found in (simple, plain)]
    assert elements[0] <= elements[1]


@pytest.mark.parametrize("jobs", [2, 5])
@pytest.mark.parametrize("seed", SEEDS)
def test_several_workers_give_the_result_of_one(
    seed: int, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph_module, inputs = GraphMaker(seed, calls=5 + seed % 40, writes=seed % 2 == 0).finish()
    fails = random_predicate(seed, graph_module, inputs)
    together: list[int] = []

    def ask(candidates: Sequence[Candidate]) -> list[Outcome]:
        together.append(len(candidates))
        failed = [fails(copy.deepcopy(one.graph_module), clone_values(one.inputs)) for one in candidates]
        return [Outcome(Verdict.REPRODUCES if one else Verdict.GONE) for one in failed]

    alone = Search(Candidate.whole(graph_module, inputs), ask)
    reduce_graph(alone)
    assert set(together) == {1}
    monkeypatch.setattr(time, "monotonic", itertools.count().__next__)  # each question takes a second
    many = Search(Candidate.whole(graph_module, inputs), ask, jobs=jobs)
    reduce_graph(many)
    monkeypatch.undo()
    assert canonical_text(many.best.graph_module) == canonical_text(alone.best.graph_module)
    assert many.proven is many.best
    assert many.asked == alone.asked
    assert max(together) <= jobs
    assert max(together) > 1 or seed in SOON_DONE
