"""What a stage report says, and where it is kept."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config
from support.doubles import answering
from torch import fx

from minidbg import repro
from minidbg.core.outcome import Kind, Outcome, Signature, Verdict
from minidbg.core.run_spec import BackendRef, Provenance, RunSpec
from minidbg.fx.case import Case
from minidbg.report.stages import StageReport, find_stages

GONE, REPRODUCES = Verdict.GONE, Verdict.REPRODUCES
REPORT = StageReport(
    {"eager": GONE, "aot_eager": GONE, "aot_eager_decomp_partition": GONE, "inductor": REPRODUCES},
    "inductor",
    passes=("`fallback_by_default=True`", "one thread"),
    seconds=12.34,
)
SENTENCES = {
    "inductor": (
        REPORT,
        "eager, aot_eager and aot_eager_decomp_partition pass; inductor fails; "
        "passes with `fallback_by_default=True`; passes with one thread",
    ),
    "AOTAutograd": (
        StageReport({"eager": GONE, "aot_eager": Verdict.CHANGED, "mine": REPRODUCES}, "mine"),
        "eager passes; it fails in AOTAutograd already, before any compiler",
    ),
    "the backend is a stage itself": (
        StageReport({"eager": GONE, "aot_eager": REPRODUCES}, "aot_eager"),
        "eager passes; aot_eager fails",
    ),
    "order of rounding": (
        replace(REPORT, passes=("`numerics='strict'`",)),
        "eager, aot_eager and aot_eager_decomp_partition pass; inductor fails; "
        "gone with strict numerics: order of rounding",
    ),
    "nothing": (
        StageReport({"eager": GONE, "mine": Verdict.INVALID}, "mine"),
        "no stage fails through torch.compile (eager passes)",
    ),
}


@cache
def written(folder: Path, backend: str = "inductor", kind: Kind = Kind.COMPILE) -> Path:
    case = Case(
        fx.symbolic_trace(lambda x: (torch.relu(x),)),
        (torch.ones(2, 3).bfloat16().t(),),
        RunSpec(BackendRef(backend, repr(backend), modules=("torch",)), signature=Signature(kind)),
        provenance=Provenance(message="broken"),
    )
    return repro.publish(case, repro.write(case, repro.drafts(folder) / "draft.py"), folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of scripts that nobody changes."""
    return tmp_path_factory.mktemp("stages")


@pytest.mark.parametrize(("report", "sentence"), SENTENCES.values(), ids=SENTENCES)
def test_the_sentence_names_the_first_stage_that_fails(report: StageReport, sentence: str) -> None:
    assert report.sentence == sentence


def test_a_report_says_of_each_subsystem_whether_the_failure_is_gone_without_it() -> None:
    assert REPORT.disabled == {
        "inductor": "yes",
        "decompositions and partitioner": "yes",
        "AOTAutograd": "yes",
        **dict.fromkeys(REPORT.passes, "yes"),
    }
    of_aot = StageReport({"eager": GONE, "aot_eager": REPRODUCES, "mine": Verdict.TIMEOUT}, "mine")
    assert of_aot.disabled == {"decompositions and partitioner": "no", "AOTAutograd": "yes"}


# How it is found out, with stages that answer at once


@pytest.mark.parametrize(
    ("backend", "seconds", "asked"),
    [
        ("aot_eager", 60.0, ["eager", "aot_eager", "aot_eager_decomp_partition"]),
        ("inductor", 60.0, ["eager", "aot_eager", "aot_eager_decomp_partition", "inductor"]),
        ("inductor", 0.0, ["inductor"]),
    ],
    ids=["a stage itself, in its place", "behind them", "no time: its own all the same"],
)
def test_each_stage_is_asked_once_and_named_before(
    folder: Path, backend: str, seconds: float, asked: list[str]
) -> None:
    said, names = list[str](), list[str]()
    children = answering(lambda case: names.append(case.backend.name) or Outcome(GONE))
    find_stages(written(folder, backend), seconds=seconds, note=said.append, submit=children)
    assert names == asked
    assert said == [f"running it with {name}" for name in asked]


def test_nothing_is_changed_where_a_stage_before_the_backend_is_at_fault(folder: Path) -> None:
    said = list[str]()
    children = answering(lambda case: Outcome(GONE if case.backend.name == "eager" else REPRODUCES))
    report = find_stages(written(folder), note=said.append, submit=children)
    assert (report.guilty, len(said)) == ("aot_eager", 4)


@pytest.mark.parametrize(
    ("is_gone", "passes"),
    [
        (lambda case: case.backend.options.get("epilogue_fusion") is False, "`epilogue_fusion=False`"),
        (lambda case: "fallback_by_default" in case.backend.options, "`fallback_by_default=True`"),
        pytest.param(
            lambda case: case.backend.options.get("numerics") == "strict",
            "`numerics='strict'`",
            marks=pytest.mark.skipif(
                not hasattr(torch._inductor.config, "numerics"), reason="torch has it from 2.14 on"
            ),
        ),
        (lambda case: case.spec.dynamic, "`dynamic=True`"),
        (lambda case: case.inputs[0].is_contiguous(), "`.contiguous()` before it"),
        (lambda case: case.inputs[0].dtype is torch.float32, "`.to(torch.float32)` before it"),
        (lambda case: False, ""),
    ],
    ids=[
        "a switch, found by halves",
        "lowerings",
        "strict numerics",
        "dynamic",
        "laid out anew",
        "cast",
        "nothing",
    ],
)
def test_what_a_program_can_change_is_tried(folder: Path, is_gone: Any, passes: str) -> None:
    def answer(case: Case) -> Outcome:
        return Outcome(GONE if case.backend.name != "inductor" or is_gone(case) else Verdict.CHANGED)

    assert find_stages(written(folder), submit=answering(answer)).passes == tuple(filter(None, [passes]))
