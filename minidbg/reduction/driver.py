"""``reduce_graph``: passes in order, then the certificate; ``minimize``: by a user's predicate."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import fx

from minidbg.core.errors import MinidbgError
from minidbg.core.machine import NEVER, Deadline
from minidbg.core.outcome import Outcome, Verdict
from minidbg.fx.copying import clone_values, copy_graph_module, freezing_gc
from minidbg.reduction import edits, find
from minidbg.reduction.search import BudgetSpent, Candidate, Pass, Search, run_passes
from minidbg.reduction.simplify import SIMPLIFYING, is_another_cause, plainness, simplify_inputs_at_once

LEAST_SIMPLIFYING_S = 20.0
"""Simplification may take as long as the reduction before it took, and at least this."""


@dataclass(frozen=True, slots=True)
class Minimized:
    """The smallest graph found that still fails, its inputs, and how it was found."""

    graph_module: fx.GraphModule
    inputs: tuple[Any, ...]
    oracle_calls: int
    certified: bool
    """Whether no removal of one node, input or output still fails the same way: all were tried."""
    interrupted: bool
    """Whether Ctrl-C ended it."""
    seconds: float
    steps: tuple[tuple[fx.GraphModule, tuple[Any, ...]], ...]
    """Accepted candidates, largest first; the last is the result."""
    neighbour: tuple[fx.GraphModule, tuple[Any, ...]] | None = None
    """One step smaller, and passing."""
    is_out_of_budget: bool = False
    """Whether a spent budget ended it: certified or not, perhaps not as plain as it may be."""


Passes: TypeAlias = tuple[tuple[str, Pass], ...]

FINDING: tuple[tuple[str, Callable[[Search], None]], ...] = (
    ("islands", find.try_islands),
    ("bisect", find.narrow_window),
    ("needed", find.keep_needed),
)
"""From a large graph to the few nodes that matter; each once, and none in a small graph."""

POLISHING: Passes = (
    ("branches", edits.inline_branches),
    ("outputs", edits.drop_outputs),
    ("elements", edits.drop_elements),
    ("modes", edits.drop_modes),
    ("inputs", edits.drop_inputs),
    ("nodes", edits.drop_nodes),
    ("bypass", edits.bypass_nodes),
    ("branch nodes", edits.drop_nested_nodes),
)
"""Single removals, repeated until none succeeds."""

ALONG_A_CHAIN: Passes = tuple(
    sorted(POLISHING, key=lambda row: POLISHING.index(row) if row[0] != "bypass" else 4.5)
)
"""The same where values go wrong at one op and are noticed at another: a call between them can be
bypassed, and seldom left out."""


@freezing_gc()
def reduce_graph(search: Search, *, simplify: bool = False) -> None:
    """Find the smallest graph cut out of ``search.best`` that its oracle finds interesting.

    The oracle must not write to the graphs and inputs of its candidates. ``simplify`` adds the
    edits beyond nodes, inputs and outputs. A spent budget ends it with the best so far. Raises
    what the oracle raises, and NotReproduced when the whole was asked and did not fail.
    """
    try:
        find.follow_suspects(search)
        reduce_to_fixed_point(search)
        if search.by_predicate:
            search.confirm_whole()
        search.proven = search.best
        if simplify:
            simplify_truly(search)
            search.proven = search.best
    except BudgetSpent:
        search.is_out_of_budget = True


def reduce_to_fixed_point(search: Search) -> None:
    """All passes until a whole round changes nothing. Each begins anew, with nothing presumed: a
    failure need not be monotone, and may have gone away with a node and come back when more nodes
    went. What is small then is polished alone."""
    before: Candidate | None = None
    while search.best is not before:
        is_first, before = before is None, search.best
        search.passing.clear()
        search.keep_passed_through = False
        if is_first or len(before.calls) > 2 * find.FEW_UNITS:
            for name, narrower in FINDING:
                larger = search.best
                # what has led back from an op to where it went wrong is one cluster, and none of it an island
                is_slice = search.traits.raises_when_run and search.followed and search.steps
                if len(larger.calls) > find.FEW_UNITS and not (name == "islands" and is_slice):
                    search.phase = name
                    narrower(search)
                if search.best is not larger:
                    find.follow_suspects(search)
        # a failure that is not monotone may need none of what single removals keep
        elif len(before.calls) > find.FEW_UNITS:
            search.phase = "chunks"
            find.drop_chunks(search)
        search.keep_passed_through = True
        polished = None  # until a whole round changes nothing: that round is the certificate
        while search.best is not polished:
            polished = search.best
            run_passes(search, ALONG_A_CHAIN if search.traits.raises_when_run else POLISHING)


def simplify_truly(search: Search) -> None:
    """Plainer and plainer, and smaller where that became possible by it, until a whole round
    changes nothing, but no longer than the reduction took so far; what that leaves is 1-minimal
    again. Once more, with the arguments as they were, where a plainer one had become the cause."""
    whole, steps, until = search.best, search.steps, search.until
    for passes in (SIMPLIFYING, tuple(row for row in SIMPLIFYING if row[0] != "arguments")):
        seconds = max(LEAST_SIMPLIFYING_S, time.monotonic() - search.started)
        search.until = replace(until, at=min(until.at, until.clock() + seconds))
        # what a graph owns becomes inputs, and these are made plain all at once
        following = (*passes[:2], ("all at once", simplify_inputs_at_once), *passes[2:])
        before: Candidate | None = None
        try:
            while search.best is not before:
                before, search.plainness = search.best, plainness
                run_passes(search, following)
                following, search.plainness = passes, None
                if search.best is not before:
                    reduce_to_fixed_point(search)
        except BudgetSpent:
            search.until, search.plainness = until, None
            reduce_to_fixed_point(search)
        search.until = until
        if not is_another_cause(search):
            break
        search.best, search.steps, search.neighbour = whole, steps, None
        search.settled_sizes.clear()


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
            f"the graph takes {placeholders} inputs, {len(inputs)} were given;"
            " one is needed for each placeholder"
        )

    def ask(candidates: Sequence[Candidate]) -> list[Outcome]:
        verdicts = []
        for candidate in candidates:
            # a copy that shares nothing that may change, tensors and modules inside included
            graph = candidate.graph_module.graph
            holds = any(node.op in ("get_attr", "call_module") for node in graph.nodes)
            copied = (copy.deepcopy if holds else copy_graph_module)(candidate.graph_module)
            # a predicate that fails half-way leaves its mode behind
            with torch.set_grad_enabled(torch.is_grad_enabled()):
                failed = fails(copied, clone_values(candidate.inputs))
            verdicts.append(Verdict.REPRODUCES if failed else Verdict.GONE)
        return [Outcome(verdict) for verdict in verdicts]

    search = Search(
        Candidate.whole(gm, inputs),
        ask,
        until=NEVER if seconds is None else Deadline.after(seconds),
        max_calls=math.inf if max_calls is None else max_calls,
        by_predicate=True,
    )
    interrupted = False
    try:
        reduce_graph(search, simplify=simplify)
    except KeyboardInterrupt:
        interrupted = True
    best, passed = search.best, search.neighbour
    return Minimized(
        best.graph_module,
        best.inputs,
        search.asked,
        certified=search.proven is best,
        interrupted=interrupted,
        seconds=time.monotonic() - search.started,
        steps=tuple((step.graph_module, step.inputs) for step in search.steps),
        neighbour=(passed[1].graph_module, passed[1].inputs) if passed else None,
        is_out_of_budget=search.is_out_of_budget,
    )
