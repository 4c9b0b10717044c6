"""What is tried around the graph once the graph is small."""

from __future__ import annotations

import torch
import torch._inductor.config as inductor_config
from torch import fx

from minidbg.core.run_spec import BackendRef, CallPath, Context, RunSpec
from minidbg.fx.case import Case
from minidbg.reduction.context_passes import simplify

INDUCTOR = "torch._inductor.config"
BUG = "cpp.inject_relu_bug_TESTING_ONLY"


def case_with(context: Context, inputs: int = 1) -> Case:
    """A graph of one sin; of two inputs the first is a size that nothing uses."""
    graph = fx.Graph()
    if inputs == 2:
        graph.placeholder("size")
    graph.output((graph.call_function(torch.sin, (graph.placeholder("x"),)),))
    values = (torch.ones(2),) if inputs == 1 else (2, torch.ones(2))
    return Case(
        fx.GraphModule(torch.nn.Module(), graph), values, RunSpec(BackendRef("eager", '"eager"'), context)
    )


def test_an_option_is_tried_at_its_default_since_this_process_still_has_it() -> None:
    """The oracle's forks inherit what the user has set; a fresh interpreter does not."""
    context = Context(config={INDUCTOR: {BUG: "accuracy"}})

    def fails(case: Case) -> bool:
        with (
            inductor_config.patch({BUG: "accuracy"}),
            inductor_config.patch(dict(case.spec.context.config.get(INDUCTOR, {}))),
        ):
            return inductor_config.cpp.inject_relu_bug_TESTING_ONLY == "accuracy"

    assert simplify(case_with(context), fails).spec.context.config == {INDUCTOR: {BUG: "accuracy"}}


def test_an_option_that_is_not_needed_leaves_no_trace() -> None:
    context = Context(config={INDUCTOR: {BUG: "accuracy"}})
    assert simplify(case_with(context), lambda case: True).spec.context.config == {}


def test_modes_are_tried_each_for_itself_when_one_is_needed() -> None:
    context = Context(grad=False, deterministic=True, default_dtype="torch.float64")
    kept = simplify(case_with(context), lambda case: case.spec.context.deterministic).spec.context
    assert kept == Context(deterministic=True)


def test_a_size_that_nothing_uses_is_left_to_dynamo() -> None:
    assert simplify(case_with(Context(), inputs=2), lambda case: True).inputs[0].shape == (2,)


def test_a_small_graph_goes_by_torch_compile_again_where_that_fails_too() -> None:
    direct = case_with(Context()).with_spec(call=CallPath.DIRECT)
    assert simplify(direct, lambda case: True).spec.call is CallPath.TORCH_COMPILE
    assert simplify(direct, lambda case: case.spec.call is CallPath.DIRECT).spec.call is CallPath.DIRECT


def test_no_input_requires_grad_where_the_failure_needs_none() -> None:
    case = case_with(Context(grad=False))
    case = case.with_graph(case.graph_module, (torch.ones(2, requires_grad=True),))
    kept = simplify(case, lambda case: not case.spec.backward)
    assert not kept.inputs[0].requires_grad
    assert kept.spec.context.grad
    assert simplify(case, lambda case: case.inputs[0].requires_grad).inputs[0].requires_grad
    with_backward = simplify(case.with_spec(backward=True), lambda case: case.spec.backward)
    assert with_backward.inputs[0].requires_grad
