"""``reduce_graph``: the passes in order, and the certificate at the end; ``minimize``: with a predicate of the user's."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from torch import fx

from minidbg.core.errors import MinidbgError, NotReproduced
from minidbg.fx.copying import clone_values, freezing_gc
from minidbg.reduction import edits
from minidbg.reduction.candidate import (
    AskGraph,
    BudgetSpent,
    Candidate,
    OracleAnswer,
    OwnGraph,
)
from minidbg.reduction.culprits import drop_chunks, keep_needed, narrow_window, try_islands
from minidbg.reduction.problem import Pass, ReductionProblem
from minidbg.reduction.result import Limits
from minidbg.reduction.simplify import SIMPLIFYING, is_another_cause, plainness, simplify_inputs_at_once
from minidbg.reduction.subsets import FEW_UNITS, follow_frames, try_suspects

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

FINDING: Passes = (
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
    ask: AskGraph,
    *,
    simplify: bool = False,
    **how: Any,
) -> Minimized:
    """The smallest graph cut out of ``graph_module`` that ``ask`` finds interesting.

    ``ask`` gets a GraphModule of its own each time, and inputs that it must not write to.
    ``simplify`` adds the edits beyond nodes, inputs and outputs. ``how`` are fields of
    ``ReductionProblem``. Ctrl-C and a spent budget end it with the best so far. Raises what ``ask``
    raises, and NotReproduced when the whole had to be asked and did not fail; where it was said to
    be known, ``whole_passed`` says so instead.
    """
    tokens = tuple(
        ("value", "", node.name, 0, ()) for node in graph_module.graph.nodes if node.op == "placeholder"
    )
    whole = Candidate(OwnGraph(graph_module), tuple(inputs), tokens, faithful=True)
    problem = ReductionProblem(whole, ask, **how)
    proven: Candidate | None = None
    interrupted, whole_passed, is_out_of_budget = False, False, False
    try:
        follow_frames(problem)
        if not problem.steps:
            run_pass(problem, "suspects", try_suspects)
        reduce_to_fixed_point(problem, AT_FIRST if simplify else ())
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


def reduce_to_fixed_point(problem: ReductionProblem, then: Passes = ()) -> None:
    """All passes until a whole round changes nothing; ``then`` is what will come after that.

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
            run_pass(problem, "chunks", drop_chunks)
        problem.keep_passed_through = True
        polish(problem, then)


def simplify_to_fixed_point(problem: ReductionProblem) -> None:
    """Plainer and plainer, and smaller where that became possible by it, until a whole round changes nothing."""
    before: Candidate | None = None
    while problem.best is not before:
        first, before = before is None, problem.best
        problem.plainness = plainness
        run_each(problem, AT_FIRST if first else SIMPLIFYING, (), POLISHING)
        problem.plainness = None
        if problem.best is not before:
            reduce_to_fixed_point(problem, SIMPLIFYING)


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
    for name, reduction_pass in FINDING:
        before = problem.best
        # what has led back from an op to where it went wrong is one cluster, and none of it an island
        is_slice = problem.fails_when_it_runs and problem.followed and problem.steps
        if name == "islands" and is_slice:
            continue
        if len(before.calls) > FEW_UNITS:
            run_pass(problem, name, reduction_pass)
        if problem.best is not before:
            follow_frames(problem)


def polish(problem: ReductionProblem, then: Passes = ()) -> None:
    """Single removals until a whole round changes nothing; ``then`` is what will come after that."""
    passes = ALONG_A_CHAIN if problem.fails_when_it_runs else POLISHING
    before: Candidate | None = None
    while problem.best is not before:
        before = problem.best
        run_each(problem, passes, then, passes)


def run_each(problem: ReductionProblem, passes: Passes, if_same: Passes, if_smaller: Passes) -> None:
    """The passes in order. What comes after them, once ``best`` is the same or has become smaller, is foreseen only."""
    before = problem.best
    for index, (name, reduction_pass) in enumerate(passes):

        def coming(left: Passes = passes[index:]) -> Passes:
            return (*left, *(if_same if problem.best is before else if_smaller))

        problem.foresee = partial(asked_after, coming)
        run_pass(problem, name, reduction_pass)
    problem.foresee = None


def asked_after(
    coming: Callable[[], Passes], problem: ReductionProblem, question: Candidate, most: int
) -> list[Candidate]:
    """At most ``most`` questions that the passes ``coming()`` ask after ``question`` if it and they all pass.

    A pass is deterministic, so it is run beforehand, on a copy of the problem. What it has asked
    already, of a larger ``best``, it asks there anew: that comes before ``question``, and does not
    count.
    """
    found: dict[str, Candidate] = {}
    is_reached = False

    def answer(candidate: Candidate) -> OracleAnswer:
        nonlocal is_reached
        known = problem.answered_ahead(candidate)
        if known is not None:
            return known
        if is_reached:
            found[candidate.key] = candidate
            if len(found) == most:
                raise BudgetSpent
        is_reached = is_reached or candidate.key == question.key
        return OracleAnswer.NOT

    twin = problem.imagined(answer)
    with contextlib.suppress(BudgetSpent):
        for _, reduction_pass in coming():
            reduction_pass(twin)
    return list(found.values())


def run_pass(problem: ReductionProblem, name: str, reduction_pass: Pass) -> None:
    problem.begin_phase(name)
    reduction_pass(problem)


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

    def ask(graph_module: fx.GraphModule, values: tuple[Any, ...]) -> OracleAnswer:
        return OracleAnswer.INTERESTING if fails(graph_module, clone_values(values)) else OracleAnswer.NOT

    return reduce_graph(
        gm,
        tuple(inputs),
        ask,
        limits=Limits(math.inf if seconds is None else seconds, max_calls),
        whole_is_known=False,
        allow_no_calls=True,
        simplify=simplify,
    )
