"""The measured weaknesses W1 to W16 of torch's own minifier, and minidbg without them. A number in a title is theirs.

W6 (slipping to another failure) is test_after_dynamo_error of test_dynamo_suite.py; W10 (hangs) and W11 (crashes) are in
unit/workers/test_submit.py; W13 (symbolic shapes) and the nested graphs of W12 are in the table of constructs; W16 (a healthy
program is compiled once and called as often as it calls) is in integration/test_wrap.py and integration/test_verify.py.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import odd_backends
import planted_backends
import pytest
import torch
from fails_on import raises_on
from support.quick_path import failing_program, judge_in_fork, take_the_quick_path

import minidbg
from minidbg import workers
from minidbg.core.errors import NotReproduced
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


@pytest.mark.parametrize("backend", ["eager", planted_backends.returns_gm_forward], ids=["eager", "forward"])
def test_w1_a_healthy_backend_that_returns_a_function_is_no_failure(backend: Any, tmp_path: Path) -> None:
    (x,) = square()
    assert torch.equal(wrapped(backend, tmp_path)(x), sandwich(x))
    assert not list(tmp_path.glob("**/*.py"))


@pytest.mark.parametrize(
    "backend",
    [
        odd_backends.fails_while_broken,
        functools.partial(odd_backends.fails_by_option, options={"level": 3}),
        odd_backends.compiler,
    ],
    ids=["function", "partial", "instance"],
)
def test_w2_callables_partials_and_instances_are_found_again(backend: Any, way: str, tmp_path: Path) -> None:
    found = failing_program(sandwich, square(), backend, tmp_path)
    assert found.ops == ["relu"]
    assert "odd_backends" in found.text
    assert "object at 0x" not in found.text


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


@pytest.mark.slow
def test_w7_what_does_not_reproduce_is_not_taken_for_a_failure(quick: None, tmp_path: Path) -> None:
    (broken := tmp_path / "broken").touch()
    backend = functools.partial(odd_backends.fails_while_broken, broken=str(broken))
    with pytest.raises(Exception, match="no relu yet") as caught:
        wrapped(backend, tmp_path, reduce="later")(*square())
    report = minidbg.report_of(caught.value)
    assert report is not None
    broken.unlink()
    with pytest.raises(NotReproduced, match="does not show its failure here"):
        minidbg.reduce(report.capture)
    workers.end_server()  # other tests expect to find no child
    assert not list(tmp_path.glob("*.py"))


def test_w8_two_failures_without_a_message_are_told_apart_by_type(quick: None, tmp_path: Path) -> None:
    found = failing_program(sandwich, square(), odd_backends.fails_in_two_silent_ways, tmp_path)
    assert found.ops == ["relu"]
    assert found.case.signature.types == ("odd_backends.OneError",)


def test_w9_a_script_that_cannot_run_has_not_failed(quick: None, tmp_path: Path) -> None:
    """A module that is missing, and a script that is broken: exit status 125, never the failure."""
    found = failing_program(sandwich, square(), odd_backends.fails_while_broken, tmp_path)
    missing, broken = tmp_path / "missing.py", tmp_path / "broken.py"
    missing.write_text(found.text.replace("odd_backends", "no_such_module"))
    broken.write_text(found.text.replace("def inputs(", "def outputs("))
    assert judge_in_fork(missing).verdict is Verdict.SKIPPED
    assert judge_in_fork(broken).verdict is Verdict.INVALID


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
