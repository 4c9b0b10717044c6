"""``reduce_graph``: the passes in order, and the certificate at the end; ``minimize``: with a predicate of the user's."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from torch import fx

from minidbg.core.errors import MinidbgError, NotReproduced
from minidbg.core.outcome import Verdict
from minidbg.fx.copying import clone_values, copy_graph_module, freezing_gc
from minidbg.reduction import edits
from minidbg.reduction.candidate import BudgetSpent, Candidate
from minidbg.reduction.culprits import drop_chunks, keep_needed, narrow_window, try_islands
from minidbg.reduction.problem import Oracle, Pass, ReductionProblem, run_passes
from minidbg.reduction.result import Limits
from minidbg.reduction.simplify import SIMPLIFYING, is_another_cause, plainness, simplify_inputs_at_once
from minidbg.reduction.subsets import FEW_UNITS, follow_suspects

LEAST_SIMPLIFYING_S = 20.0
"""Simplification may take as long as the reduction before it took, and at least this."""


@dataclass(frozen=True, slots=True)
class Minimized:
    """The smallest graph found that still fails, its inputs, and how it was found."""

    graph_module: fx.GraphModule
    inputs: tuple[Any, ...]
    oracle_calls: int
    certified: bool
    """Whether no single removal of a node, an input or an output fails the same way any more: every one was tried."""
    interrupted: bool
    """Whether Ctrl-C ended it."""
    seconds: float
    steps: tuple[tuple[fx.GraphModule, tuple[Any, ...]], ...]
    """Accepted candidates, largest first; the last is the result."""
    neighbour: tuple[fx.GraphModule, tuple[Any, ...]] | None = None
    """One step smaller, and passing."""
    is_out_of_budget: bool = False
    """Whether a spent budget ended it: what it has is certified or not, and perhaps not as plain as it may be."""
    whole_passed: bool = False
    """Whether the whole, said to fail, did not when it was asked, or dynamo took nothing that was
    as it is: there was nothing to reduce."""


Passes: TypeAlias = tuple[tuple[str, Pass], ...]

FINDING: tuple[tuple[str, Callable[[ReductionProblem], None]], ...] = (
    ("islands", try_islands),
    ("bisect", narrow_window),
    ("needed", keep_needed),
)
"""From a large graph to the few nodes that matter; each once, and none in a small graph."""

POLISHING: Passes = (
    ("branches", edits.inline_branches),
    ("outputs", edits.drop_outputs),
    ("elements", edits.drop_elements),
    ("modes", edits.drop_modes),
    ("spare inputs", edits.drop_inputs_at_once),
    ("nodes", edits.drop_nodes),
    ("bypass", edits.bypass_nodes),
    ("inputs", edits.drop_inputs),
    ("branch nodes", edits.drop_nested_nodes),
)
"""Single removals, repeated until none succeeds."""

ALONG_A_CHAIN: Passes = tuple(
    sorted(POLISHING, key=lambda one: POLISHING.index(one) if one[0] != "bypass" else 4.5)
)
"""The same where values go wrong at one op and are noticed at another: a call between them can be
bypassed, and seldom left out."""

AT_FIRST: Passes = (*SIMPLIFYING[:2], ("all at once", simplify_inputs_at_once), *SIMPLIFYING[2:])
"""What a graph owns becomes inputs, and these are made plain all at once."""


@freezing_gc()
def reduce_graph(
    graph_module: fx.GraphModule,
    inputs: Sequence[Any],
    ask: Oracle,
    *,
    simplify: bool = False,
    **how: Any,
) -> Minimized:
    """The smallest graph cut out of ``graph_module`` that ``ask`` finds interesting.

    ``ask`` must not write to the graphs and inputs of its candidates.
    ``simplify`` adds the edits beyond nodes, inputs and outputs. ``how`` are fields of
    ``ReductionProblem``. Ctrl-C and a spent budget end it with the best so far. Raises what ``ask``
    raises, and NotReproduced when the whole had to be asked and did not fail; where it was said to
    be known, ``whole_passed`` says so instead.
    """
    tokens = tuple(
        ("value", "", node.name, 0, ()) for node in graph_module.graph.nodes if node.op == "placeholder"
    )
    whole = Candidate(graph_module, tuple(inputs), tokens, faithful=True, by_names=True)
    problem = ReductionProblem(whole, ask, **how)
    proven: Candidate | None = None
    interrupted, whole_passed, is_out_of_budget = False, False, False
    try:
        follow_suspects(problem)
        reduce_to_fixed_point(problem)
        problem.confirm_whole()
        proven = problem.best
        if simplify:
            simplify_truly(problem)
            proven = problem.best
    except BudgetSpent:
        is_out_of_budget = True
    except NotReproduced:
        if not problem.whole_is_known:
            raise
        whole_passed = True
    except KeyboardInterrupt:
        interrupted = True
    best, neighbour = problem.best, problem.neighbour
    return Minimized(
        best.graph_module,
        best.inputs,
        problem.oracle_calls,
        certified=proven is best,
        interrupted=interrupted,
        seconds=problem.elapsed(),
        steps=tuple((step.graph_module, step.inputs) for step in problem.steps),
        neighbour=(neighbour.graph_module, neighbour.inputs) if neighbour else None,
        is_out_of_budget=is_out_of_budget,
        whole_passed=whole_passed,
    )


def reduce_to_fixed_point(problem: ReductionProblem) -> None:
    """All passes until a whole round changes nothing.

    Each round begins as a new reduction would, with nothing presumed: a failure need not be monotone, so it may have gone
    away with a node and come back when more nodes went. What is small then is polished alone.
    """
    before: Candidate | None = None
    while problem.best is not before:
        first, before = before is None, problem.best
        problem.begin_round()
        if first or len(before.calls) > 2 * FEW_UNITS:
            find(problem)
        # a failure that is not monotone may need none of what single removals keep
        elif len(before.calls) > FEW_UNITS:
            problem.begin_phase("chunks")
            drop_chunks(problem)
        problem.keep_passed_through = True
        polish(problem)


def simplify_to_fixed_point(problem: ReductionProblem) -> None:
    """Plainer and plainer, and smaller where that became possible by it, until a whole round changes nothing."""
    before: Candidate | None = None
    while problem.best is not before:
        first, before = before is None, problem.best
        problem.plainness = plainness
        run_passes(problem, AT_FIRST if first else SIMPLIFYING)
        problem.plainness = None
        if problem.best is not before:
            reduce_to_fixed_point(problem)


def simplify_truly(problem: ReductionProblem) -> None:
    """``simplify_for_a_while``; once more, with the arguments as they were, where a plainer one had become the cause."""
    before = problem.best
    simplify_for_a_while(problem)
    if is_another_cause(problem):
        problem.go_back_to(before)
        problem.keeps_arguments = True
        simplify_for_a_while(problem)


def simplify_for_a_while(problem: ReductionProblem) -> None:
    """``simplify_to_fixed_point``, but no longer than the reduction took so far; what it leaves is 1-minimal again."""
    whole, now = problem.limits, problem.elapsed()
    problem.limits = replace(whole, seconds=min(whole.seconds, now + max(LEAST_SIMPLIFYING_S, now)))
    try:
        simplify_to_fixed_point(problem)
    except BudgetSpent:
        problem.limits, problem.plainness = whole, None
        reduce_to_fixed_point(problem)
    problem.limits = whole


def find(problem: ReductionProblem) -> None:
    for name, search in FINDING:
        before = problem.best
        # what has led back from an op to where it went wrong is one cluster, and none of it an island
        is_slice = problem.fails_when_it_runs and problem.followed and problem.steps
        if name == "islands" and is_slice:
            continue
        if len(before.calls) > FEW_UNITS:
            problem.begin_phase(name)
            search(problem)
        if problem.best is not before:
            follow_suspects(problem)


def polish(problem: ReductionProblem) -> None:
    """Single removals until a whole round changes nothing."""
    before: Candidate | None = None
    while problem.best is not before:
        before = problem.best
        run_passes(problem, ALONG_A_CHAIN if problem.fails_when_it_runs else POLISHING)


def minimize(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    fails: Callable[[fx.GraphModule, list[Any]], bool],
    *,
    max_calls: int | None = None,
    seconds: float | None = None,
    simplify: bool = False,
) -> Minimized:
    """The smallest part of ``gm`` for which ``fails(gm, inputs)`` is still true.

    ``fails`` runs in this process and gets copies of its own, which it may change. ``simplify``
    goes on with plainer arguments, smaller shapes and plain tensors, and merges the inputs of a
    single call. ``max_calls`` and ``seconds`` are looked at between calls. ``gm`` and ``inputs``
    are only read; ``gm`` runs in eager, in the current grad mode, to find the values inside it.
    Raises NotReproduced when ``fails`` is false for the whole of it, MinidbgError when ``inputs``
    do not fit the graph, and what ``fails`` raises.
    """
    placeholders = sum(node.op == "placeholder" for node in gm.graph.nodes)
    if placeholders != len(inputs):
        raise MinidbgError(
            f"the graph takes {placeholders} inputs, {len(inputs)} were given; one is needed for each placeholder"
        )

    def ask(candidates: Sequence[Candidate]) -> list[Verdict]:
        asked = [(copied(candidate.graph_module), clone_values(candidate.inputs)) for candidate in candidates]
        return [Verdict.REPRODUCES if fails(*question) else Verdict.GONE for question in asked]

    return reduce_graph(
        gm,
        tuple(inputs),
        ask,
        limits=Limits(math.inf if seconds is None else seconds, max_calls, jobs=1),
        whole_is_known=False,
        allow_no_calls=True,
        simplify=simplify,
    )


def copied(graph_module: fx.GraphModule) -> fx.GraphModule:
    """A copy that shares nothing that may change; tensors and modules inside are copied as well."""
    holds = any(node.op in ("get_attr", "call_module") for node in graph_module.graph.nodes)
    return copy.deepcopy(graph_module) if holds else copy_graph_module(graph_module)
