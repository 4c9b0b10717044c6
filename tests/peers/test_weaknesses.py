"""The measured weaknesses W1 to W16 of torch's own minifier, and minidbg without them. A number in a title is theirs.

W1 (a healthy backend that returns a function) and W16 (a healthy program is compiled once and called as often as it calls) are in
integration/test_wrap.py and test_verify.py, W2 (callables, partials and instances are found again) is in test_references.py and the
corpus, W7 (what does not reproduce is no failure) in test_by_chance.py; W6 (slipping to another failure) is test_after_dynamo_error
of test_dynamo_suite.py; W9 (a script that cannot run has not failed) is in unit/judge/test_command.py, W10 (hangs) and W11 (crashes)
are in unit/workers/test_submit.py; W13 (symbolic shapes) and the nested graphs of W12 are in the table of constructs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import odd_backends
import planted_backends
import pytest
import torch
from fails_on import raises_on
from support.quick_path import failing_program, judge_in_fork, take_the_quick_path

import minidbg
from minidbg.core.outcome import Direction, Verdict


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    take_the_quick_path(monkeypatch)


def sandwich(x: torch.Tensor) -> torch.Tensor:
    return x.sin().relu().cos()


def square() -> tuple[torch.Tensor, ...]:
    return (torch.randn(4, 4),)


def wrapped(backend: Any, folder: Path, **given: Any) -> Any:
    return torch.compile(sandwich, backend=minidbg.wrap(backend, repro_dir=folder, **given))


def test_w3_options_of_other_backends_are_in_the_repro(quick: None, tmp_path: Path) -> None:
    given = {"options": {"level": 3, "other": 1}}
    with pytest.raises(Exception, match="relu at level 3") as caught:
        wrapped(odd_backends.fails_by_option, tmp_path, **given)(*square())
    report = minidbg.report_of(caught.value)
    assert report.path is not None, report.line
    assert minidbg.load(report.path).backend.options["level"] == 3


@pytest.mark.slow
def test_w4_backends_on_aot_autograd_are_handled_whatever_their_name(way: str, tmp_path: Path) -> None:
    """Here one that fails in backward, which only the second call of a training step would show."""
    x = torch.randn(4, 4, requires_grad=True)
    found = failing_program(sandwich, (x,), planted_backends.raises_in_backward_of_relu, tmp_path)
    assert found.ops == ["relu"]
    assert found.case.signature.direction is Direction.BACKWARD


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend",
    [planted_backends.mutates_its_graph, "relu_runtime_error_TESTING_ONLY"],
    ids=["erases", "rewrites"],
)
def test_w5_a_backend_may_destroy_the_graph_that_it_was_given(
    backend: Any, quick: None, tmp_path: Path
) -> None:
    found = failing_program(lambda x: torch.relu(x.sin()).cos(), square(), backend, tmp_path)
    assert found.ops == ["relu"]


def test_w8_two_failures_without_a_message_are_told_apart_by_type(quick: None, tmp_path: Path) -> None:
    found = failing_program(sandwich, square(), odd_backends.fails_in_two_silent_ways, tmp_path)
    assert found.ops == ["relu"]
    assert found.case.signature.types == ("odd_backends.OneError",)


@pytest.mark.slow
def test_w12_inputs_and_arguments_shrink(quick: None, tmp_path: Path) -> None:
    program = lambda x: x.clamp(min=-1, max=1).sin()  # noqa: E731
    found = failing_program(program, (torch.randn(8, 8),), raises_on("clamp"), tmp_path)
    assert found.case.inputs[0].numel() == 1
    (clamp,) = [node for node in found.case.graph_module.graph.nodes if node.op == "call_method"]
    assert len(clamp.args) + len(clamp.kwargs) == 2


@pytest.mark.slow
def test_w14_arguments_that_are_no_tensors_are_no_obstacle(quick: None, tmp_path: Path) -> None:
    def program(x: torch.Tensor, scale: float, nothing: None, flags: dict[str, bool]) -> torch.Tensor:
        return (x.sin() * scale).relu() if flags["on"] else x

    args = (*square(), 2.5, None, {"on": True})
    for given in ({}, {"dynamic": True}):
        found = failing_program(program, args, raises_on("mul"), tmp_path / str(len(given)), **given)
        assert found.ops == ["mul"]


@pytest.mark.slow
def test_w15_a_repro_is_complete_and_says_so_when_it_is_not(quick: None, tmp_path: Path) -> None:
    """Values that matter lie beside it; it runs elsewhere; without them it cannot be judged."""
    x = torch.randn(64, 64)
    x[3, 5] = 41.5
    folder, elsewhere = tmp_path / "repros", tmp_path / "elsewhere"
    found = failing_program(lambda x: x.sin().cos(), (x,), odd_backends.fails_on_a_value, folder)
    folder.rename(elsewhere)
    path = elsewhere / found.path.name
    assert judge_in_fork(path).verdict is Verdict.REPRODUCES
    stored = path.with_suffix(".safetensors")
    if stored.exists():  # else the values stand in the script
        stored.unlink()
        assert judge_in_fork(path).verdict is Verdict.SKIPPED
    assert "41.5" in found.text or "stored(" in found.text
