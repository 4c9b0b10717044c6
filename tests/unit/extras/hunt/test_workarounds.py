"""Which change of a program avoids a failure: asked of planted backends, in children of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import planted_backends as planted
import pytest
import torch
from torch import fx

from minidbg import asking, backends, repro
from minidbg.extras import workarounds
from minidbg.extras.workarounds import changes, search
from minidbg.fx.case import Case
from minidbg.judge.harness import HANDED_BACK
from minidbg.reduction.publishing import with_failure
from minidbg.repro import known_workaround
from minidbg.words.outcome import Kind, Outcome, Signature, Verdict
from minidbg.words.run_spec import BackendRef, RunSpec
from minidbg.wrapper import Report, handle

SIGNATURE = Signature(Kind.COMPILE)


def case_of(
    function: Callable[..., Any], *inputs: torch.Tensor, backend: Any = planted.raises_on_relu
) -> Case:
    ref = backends.find(backend)
    return Case(fx.symbolic_trace(function), inputs, RunSpec(ref, signature=SIGNATURE), compiler=backend)


def program(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + 1).tanh() * 2


def only_relu(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x)


def test_the_op_outside_the_graph_gives_what_eager_gives() -> None:
    case = case_of(program, torch.randn(3))
    (culprit,) = changes.culprits_of(case, case_of(only_relu, torch.randn(3)))
    around = workarounds.eager_around(planted.raises_on_relu, [culprit.name])
    compiled = torch.compile(case.graph_module, backend=around, fullgraph=True)
    x = torch.randn(3)
    assert torch.equal(compiled(x), program(x))
    with pytest.raises(Exception, match="relu"):
        torch.compile(program, backend=planted.raises_on_relu)(x)


def test_a_cast_before_the_op_is_undone_after_it() -> None:
    case = case_of(program, torch.randn(3).half())
    (culprit,) = changes.culprits_of(case, case_of(only_relu, torch.randn(3)))
    culprit.meta["example_value"] = torch.empty(3, dtype=torch.float16)
    changed = changes.changed_before(case, [culprit], "to", (torch.float32,))
    x = case.inputs[0]
    assert changed.graph_module(x).dtype is torch.float16
    torch.testing.assert_close(changed.graph_module(x), program(x))
    assert len(changed.graph_module.graph.find_nodes(op="call_method", target="to")) == 2
    assert "to" not in str(case.graph_module.code).split()


def test_nothing_is_copied_before_an_op_that_writes_to_its_input() -> None:
    case = case_of(lambda x: x.relu_(), torch.randn(3))
    assert changes.changed_before(case, changes.culprits_of(case, case), "contiguous", ()) is None


def test_the_option_that_helps_is_found_by_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(fx.symbolic_trace(program), (torch.ones(3),), RunSpec(BackendRef("inductor", '"inductor"')))
    trials = search.Asking(case, 10)

    def outcome(changed: Case) -> Outcome:
        trials.questions += 1
        helps = changed.backend.options.get("epilogue_fusion") is False
        return Outcome(Verdict.GONE if helps else Verdict.REPRODUCES)

    monkeypatch.setattr(trials, "outcome", outcome)
    (found,) = search.option_that_helps(case, trials)
    assert found.case.backend.options == {"epilogue_fusion": False}
    assert trials.questions <= 5
    monkeypatch.setattr(trials, "outcome", lambda changed: Outcome(Verdict.REPRODUCES))
    trials.tried.clear()
    assert list(search.option_that_helps(case, trials)) == []


def test_a_backend_that_hands_the_graph_back_has_not_been_helped(monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(program, torch.ones(3))
    trials = search.Asking(case, 10)
    change = changes.with_other_sizes(case)
    for reason, works in (("", True), (HANDED_BACK, False)):
        outcome = Outcome(Verdict.GONE, reason=reason)
        monkeypatch.setattr(trials, "outcome", lambda case, outcome=outcome: outcome)
        assert trials.agrees(change) is works


def test_four_kinds_of_changes_are_tried() -> None:
    """An option, another backend, the op in eager, and other inputs for it."""
    backend = BackendRef("inductor", '"inductor"', options={"max_autotune": False})
    case = case_of(program, torch.randn(3).half())
    case = replace(case.with_spec(backend=backend), compiler="inductor")
    trials = search.Asking(case, 10)
    trials.tried = {f"options={dict(changes.inductor_options(case))!r}": False}
    tried = [change.what for change in search.candidates(case, case_of(only_relu, *case.inputs), trials)]
    assert tried == [
        "without the option 'max_autotune'",
        "a graph break around relu",
        "dynamic=True",
        "aot_eager for this graph",
        "eager for this graph",
        ".to(torch.float32) before relu",
        ".contiguous() before relu",
    ]


def several(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    parts = torch.cat([x.t(), y], dim=1).cumsum(1)
    return torch.cat([parts, x.t()], dim=1) + torch.cat([y, y, y], dim=1)


def run_lines(lines: Sequence[str], **known: Any) -> dict[str, Any]:
    """What the printed lines define when they are pasted."""
    exec("\n".join(lines), known)
    return known


def test_the_code_of_a_graph_break_computes_the_op_and_keeps_it_from_the_backend() -> None:
    case = case_of(program, torch.randn(3))
    change = changes.outside_the_graph(case, changes.culprits_of(case, case_of(only_relu, torch.randn(3))))
    relu_in_eager = run_lines(change.lines, torch=torch)["relu_in_eager"]
    compiled = torch.compile(lambda x: relu_in_eager(x + 1).tanh() * 2, backend=planted.raises_on_relu)
    x = torch.randn(3)
    assert torch.equal(compiled(x), program(x))


def test_each_different_call_of_an_op_has_a_function_of_its_own() -> None:
    inputs = torch.randn(3, 2).half(), torch.randn(2, 3).half()
    case = case_of(several, *inputs)
    culprits = [node for node in case.graph_module.graph.nodes if node.target in (torch.cat, "cumsum")]
    culprits[1].meta["example_value"] = torch.empty(2, 6, dtype=torch.float16)
    cast, contiguous = changes.with_changed_inputs(case, case, culprits)
    x, y = inputs
    for change in (cast, contiguous):
        defined = run_lines(change.lines, torch=torch)
        suffix = "of_cast" if change is cast else "of_contiguous"
        cat, cumsum = defined[f"cat_{suffix}"], defined[f"cumsum_{suffix}"]
        thrice = defined[f"cat_{suffix}_1"]
        assert torch.equal(cat(x.t(), y).to(x.dtype), torch.cat([x.t(), y], dim=1))
        assert torch.equal(thrice(y).to(x.dtype), torch.cat([y, y, y], dim=1))
        assert cumsum(y).dtype is torch.float16
    assert ".contiguous()" in "".join(contiguous.lines)
    assert len(contiguous.lines) == 3  # the first and the second cat are one call


def test_the_call_of_compile_is_code_with_the_imports_and_the_options_of_the_backend() -> None:
    case = case_of(program, torch.ones(3))
    case = case.with_spec(backend=replace(case.backend, options={"level": 2}))
    asked: list[dict[str, Any]] = []

    class Torch:
        @staticmethod
        def compile(model: Any, **given: Any) -> Any:
            asked.append(given)

    run_lines(changes.with_other_sizes(case).lines, torch=Torch, model=None)
    run_lines(next(changes.without_own_options(case)).lines, torch=Torch, model=None)
    assert asked == [
        {"backend": planted.raises_on_relu, "options": {"level": 2}, "dynamic": True},
        {"backend": planted.raises_on_relu},
    ]


def test_nothing_is_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = search.Asking(case_of(program, torch.ones(3)), 10)
    monkeypatch.setattr(trials, "agrees", lambda change: not trials.tried)
    (first, *_) = changes.with_other_backends(trials.case)
    assert [trials.works(first), trials.works(first)] == [True, True]


def test_the_best_one_is_kept_for_show_and_the_warning_of_a_fallback_names_it(tmp_path: Path) -> None:
    path = tmp_path / "minidbg_repros" / "compile_relu_1.py"
    path.parent.mkdir()
    path.touch()
    report = Report("4 -> 1 nodes", path=path)
    assert known_workaround.best_of(path) == handle.workaround_text(report) == ""
    found = workarounds.Workaround("a graph break around relu", ("...",), "train.py:3", 4, 0.002, 0.001)
    workarounds.keep(path, workarounds.WorkaroundSearch((found,), 3, 1.0))
    best = "a graph break around relu (train.py:3); a call takes 2.00 ms, eager 1.00 ms (2.0 times)"
    assert known_workaround.best_of(path) == best
    assert handle.workaround_text(report) == f"; until it is mended: {best}"


def test_ctrl_c_ends_the_search_with_what_was_found_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture = repro.write(case_of(program, torch.randn(3)), tmp_path / "whole.py", repro.Form.CAPTURE)
    verdicts = iter([Verdict.REPRODUCES, Verdict.REPRODUCES, Verdict.GONE])

    def submit(case: Case, *, seconds: float) -> Outcome:
        if (verdict := next(verdicts, None)) is None:
            raise KeyboardInterrupt
        return Outcome(verdict)

    monkeypatch.setattr(search.asking, "submit", submit)
    monkeypatch.setattr(search, "agrees_in_eager", lambda case, changed: True)
    found = workarounds.find(capture, None)
    assert (found.interrupted, found.questions, len(found.found)) == (True, 3, 1)
    assert found.found[0].cost == "its cost was not measured"


@pytest.mark.slow
def test_a_capture_that_fails_has_a_workaround_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_of(program, torch.randn(3)).with_spec(signature=None)
    failing = with_failure(case, asking.submit(case, seconds=60))
    small = case_of(only_relu, torch.randn(3)).with_spec(signature=failing.signature)
    repro.write(small, tmp_path / "small.py")
    whole = repro.write(failing, tmp_path / "whole.py", repro.Form.CAPTURE)
    done = workarounds.find(whole, tmp_path / "small.py")
    assert {one.what for one in done.found} == {
        "a graph break around relu",
        "aot_eager for this graph",
        "eager for this graph",
    }
    assert all(one.seconds_a_call for one in done.found)
    monkeypatch.setenv("MINIDBG_REDUCE", "later")
    monkeypatch.setenv("MINIDBG_REPRO_DIR", str(tmp_path / "repros"))
    x = torch.randn(3)
    for one in done.found:
        if one.what.endswith("for this graph"):
            torch._dynamo.reset()
            model = run_lines(one.lines, torch=torch, model=program)["model"]
            assert torch.equal(model(x), program(x))
    assert done.questions <= 10
