"""What a case may ask of the judge for wrong results, and what the judge says besides its verdict."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import planted_backends
import pytest
import torch
import wrong_results as planted
from torch import fx

from minidbg import repro
from minidbg.core.outcome import Direction, Kind, Outcome, Signature, Verdict
from minidbg.core.run_spec import BackendRef, CallPath, Context, RunSpec
from minidbg.fx.case import Case
from minidbg.fx.copying import capture_by_dynamo
from minidbg.judge import run
from minidbg.judge.compare import margin_for
from minidbg.oracle.execute import execute

ANY = RunSpec(BackendRef("any", "any"), dynamic=None)
WRONG = Signature(Kind.ACCURACY, message="output: float")
MakeCase = Callable[..., Case]


def test_a_margin_is_the_root_of_the_excess_between_1_and_10() -> None:
    margins = [margin_for({"excess": excess}) for excess in (0.5, 16.0, "inf")]
    assert [margin_for({}), *margins] == [1.0, 1.0, 4.0, 10.0]


def test_match_narrows_the_failure(case_of: MakeCase) -> None:
    case = case_of(planted.wrong_relu, signature=WRONG, match="output 0 differs")
    assert execute(case).verdict is Verdict.REPRODUCES
    assert execute(case.with_spec(match="output 7")).verdict is Verdict.CHANGED


def gives_it_back(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    return gm


def test_what_eager_itself_draws_anew_is_said_to_be_unjudged() -> None:
    graph, inputs = capture_by_dynamo(lambda x: (torch.rand_like(x), x + 1), (torch.ones(3, 4),))
    program = run.Runnable(lambda: graph, lambda: inputs, planted.other_random_numbers, ANY)
    found = run.judge(program, any_failure=True)
    assert found.verdict is Verdict.GONE
    assert (
        found.reason == "output 0 is not judged: eager differs from itself, or may with other random numbers"
    )


def judged_of(op: Callable[[torch.Tensor], Any]) -> Outcome:
    """What a backend that runs the graph of ``op`` shows."""
    graph = fx.Graph()
    graph.output((graph.call_function(op, (graph.placeholder("x"),)),))
    made = fx.GraphModule(torch.nn.Module(), graph)
    direct = replace(ANY, call=CallPath.DIRECT)
    program = run.Runnable(lambda: made, lambda: (torch.ones(3),), planted_backends.runs_the_graph, direct)
    return run.judge(program, any_failure=True)


def test_what_eager_gives_otherwise_at_each_call_without_a_random_number_is_said_to_be_unjudged() -> None:
    calls = itertools.count()
    found = judged_of(lambda x: x + next(calls))
    assert found.verdict is Verdict.GONE
    assert found.reason.startswith("output 0 is not judged: eager differs from itself")


class NeverAlike:
    def __eq__(self, other: object) -> bool:
        raise ValueError("a bug")


def test_results_that_cannot_be_compared_prove_nothing() -> None:
    nested = judged_of(lambda x: torch.nested.nested_tensor([x]))
    assert (nested.verdict, nested.reason[:31]) == (Verdict.INVALID, "cannot be compared with eager: ")
    assert "(ValueError: a bug); that is a bug in minidbg" in judged_of(lambda x: NeverAlike()).reason


def test_models_and_inputs_are_made_outside_the_modes_of_the_run() -> None:
    seen: list[tuple[torch.dtype, bool, bool]] = []

    def look() -> None:
        modes = torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
        seen.append((torch.get_default_dtype(), *modes))

    class Looks(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            look()
            return x + 1

    def make_inputs() -> tuple[Any, ...]:
        look()
        return (torch.ones(2),)

    context = Context(
        default_dtype="torch.float64", inference=True, autocast=(("cpu", "torch.bfloat16", True),)
    )
    spec = replace(ANY, call=CallPath.DIRECT, context=context)
    run.judge(run.Runnable(Looks, make_inputs, gives_it_back, spec))
    assert seen[:2] == [(torch.float32, False, False), (torch.float64, True, True)]


@pytest.mark.parametrize("error", [FileNotFoundError("r.safetensors"), ModuleNotFoundError("safetensors")])
def test_values_that_are_not_beside_the_script_are_skipped(error: Exception) -> None:
    def make_inputs() -> tuple[Any, ...]:
        raise error

    found = run.judge(run.Runnable(torch.nn.Identity, make_inputs, "eager", ANY))
    assert found.verdict is Verdict.SKIPPED
    assert str(error) in found.reason


def masked_in_place(scores: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    scores += 1
    return torch.sin(scores) * weight


@pytest.mark.parametrize(
    ("backend", "verdict"), [("aot_eager", Verdict.GONE), (planted.wrong_gradient, Verdict.REPRODUCES)]
)
def test_the_gradient_of_an_activation_that_the_graph_writes_to_is_that_from_before(
    backend: Any, verdict: Verdict
) -> None:
    """Longformer: after ``+=`` eager's is that of the new value, which AOTAutograd's graph does not know."""
    scores = (torch.randn(4, 5, requires_grad=True) * 1)[:, 1:3].t()
    graph, inputs = capture_by_dynamo(masked_in_place, (scores, torch.ones(scores.shape, requires_grad=True)))
    signature = Signature(Kind.ACCURACY, Direction.BACKWARD, message="gradient: float")
    case = Case(
        graph, inputs, RunSpec(BackendRef("b", "b"), signature=signature, backward=True), compiler=backend
    )
    outcome = execute(case)
    assert outcome.verdict is verdict, outcome
    assert verdict is Verdict.GONE or "gradient of input 0" in outcome.message
    with pytest.raises(repro.NoShortForm, match="before the write"):
        repro.render(case)
