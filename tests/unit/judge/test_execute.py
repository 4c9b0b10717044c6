"""One run of a case in this process, over planted backends: what it shows, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import planted_backends as planted
import pytest
import torch
from torch import fx

from minidbg.codegen.size import call_nodes, canonical_text
from minidbg.core.outcome import Direction, Kind, Signature, Verdict
from minidbg.core.run_spec import BackendRef, CallPath, Context
from minidbg.fx.case import Case
from minidbg.fx.copying import capture_by_dynamo
from minidbg.oracle.execute import execute

CaseOf = Callable[..., Case]
BOTH_PATHS = pytest.mark.parametrize("call", list(CallPath))


RAISES = [
    (planted.raises_on_relu, Kind.COMPILE, "raises_on_relu"),
    (planted.raises_in_run_on_relu, Kind.RUNTIME, "raises_in_run_on_relu.compiled_fn"),
    (planted.asks_for_fallback_on_relu, Kind.COMPILE, "asks_for_fallback_on_relu"),
    (planted.raises_without_a_message_on_relu, Kind.COMPILE, "raises_without_a_message_on_relu"),
    (planted.mutates_its_graph, Kind.COMPILE, "mutates_its_graph"),
    (planted.raises_a_panic_on_relu, Kind.COMPILE, "raises_a_panic_on_relu"),
    (planted.ends_the_program_on_relu, Kind.COMPILE, "ends_the_program_on_relu"),
]
"""The last four through ``torch.compile`` are programs of the corpus."""


@pytest.mark.parametrize(
    ("backend", "kind", "innermost", "call"),
    [
        *((*row, CallPath.DIRECT) for row in RAISES),
        *((*row, CallPath.TORCH_COMPILE) for row in RAISES[:3]),
    ],
)
def test_what_a_backend_raises_is_told_by_kind_and_place(
    case_of: CaseOf, call: CallPath, backend: Any, kind: Kind, innermost: str
) -> None:
    outcome = execute(case_of(backend, call=call))
    assert outcome.verdict is Verdict.REPRODUCES
    assert (outcome.signature.kind, outcome.signature.direction) == (kind, Direction.FORWARD)
    assert outcome.signature.frames == (f"planted_backends:{innermost}",)
    module = outcome.signature.types[0].partition(".")[0]
    assert module in ("planted_backends", "torch", "SystemExit", "RuntimeError")


@BOTH_PATHS
@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        (planted.raises_in_backward_of_relu, Kind.COMPILE),
        (planted.raises_in_run_of_backward_of_relu, Kind.RUNTIME),
    ],
)
def test_backward_is_told_from_forward(case_of: CaseOf, call: CallPath, backend: Any, kind: Kind) -> None:
    inputs = (torch.randn(3, 4, requires_grad=True),)
    forward_only = execute(case_of(backend, call=call, inputs=inputs))
    outcome = execute(case_of(backend, call=call, inputs=inputs, backward=True))
    assert forward_only.verdict is Verdict.GONE
    assert (outcome.signature.kind, outcome.signature.direction) == (kind, Direction.BACKWARD)


def test_graph_that_never_reaches_the_backend_is_invalid(case_of: CaseOf) -> None:
    outcome = execute(case_of(planted.raises_on_relu, graph_module=fx.symbolic_trace(lambda x: (x,))))
    assert outcome.verdict is Verdict.INVALID
    assert "backend" in outcome.reason


def test_backend_that_asks_for_eager_has_not_failed(case_of: CaseOf) -> None:
    assert execute(case_of(planted.asks_to_skip_the_frame)).verdict is Verdict.INVALID


def test_keyboard_interrupt_passes(case_of: CaseOf) -> None:
    def interrupts(graph_module: fx.GraphModule, example_inputs: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(case_of(interrupts))


def test_unreachable_backend_is_skipped(case_of: CaseOf) -> None:
    gone = BackendRef("acme", "acme.compiler", setup=("import acme_that_is_not_here",))
    outcome = execute(case_of(None).with_spec(backend=gone))
    assert outcome.verdict is Verdict.SKIPPED
    assert "acme_that_is_not_here" in outcome.reason


@BOTH_PATHS
def test_nothing_of_the_case_or_the_process_is_changed(case_of: CaseOf, call: CallPath) -> None:
    def writes(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return torch.relu(torch.dropout(x, 0.5, True))

    graph_module, _ = capture_by_dynamo(writes, (torch.zeros(3, 4),))
    x = torch.zeros(3, 4)
    text, state, modes = canonical_text(graph_module), torch.get_rng_state(), torch.is_grad_enabled()
    fields = {"graph_module": graph_module, "inputs": (x,), "call": call, "context": Context(grad=False)}
    for backend in (planted.mutates_its_graph, "eager"):
        execute(case_of(backend, **fields))
    assert torch.equal(x, torch.zeros(3, 4))
    assert canonical_text(graph_module) == text
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled() == modes


@BOTH_PATHS
def test_buffer_written_in_one_run_is_fresh_in_the_next(case_of: CaseOf, call: CallPath) -> None:
    root = torch.nn.Module()
    root.register_buffer("steps", torch.zeros(()))
    graph = fx.Graph()
    x, steps = graph.placeholder("x"), graph.get_attr("steps")
    graph.output((graph.call_function(torch.add, (x, graph.call_method("add_", (steps, 1)))),))
    counts = fx.GraphModule(root, graph)
    outcome = execute(case_of("eager", graph_module=counts, call=call))
    assert outcome.verdict is Verdict.GONE
    assert float(root.steps) == 0


def test_context_is_entered_and_left(case_of: CaseOf) -> None:
    import torch._inductor.config as inductor

    seen: list[Any] = []

    def looks(graph_module: fx.GraphModule, example_inputs: Any) -> Any:
        def compiled_fn(*args: Any) -> Any:
            seen.append(torch.is_inference_mode_enabled())
            return graph_module(*args)

        seen.extend(settings())
        return compiled_fn

    def settings() -> list[Any]:
        return [
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
            inductor.max_fusion_size,
            inductor.fx_graph_cache,
        ]

    context = Context(
        grad=False,
        inference=True,
        autocast=(("cpu", "torch.bfloat16", True),),
        deterministic=True,
        default_dtype="torch.float64",
        matmul_precision="medium",
        config={"torch._inductor.config": {"max_fusion_size": 17}},
    )
    before = settings()
    execute(case_of(looks, context=context))
    assert settings() == before
    assert seen == [False, torch.bfloat16, torch.float64, True, "medium", 17, False, True]


@BOTH_PATHS
def test_symbolic_sizes_reach_the_backend(case_of: CaseOf, call: CallPath) -> None:
    inputs = (torch.randn(5, 4),)
    still = case_of(planted.raises_on_symbolic_sizes, inputs=inputs, call=call, dynamic=False)
    assert execute(still).verdict is Verdict.GONE
    assert execute(still.with_spec(dynamic_dims=((0,),))).verdict is Verdict.REPRODUCES


def test_symbolic_number_as_input_of_a_direct_call(case_of: CaseOf) -> None:
    graph = fx.Graph()
    size, x = graph.placeholder("s0"), graph.placeholder("x")
    graph.output((graph.call_method("view", (x, size, -1)), graph.call_function(torch.mul, (x, size))))
    case = case_of(
        "aot_eager",
        graph_module=fx.GraphModule(torch.nn.Module(), graph),
        inputs=(5, torch.randn(5, 4)),
        call=CallPath.DIRECT,
        dynamic_dims=((), (0,)),
    )
    assert execute(case).verdict is Verdict.GONE
    assert execute(replace(case, compiler=planted.raises_on_symbolic_sizes)).verdict is Verdict.REPRODUCES


def test_options_reach_the_backend_on_both_paths(case_of: CaseOf) -> None:
    seen: list[Any] = []

    def takes_options(
        graph_module: fx.GraphModule, example_inputs: Any, options: Any = None, mode: Any = None
    ) -> Any:
        seen.append((options, mode))
        return fx.Interpreter(graph_module).run

    for call in CallPath:
        for options, mode in (({"level": 3, "what": None}, None), ({}, "fast"), ({}, None)):
            ref = BackendRef("takes_options", "", options=options, mode=mode)
            assert execute(case_of(takes_options, call=call).with_spec(backend=ref)).verdict is Verdict.GONE
    assert seen == 2 * [({"level": 3, "what": None}, None), (None, "fast"), (None, None)]


def test_note_hears_each_part_before_it_begins(case_of: CaseOf) -> None:
    heard: list[str] = []
    inputs = (torch.randn(3, 4, requires_grad=True),)
    case = case_of("aot_eager", inputs=inputs, backward=True, signature=Signature(Kind.RUNTIME))
    execute(case, note=heard.append)
    assert heard == ["eager", "compile forward", "runtime backward"]


@pytest.mark.slow
def test_many_runs_leave_nothing_behind(case_of: CaseOf) -> None:
    import gc
    import sys

    def sources() -> set[str]:
        gc.collect()
        return {name for name in sys.modules if "minidbg_source" in name}

    case, before = case_of(planted.raises_on_relu), sources()
    for _ in range(20):
        assert execute(case).verdict is Verdict.REPRODUCES
    assert not sources() - before
    assert call_nodes(case.graph_module) == 3
