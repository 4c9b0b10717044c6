"""``minidbg.wrap_compiler`` inside a real ``aot_autograd``: unseen while the compiler works, a report when it fails."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import planted_compilers as planted
import pytest
import torch
from functorch.compile import min_cut_rematerialization_partition
from support.new_process import Answers, as_in_a_new_process  # noqa: F401 - a fixture for all tests here
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import BackendCompilerFailed

from minidbg.core.errors import AccuracyError, BadSetting
from minidbg.core.outcome import Kind, Verdict
from minidbg.core.run_spec import CallPath, Level, RunSpec
from minidbg.fx.case import Case
from minidbg.wrapper import Report, report_of, stats, wrap_compiler
from minidbg.wrapper.verify import NUMBERS_OF_BACKWARD


def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return torch.relu(torch.dropout(x @ w, 0.25, True)).exp()


def trained(backend: Any, function: Callable[..., torch.Tensor] = model) -> list[torch.Tensor]:
    """All that two training steps and an inference leave behind, the RNG included."""
    torch.manual_seed(1)
    torch._dynamo.reset()
    w = torch.randn(4, 4, requires_grad=True)
    compiled = torch.compile(function, backend=backend)
    left: list[torch.Tensor] = []
    for _ in range(2):
        x = torch.randn(3, 4)
        loss = compiled(x, w).sum()
        loss.backward()
        left += [x, loss.detach(), w.grad.clone()]
    with torch.no_grad():
        x = torch.randn(3, 4)
        left += [compiled(x, w), x, torch.rand(1)]
    return left


@pytest.mark.slow
@pytest.mark.parametrize("compiler", [planted.works_boxed, planted.works_unboxed], ids=lambda c: c.__name__)
def test_a_healthy_compiler_gives_the_same_bits(compiler: Any, answers: Answers) -> None:
    wrapped = wrap_compiler(compiler)
    plain = trained(aot_autograd(fw_compiler=compiler, bw_compiler=compiler))
    ours = trained(aot_autograd(fw_compiler=wrapped, bw_compiler=wrapped, inference_compiler=wrapped))
    assert all(torch.equal(one, two) for one, two in zip(plain, ours, strict=True))
    assert not answers.cases


def test_a_settled_boxed_function_may_clear_its_inputs() -> None:
    seen: list[Any] = []

    def compiler(gm: Any, example_inputs: Any) -> Any:
        compiled_fn = planted.works_boxed(gm, example_inputs)

        def watching(args: list[Any]) -> Any:
            seen.append(args)
            return compiled_fn(args)

        watching._boxed_call = True  # type: ignore[attr-defined]
        return watching

    trained(aot_autograd(fw_compiler=wrap_compiler(compiler), bw_compiler=planted.works_boxed))
    assert seen
    assert all(args == [] for args in seen)


def test_the_wrapper_looks_like_the_compiler() -> None:
    wrapped = wrap_compiler(planted.works_boxed)
    assert wrapped.__name__ == "works_boxed"
    assert "works_boxed" in repr(wrapped)
    assert wrap_compiler(planted.FAMILY.compile).__self__ is planted.FAMILY


@pytest.mark.parametrize("wrong", ["inductor", 3])
def test_what_is_no_compiler_is_refused(wrong: Any) -> None:
    with pytest.raises(BadSetting, match="wrap"):
        wrap_compiler(wrong)


def test_a_failing_forward_is_a_case_of_aten_operators(
    answers: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    backend = aot_autograd(fw_compiler=wrap_compiler(planted.raises_on_relu), bw_compiler=planted.works_boxed)
    with pytest.raises(BackendCompilerFailed, match="no kernel for relu") as caught:
        trained(backend)
    (case,) = answers.cases
    assert (case.spec.level, case.spec.call, case.kind) == (Level.ATEN, CallPath.DIRECT, Kind.COMPILE)
    assert any(node.target is torch.ops.aten.relu.default for node in case.graph_module.graph.nodes)
    assert any("forward graph" in note for note in case.provenance.notes)
    assert report_of(caught.value) == Report("report 1", Path("r.py"))
    assert "minidbg: report 1" in caplog.text  # dynamo hides the notes of what it wraps


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_backward_that_fails_to_compile_is_answered_once_and_when_it_is_needed(
    dynamic: bool, answers: Answers
) -> None:
    """With symbolic sizes AOTAutograd compiles it early and swallows the failure."""
    wrapped = wrap_compiler(planted.raises_on_relu_backward)
    w = torch.randn(4, 4, requires_grad=True)
    backend = aot_autograd(fw_compiler=planted.works_boxed, bw_compiler=wrapped)
    compiled = torch.compile(lambda x: torch.relu(x @ w).exp() * x.shape[0], backend=backend, dynamic=dynamic)
    loss = compiled(torch.randn(3, 4)).sum()
    assert not answers.cases
    with pytest.raises(planted.NoKernel) as caught:
        loss.backward()
    (case,) = answers.cases
    assert any("backward graph" in note for note in case.provenance.notes)
    assert "minidbg: report 1" in caught.value.__notes__


def test_a_failing_run_has_the_inputs_that_the_callee_cleared(answers: Answers) -> None:
    backend = aot_autograd(fw_compiler=wrap_compiler(planted.raises_in_run_on_relu))
    with pytest.raises(RuntimeError, match="kernel of relu") as caught:
        torch.compile(lambda x: torch.relu(x) + 1, backend=backend)(torch.full((3,), 7.0))
    (case,) = answers.cases
    assert case.kind is Kind.RUNTIME
    assert torch.equal(case.inputs[0], torch.full((3,), 7.0))
    assert "minidbg: report 1" in caught.value.__notes__


@pytest.mark.parametrize(
    ("compiler", "kind"),
    [
        pytest.param(planted.raises_on_relu, Kind.COMPILE, marks=pytest.mark.slow),
        (planted.raises_in_run_on_relu, Kind.RUNTIME),
        pytest.param(planted.adds_one_to_relu, Kind.ACCURACY, marks=pytest.mark.slow),
    ],
)
def test_fallback_goes_on_in_eager_with_the_same_bits(
    compiler: Any, kind: Kind, answers: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    """The graph writes to its input, which must not happen twice, and draws before the bug."""
    caplog.set_level(logging.WARNING)
    wrapped = wrap_compiler(compiler, on_failure="fallback")
    plain = trained(aot_autograd(fw_compiler=planted.works_boxed))
    ours = trained(aot_autograd(fw_compiler=wrapped, bw_compiler=planted.works_boxed))
    assert all(torch.equal(one, two) for one, two in zip(plain, ours, strict=True))
    assert {case.kind for case in answers.cases} == {kind}
    assert "going on with eager" in caplog.text


def test_wrong_values_are_an_accuracy_error_at_the_first_call(answers: Answers) -> None:
    """The forward's activations are compared, too; with dropout before the bug."""
    wrapped = wrap_compiler(planted.adds_one_to_relu)
    backend = aot_autograd(fw_compiler=wrapped, bw_compiler=planted.works_boxed)
    compiled = torch.compile(lambda x, w: torch.relu(x @ w).exp(), backend=backend)
    with pytest.raises(AccuracyError) as caught:
        compiled(torch.randn(3, 4), torch.randn(4, 4, requires_grad=True))
    (case,) = answers.cases
    assert (case.kind, case.spec.level) == (Kind.ACCURACY, Level.ATEN)
    assert "minidbg: report 1" in caught.value.__notes__


@pytest.mark.parametrize("budget", [0.0, 1.0])
def test_a_backward_that_draws_is_said_to_be_judged_by_itself(budget: float) -> None:
    """With no budget for activations the dropout is drawn again: what was dropped gets a gradient, and ``wrap`` alone sees that."""
    dropped = functools.partial(torch.dropout, p=0.5, train=True)
    backend = aot_autograd(
        fw_compiler=wrap_compiler(planted.works_boxed), partition_fn=min_cut_rematerialization_partition
    )
    x = torch.randn(8, 8, requires_grad=True)
    with torch._functorch.config.patch(activation_memory_budget=budget):
        result = torch.compile(lambda x: dropped(x.exp()) * 3, backend=backend)(x)
        result.sum().backward()
    draws_again = bool(x.grad[result == 0].any())
    assert draws_again == (budget == 0.0)
    assert stats().verified == 2
    assert stats().left_out == ({NUMBERS_OF_BACKWARD: 1} if draws_again else {})


def test_the_layout_of_saved_activations_is_the_compilers_own(answers: Answers) -> None:
    compiler = wrap_compiler(planted.chooses_its_own_strides)
    trained(aot_autograd(fw_compiler=compiler, bw_compiler=compiler))
    assert not answers.cases


def test_a_tensor_subclass_is_plain_tensors_down_here(answers: Answers) -> None:
    """At the level of dynamo it is refused by name."""
    from torch.testing._internal.two_tensor import TwoTensor

    backend = aot_autograd(fw_compiler=wrap_compiler(planted.raises_on_relu))
    with pytest.raises(BackendCompilerFailed):
        torch.compile(lambda x: torch.relu(x) + 1, backend=backend)(TwoTensor(torch.randn(3), torch.randn(3)))
    (case,) = answers.cases
    assert [type(value) for value in case.inputs] == [torch.Tensor, torch.Tensor]


def test_a_judged_run_of_a_wrapped_backend_answers_nothing(answers: Answers) -> None:
    """The user's module may hold wrapped compilers; a repro that imports it must not start another reduction."""
    from torch import fx

    from minidbg import backends
    from minidbg.oracle.execute import execute

    backend = aot_autograd(fw_compiler=wrap_compiler(planted.raises_on_relu))
    graph = fx.symbolic_trace(lambda x: (torch.relu(x),))
    case = Case(graph, (torch.ones(3),), RunSpec(backends.find_reference("aot_eager")), compiler=backend)
    assert execute(case).verdict is Verdict.REPRODUCES
    assert not answers.cases
