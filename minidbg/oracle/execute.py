"""Runs a case in this process and says what happened. What a backend raises becomes an Outcome.

What is known of inductor makes a question cost less, and its answer never another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import fx

from minidbg import backends, torch_internals
from minidbg.codegen.module_text import instantiate, write_graph_builder, write_module
from minidbg.core.errors import CannotWrite, MinidbgError
from minidbg.core.outcome import Direction, Outcome, Verdict
from minidbg.core.run_spec import CallPath, Level
from minidbg.fx.case import Case
from minidbg.fx.copying import clone_values
from minidbg.judge import run
from minidbg.judge.compare import Comparison
from minidbg.judge.suspects import Suspects, renamed, suspects_of
from minidbg.torch_internals.dynamo import calls_that_count, text_of_call

Graphs: TypeAlias = Sequence[Sequence[fx.Node]]

INDUCTOR = "torch._inductor."
BEFORE_INDUCTORS_CODEGEN = (
    *(INDUCTOR + name for name in ("fx_passes", "pattern_matcher", "decomposition", "lowering")),
    *("torch._decomp", "torch._refs", "torch._meta_registrations"),
)
"""Modules that run before inductor schedules a graph, and not after."""
LOWERING_ERROR = f"{INDUCTOR}exc.LoweringException"
BEFORE_INDUCTORS_KERNELS = (
    *(INDUCTOR + name for name in ("scheduler", "codegen", "ir", "loop_body", "bounds", "memory")),
    *(INDUCTOR + name for name in ("dependencies", "index_propagation", "ops_handler", "sizevars")),
)
"""Modules whose work is done when inductor begins to compile the kernels that it has generated."""


def last_stage_needed(case: Case) -> torch_internals.InductorStop | None:
    """The last stage of inductor, short of all, in which the case's failure can happen: a graph
    that comes through it has passed."""
    signature, traits = case.signature, case.spec.traits
    is_inductors = case.backend.expression.strip("'\"") == "inductor" and not case.spec.backward
    if signature is None or not is_inductors or signature.direction is not Direction.FORWARD:
        return None
    if traits.compiles or not traits.raises:
        return None
    own = [frame for frame in signature.frames if frame.startswith(INDUCTOR)]
    innermost = signature.frames[0] if signature.frames else ""
    if LOWERING_ERROR in signature.types or innermost.startswith(BEFORE_INDUCTORS_CODEGEN):
        return torch_internals.InductorStop.LOWERING
    if own and own[0].startswith(BEFORE_INDUCTORS_KERNELS):
        return torch_internals.InductorStop.CODEGEN
    return None


ANOTHER_GRAPH = "dynamo handed another graph to the backend"
"""How the reason of an outcome begins that says nothing about the case on this call path."""


def execute(
    case: Case,
    *,
    note: Callable[[str], object] = lambda phase: None,
    to_the_end: bool = True,
    seen: Callable[[Comparison], object] = lambda comparison: None,
) -> Outcome:
    """Run ``case`` once in eager and once through its backend, here; judged against its signature.

    Made for a child process: a crash or a hang is the caller's. RNG state, graph and inputs are
    afterwards what they were. ``note`` hears which part begins: ``eager``, ``compile forward``,
    ``runtime backward``. Only KeyboardInterrupt passes through. ``to_the_end`` False: a backend
    that is known (inductor) may stop once the case can no longer fail as expected; the outcome is
    then ``gone``, whatever the later stages would have said. ``seen`` is ``judge``'s.
    """
    if case.spec.level is Level.ATEN and case.spec.call is not CallPath.DIRECT:
        return Outcome(Verdict.INVALID, reason="a compiler for aot_autograd is called directly only")
    try:
        compiler = case.compiler if case.compiler is not None else backends.resolve(case.backend)
    except (ImportError, MinidbgError) as error:
        return Outcome(Verdict.SKIPPED, reason=f"the backend is not here: {run.brief(error)}")
    # as a repro script holds it, so that script and judge run the same program
    write = write_graph_builder if case.spec.call is CallPath.DIRECT else write_module
    try:
        source = write(case.graph_module)
    except CannotWrite as error:
        return Outcome(Verdict.INVALID, reason=str(error))
    device = next((str(x.device) for x in case.inputs if isinstance(x, torch.Tensor)), "cpu")
    suspects: list[Suspects] = []
    stage = None if to_the_end else last_stage_needed(case)
    with (
        torch_internals.restoring_random_numbers(case.inputs),
        torch_internals.outside_tracing(),
        torch_internals.without_overrides(),
        torch_internals.graphs_given_to_backends() as reached,
        torch_internals.inductor_stopped_after(stage) as stopped,
    ):
        outcome = run.judge(
            run.Runnable(
                make_model=lambda: instantiate(source),
                make_inputs=lambda: tuple(clone_values(case.inputs)),
                compiler=compiler,
                spec=case.spec,
            ),
            any_failure=case.signature is None,
            note=note,
            witness=lambda error: suspects.append(named_in_case(error, case, reached)),
            seen=seen,
        )
    outcome = replace(outcome, device=device, suspects=next(iter(suspects), ()))
    if stopped:  # what was raised means nothing
        reason = "it passed the stage that fails"
        outcome = Outcome(Verdict.GONE, reason=reason, seconds=outcome.seconds, device=device)
    if case.spec.call is CallPath.TORCH_COMPILE and outcome.verdict is Verdict.GONE:
        outcome = unless_another_graph(outcome, case, reached)
    return outcome


def named_in_case(error: BaseException, case: Case, reached: Graphs) -> Suspects:
    """The nodes of the case's graph that ``error``'s frames name; dynamo may have renamed them."""
    own = calls_that_count(case.graph_module.graph)
    given = reached[0] if reached else own
    suspects = suspects_of(error, given)
    if len(given) != len(own):
        return suspects
    # dynamo of 2.14 and later writes arithmetic on sizes in an order of its own
    pairs = zip(*(sorted(calls, key=text_of_call) for calls in (given, own)), strict=True)
    return renamed(suspects, {theirs.name: ours.name for theirs, ours in pairs})


def unless_another_graph(outcome: Outcome, case: Case, reached: Graphs) -> Outcome:
    """``outcome``, or INVALID when the backend was not given the candidate: that proves nothing."""
    reason = "no graph reached the backend"
    if reached:
        both = calls_that_count(case.graph_module.graph), reached[-1]
        wanted, actual = (Counter(map(text_of_call, calls)) for calls in both)
        if len(reached) == 1 and actual == wanted:
            return outcome
        more, fewer = (", ".join(calls) or "nothing" for calls in (actual - wanted, wanted - actual))
        reason = f"{ANOTHER_GRAPH}: {len(reached)} of them; the last has {more} more, {fewer} less"
    return Outcome(Verdict.INVALID, reason=reason, seconds=outcome.seconds)
