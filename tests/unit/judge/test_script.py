"""What a judged script prints, and which backend it asks; next to nothing is run here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from minidbg.judge.script import (
    Script,
    Unavailable,
    figures,
    judged_on_one_op,
    parse_arguments,
    printable,
    report,
    sentence,
    shown_in,
)
from minidbg.words.outcome import Direction, Kind, Outcome, Signature, Verdict
from minidbg.words.run_spec import BackendRef, Level, RunSpec

GONE, REPRODUCES = Outcome(Verdict.GONE), Outcome(Verdict.REPRODUCES, Signature(Kind.COMPILE))
CHANGED = Outcome(Verdict.CHANGED, Signature(Kind.RUNTIME, types=("KeyError",)), message="KeyError: 3")
SPEC = RunSpec(BackendRef("b", "b"), signature=Signature(Kind.COMPILE, types=("ValueError",)))
SCRIPT = Script("r.py", {}, SPEC)


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


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (GONE, "gone: b handles this model"),
        (Outcome(Verdict.SKIPPED, reason="no cuda"), "skipped: no cuda"),
        (REPRODUCES, "reproduces: b fails to compile"),
        (replace(CHANGED, message="a\n  b"), "changed: the code that b made fails: a b"),
        (replace(CHANGED, reason="it moved"), "changed: it moved"),
        (
            Outcome(Verdict.REPRODUCES, Signature(Kind.RUNTIME, Direction.BACKWARD), message="x"),
            "reproduces: the code that b made fails in backward: x",
        ),
        (
            replace(REPRODUCES, verdict=Verdict.FLAKY, reproduced=1, runs=3),
            "flaky: b fails to compile (1 of 3 runs)",
        ),
        (replace(CHANGED, message="x" * 300), "changed: the code that b made fails: " + "x" * 200),
    ],
)
def test_the_first_line_says_the_verdict_and_what_failed(found: Outcome, said: str) -> None:
    assert sentence(found, "b") == said


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        ({}, []),
        (
            {"where": "output 0", "index": [4, 17], "expected": 1.5, "actual": 2.0},
            ["  output 0 at [4, 17]: eager gives 1.5, the backend 2.0"],
        ),
        (
            {"where": "output 0", "index": [], "expected": 1.5, "actual": 2.0},
            ["  output 0: eager gives 1.5, the backend 2.0"],
        ),
        (
            {"wrong": 3, "elements": 8, "max_abs": 0.12345},
            ["  3 of 8 elements are off by more than allowed, at worst by 0.123"],
        ),
        ({"wrong": 3, "elements": 8}, ["  3 of 8 elements are off by more than allowed"]),
        (
            {"rmse_compiled": 0.5, "rmse_eager": 0.25, "rmse_allowed": 0.375, "excess": 1.33333},
            [
                "  rmse against eager in float64: the backend's 0.5, eager's own 0.25, allowed 0.375",
                "  at worst 1.33 times what is allowed",
            ],
        ),
    ],
)  # fmt: skip
def test_the_figures_of_wrong_results_are_lines_for_people(
    found: Mapping[str, Any], lines: list[str]
) -> None:
    assert list(figures(found)) == lines


def test_another_failure_is_shown_beside_the_expected_one() -> None:
    _, expected, got = report(CHANGED, SCRIPT, parse_arguments([]))
    assert expected.startswith("  expected: ")
    assert "ValueError" in expected
    assert "KeyError" in got
    for found in (GONE, REPRODUCES):
        assert len(list(report(found, SCRIPT, parse_arguments([])))) == 1


def test_the_backend_that_was_asked_instead_is_the_one_that_is_named() -> None:
    (line,) = report(GONE, SCRIPT, parse_arguments(["--backend", "acme"]))
    assert line == "gone: acme handles this model"


def test_what_would_move_a_terminal_is_printed_as_an_escape() -> None:
    assert printable("a\x1b[2J\u2028\tü b") == "a\\x1b[2J\\u2028\\tü b"


def test_a_graph_of_aot_autograd_is_not_given_to_a_backend_of_torch_compile() -> None:
    spec = replace(SPEC, level=Level.ATEN)
    for backend, refused in (("eager", True), (torch.nn.Module, False)):
        made = Script("r.py", {"backend": backend, "graph": id, "inputs": id}, spec)
        if refused:
            with pytest.raises(Unavailable, match="a compiler for aot_autograd is needed"):
                made.runnable()
        else:
            assert made.runnable().compiler is backend


def test_a_script_without_a_backend_function_asks_the_backend_of_its_header() -> None:
    spec = replace(SPEC, backend=BackendRef("eager", "'eager'"))
    assert Script("r.py", {"graph": id, "inputs": id}, spec).runnable().compiler == "eager"


def runs_but(wrong: tuple[str, ...]) -> object:
    def backend(gm: torch.fx.GraphModule, inputs: object, options: object = None) -> object:
        names = {str(node.target) for node in gm.graph.nodes if node.op != "output"}
        off = any(name in text for name in wrong for text in names)
        return lambda *args: tuple(value + off for value in gm(*args))

    return backend


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"backend": runs_but(())}, Verdict.GONE),
        ({"backend": runs_but(("add", "relu"))}, Verdict.GONE),
        ({"backend": runs_but(("",))}, Verdict.REPRODUCES),
        ({"backend": lambda gm, inputs: 1 / 0}, Verdict.REPRODUCES),
        ({"_failed": [ModuleNotFoundError("no module")]}, Verdict.SKIPPED),
        ({"_failed": [SyntaxError("invalid syntax")]}, Verdict.INVALID),
    ],
    ids=[
        "works",
        "fails on two ops",
        "always wrong",
        "raises",
        "is not here",
        "cannot be loaded",
    ],
)
def test_a_backend_is_judged_by_the_first_op_that_it_handles(
    parts: dict[str, object], expected: Verdict
) -> None:
    outcome = judged_on_one_op(replace(SCRIPT, definitions=parts), None)
    assert outcome.verdict is expected
    assert bool(outcome.reason) or expected is Verdict.GONE
