"""Runs a case in this process and says what happened. Whatever a foreign backend raises ends here as an Outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import torch

from minidbg import _torch, references
from minidbg.case import CallPath, Case, Level
from minidbg.devices import devices_of as accelerators_of
from minidbg.devices import generators_put_back
from minidbg.errors import CannotWrite, MinidbgError
from minidbg.failure import Kind, Outcome, Verdict
from minidbg.graphs import ModuleSource, instantiate, write_module
from minidbg.graphs.attributes import by_name
from minidbg.graphs.copying import clone_values
from minidbg.graphs.effects import is_call
from minidbg.graphs.source import write_graph_builder
from minidbg.oracle import adapters, harness
from minidbg.oracle.agreement import differ
from minidbg.oracle.embed import settings_of
from minidbg.oracle.suspects import Suspects, renamed, suspects_of

Note = Callable[[str], object]


def execute(case: Case, *, note: Note = lambda phase: None, to_the_end: bool = True) -> Outcome:
    """Run ``case`` once in eager and once through its backend, here; judged against the case's signature.

    Made for a child process: a crash or a hang is the caller's. RNG state, graph and inputs are afterwards what
    they were. ``note`` hears which part begins: ``eager``, ``compile forward``, ``runtime backward``.
    Only KeyboardInterrupt passes through. ``to_the_end`` False: a backend that is known (``oracle.adapters``) may stop once the
    case can no longer fail as expected; the outcome is then ``gone``, whatever the later stages would have said.
    """
    if case.level is Level.ATEN and case.call is not CallPath.DIRECT:
        return Outcome(Verdict.INVALID, reason="a compiler for aot_autograd is called directly only")
    try:
        compiler = case.compiler if case.compiler is not None else references.resolve(case.backend)
    except (ImportError, MinidbgError) as error:
        return Outcome(Verdict.SKIPPED, reason=f"the backend is not here: {harness.brief(error)}")
    try:
        source = written(case)
    except CannotWrite as error:
        return Outcome(Verdict.INVALID, reason=str(error))
    devices = devices_of(case.inputs)
    suspects: list[Suspects] = []
    with (
        generators_put_back(map(str, accelerators_of(case.inputs))),
        _torch.outside_tracing(),
        _torch.graphs_given_to_backends() as reached,
        adapters.without_needless_stages(case, wanted=not to_the_end) as stopped,
    ):
        found = harness.attempt(
            make_model=lambda: instantiate(source, fresh(source)),
            make_inputs=lambda: tuple(clone_values(case.inputs)),
            compiler=compiler,
            case={**settings_of(case), "margin": case.margin},
            note=note,
            differ=differ if case.kind in (None, Kind.ACCURACY) else None,
            witness=lambda error: suspects.append(named_in_case(error, case, reached)),
        )
    device = str(devices[0]) if devices else "cpu"
    outcome = replace(Outcome.from_json({**found, "device": device}), suspects=next(iter(suspects), ()))
    if stopped:
        outcome = Outcome(
            Verdict.GONE, reason="it passed the stage that fails", seconds=outcome.seconds, device=device
        )
    if case.call is CallPath.TORCH_COMPILE and outcome.verdict is Verdict.GONE:
        outcome = unless_another_graph(outcome, case, reached)
    return outcome  # the harness has judged it against the case's signature


def named_in_case(
    error: BaseException, case: Case, reached: Sequence[Sequence[_torch.GivenCall]]
) -> Suspects:
    """The nodes of the case's graph that the frames of ``error`` name; dynamo may have given them other names."""
    own = [node.name for node in _torch.calls_that_count(case.graph_module, case.inputs)]
    calls = (
        reached[0]
        if reached
        else [_torch.GivenCall.of(node) for node in case.graph_module.graph.nodes if is_call(node)]
    )
    suspects = suspects_of(error, calls)
    if len(calls) != len(own) or not reached:
        return suspects
    return renamed(suspects, dict(zip([call.name for call in calls], own, strict=True)))


def written(case: Case) -> ModuleSource:
    """The case's graph as a repro script will hold it, so that script and oracle run the same program."""
    if case.call is CallPath.DIRECT:
        return write_graph_builder(case.graph_module, constant_expression=by_name)
    return write_module(case.graph_module, constant_expression=by_name)


def fresh(source: ModuleSource) -> dict[str, torch.Tensor]:
    """The source's constants for one run, which may write to them."""
    return dict(zip(source.constants, clone_values(list(source.constants.values())), strict=True))


def devices_of(inputs: Sequence[Any]) -> list[torch.device]:
    """Devices of the tensors among ``inputs``, each once, in order."""
    return list(dict.fromkeys(value.device for value in inputs if isinstance(value, torch.Tensor)))


def unless_another_graph(
    outcome: Outcome, case: Case, reached: Sequence[Sequence[_torch.GivenCall]]
) -> Outcome:
    """``outcome``, or INVALID when what reached the backend was not the candidate: its success proves nothing."""
    if not reached:
        return Outcome(Verdict.INVALID, reason="no graph reached the backend", seconds=outcome.seconds)
    wanted = _torch.call_targets(case.graph_module, case.inputs)
    if len(reached) == 1 and [call.text for call in reached[0]] == wanted:
        return outcome
    found = [call.text for call in reached[-1]]
    first = next((pair for pair in zip_longest(wanted, found) if pair[0] != pair[1]), (None, None))
    reason = (
        f"dynamo handed another graph to the backend: {len(reached)} of them, the last with {len(found)} calls "
        f"instead of {len(wanted)}; first difference: {first[1]} instead of {first[0]}"
    )
    return Outcome(Verdict.INVALID, reason=reason, seconds=outcome.seconds)
