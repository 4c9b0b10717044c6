"""How often a judged script runs, and which backend it asks; next to nothing is run here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from minidbg.core.outcome import Kind, Outcome, Signature, Verdict
from minidbg.core.run_spec import BackendRef, Level, RunSpec
from minidbg.judge.death import shown_in
from minidbg.judge.script import ExecutedScript, Unavailable, judged_on_one_op

GONE, REPRODUCES = Outcome(Verdict.GONE), Outcome(Verdict.REPRODUCES, Signature(Kind.COMPILE))
CHANGED = Outcome(Verdict.CHANGED, Signature(Kind.RUNTIME, types=("KeyError",)), message="KeyError: 3")
SPEC = RunSpec(BackendRef("b", "b"), signature=Signature(Kind.COMPILE, types=("ValueError",)))
SCRIPT = ExecutedScript({}, SPEC)


@pytest.mark.parametrize(
    ("seen", "attempts", "expected"),
    [
        ([GONE], 1, GONE),
        ([GONE, GONE], 2, replace(GONE, runs=2, reproduced=0)),
        ([REPRODUCES], 3, REPRODUCES),
        ([GONE, REPRODUCES], 3, replace(REPRODUCES, verdict=Verdict.FLAKY, reproduced=1, runs=2)),
        ([GONE, CHANGED], 3, CHANGED),
        ([Outcome(Verdict.INVALID)], 3, Outcome(Verdict.INVALID)),
    ],
)
def test_a_flaky_script_is_run_until_it_fails_and_no_longer(
    seen: list[Outcome], attempts: int, expected: Outcome
) -> None:
    left = iter(seen)
    assert shown_in(attempts, lambda: next(left)) == expected
    assert list(left) == []


def test_a_graph_of_aot_autograd_is_not_given_to_a_backend_of_torch_compile() -> None:
    spec = replace(SPEC, level=Level.ATEN)
    for backend, refused in (("eager", True), (torch.nn.Module, False)):
        made = ExecutedScript({"backend": backend, "graph": id, "inputs": id}, spec)
        if refused:
            with pytest.raises(Unavailable, match="a compiler for aot_autograd is needed"):
                made.runnable()
        else:
            assert made.runnable().compiler is backend


def test_a_script_without_a_backend_function_asks_the_backend_of_its_header() -> None:
    spec = replace(SPEC, backend=BackendRef("eager", "'eager'"))
    assert ExecutedScript({"graph": id, "inputs": id}, spec).runnable().compiler == "eager"


def runs_but(wrong: tuple[str, ...]) -> object:
    def backend(gm: torch.fx.GraphModule, inputs: object, options: object = None) -> object:
        names = {str(node.target) for node in gm.graph.nodes if node.op != "output"}
        off = any(name in text for name in wrong for text in names)
        return lambda *args: tuple(value + off for value in gm(*args))

    return backend


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"definitions": {"backend": runs_but(())}}, Verdict.GONE),
        ({"definitions": {"backend": runs_but(("add", "relu"))}}, Verdict.GONE),
        ({"definitions": {"backend": runs_but(("",))}}, Verdict.REPRODUCES),
        ({"definitions": {"backend": lambda gm, inputs: 1 / 0}}, Verdict.REPRODUCES),
        ({"failed": [ModuleNotFoundError("no module")]}, Verdict.SKIPPED),
        ({"failed": [SyntaxError("invalid syntax")]}, Verdict.INVALID),
    ],
    ids=["works", "fails on two ops", "always wrong", "raises", "is not here", "cannot be loaded"],
)
def test_a_backend_is_judged_by_the_first_op_that_it_handles(
    parts: dict[str, Any], expected: Verdict
) -> None:
    outcome = judged_on_one_op(replace(SCRIPT, **parts))
    assert outcome.verdict is expected
    assert bool(outcome.reason) or expected is Verdict.GONE
