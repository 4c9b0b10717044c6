"""What a stage report says, and where it is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from minidbg import repro
from minidbg.fx.case import Case
from minidbg.report import stages
from minidbg.report.stages import StageReport, keep_stages, kept_file, reported, stages_of
from minidbg.words.deadline import Deadline
from minidbg.words.outcome import Kind, Outcome, Signature, Verdict
from minidbg.words.run_spec import BackendRef, Provenance, RunSpec

GONE, REPRODUCES = Verdict.GONE, Verdict.REPRODUCES
REPORT = StageReport(
    {"eager": GONE, "aot_eager": GONE, "aot_eager_decomp_partition": GONE, "inductor": REPRODUCES},
    "inductor",
    subsystem="lowerings",
    number=3,
    detail='aten "cumsum"',
    seconds=12.34,
    torch="2.13.0+cpu",
)
SENTENCES = {
    "a lowering": (
        REPORT,
        "eager, aot_eager and aot_eager_decomp_partition pass; inductor fails, and passes when the 4th of its "
        'lowerings (aten "cumsum") is skipped',
    ),
    "an option": (
        replace(REPORT, subsystem="inductor_layout_optimization", number=None, detail=""),
        "eager, aot_eager and aot_eager_decomp_partition pass; inductor fails, and passes with "
        "inductor_layout_optimization changed",
    ),
    "AOTAutograd": (
        StageReport({"eager": GONE, "aot_eager": Verdict.CHANGED, "mine": REPRODUCES}, "mine"),
        "it fails in AOTAutograd already, before any compiler; eager passes",
    ),
    "the backend is a stage itself": (
        StageReport({"eager": GONE, "aot_eager": REPRODUCES}, "aot_eager"),
        "eager passes; aot_eager fails",
    ),
    "nothing": (
        StageReport({"eager": GONE, "mine": Verdict.INVALID}, "mine", notes=("not found",)),
        "no stage fails through torch.compile (eager passes); not found",
    ),
}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    case = Case(
        fx.symbolic_trace(lambda x: (torch.relu(x),)),
        (torch.ones(2),),
        RunSpec(
            BackendRef("inductor", "'inductor'", modules=("torch",)),
            signature=Signature(Kind.COMPILE, types=("ValueError",)),
        ),
        provenance=Provenance(message="broken"),
    )
    return repro.publish(case, repro.write(case, repro.drafts(tmp_path) / "draft.py"), tmp_path)


@pytest.mark.parametrize(("report", "sentence"), SENTENCES.values(), ids=SENTENCES)
def test_the_sentence_names_the_first_stage_that_fails(report: StageReport, sentence: str) -> None:
    assert report.sentence == sentence


def test_a_report_is_kept_beside_a_script_that_stays_as_it_is(script: Path) -> None:
    before = script.read_bytes()
    assert stages_of(repro.read_header(script)) is None
    keep_stages(script, replace(REPORT, number=4))
    keep_stages(script, REPORT)
    assert stages_of(repro.read_header(script)) == replace(REPORT, seconds=12.3)
    assert script.read_bytes() == before


def test_a_script_that_was_changed_since_has_no_answer(script: Path) -> None:
    keep_stages(script, REPORT)
    script.write_text(script.read_text() + "\n")
    assert stages_of(repro.read_header(script)) is None


@pytest.mark.parametrize("damage", [("gone", "perhaps"), ("{", "["), ("verdicts", "verdict")])
def test_a_damaged_answer_counts_as_none(script: Path, damage: tuple[str, str]) -> None:
    keep_stages(script, REPORT)
    kept = kept_file(script)
    kept.write_text(kept.read_text().replace(*damage, 1))
    assert stages_of(repro.read_header(script)) is None


# How it is found out, with stages that answer at once


def case_for(backend: str = "inductor", kind: Kind = Kind.COMPILE, expression: str = "'inductor'") -> Case:
    spec = RunSpec(BackendRef(backend, expression), signature=Signature(kind))
    return Case(fx.symbolic_trace(lambda x: torch.relu(x)), (torch.ones(2),), spec)


def deadline(left_s: float) -> Deadline:
    return Deadline(left_s, lambda: 0.0)


def test_a_backend_that_is_an_earlier_stage_itself_is_run_once_and_in_its_place() -> None:
    ran: list[str | None] = []
    report = reported(case_for("aot_eager"), deadline(9.0), lambda stage: ran.append(stage) or Outcome(GONE))
    assert ran == ["eager", None, "aot_eager_decomp_partition"]
    assert list(report.verdicts) == ["eager", "aot_eager", "aot_eager_decomp_partition"]


def test_where_the_time_is_over_the_repros_own_backend_is_run_all_the_same() -> None:
    ran: list[str | None] = []
    report = reported(case_for(), deadline(0.0), lambda stage: ran.append(stage) or Outcome(REPRODUCES))
    assert ran == [None]
    assert report.guilty == "inductor"


@pytest.mark.parametrize(
    ("case", "at", "verdict", "is_bisected"),
    [
        (case_for(), "inductor", REPRODUCES, True),
        (case_for(), "inductor", Verdict.CHANGED, False),
        (case_for(), "aot_eager", REPRODUCES, False),
        (case_for(kind=Kind.CRASH), "inductor", REPRODUCES, False),
        (case_for("mine", expression="'mine'"), "mine", REPRODUCES, False),
    ],
    ids=["inductor", "in another way", "an earlier stage", "a crash", "another backend"],
)
def test_inductor_is_bisected_where_it_fails_as_expected_and_nothing_before_it(
    monkeypatch: pytest.MonkeyPatch, case: Case, at: str, verdict: Verdict, is_bisected: bool
) -> None:
    order = [*stages.EARLIER, case.backend.name]

    def at_stage(case: Case, stage: str | None, until: Deadline, bisection: str = "") -> Outcome:
        return Outcome(verdict if order.index(stage or case.backend.name) >= order.index(at) else GONE)

    monkeypatch.setattr(stages, "at_stage", at_stage)
    monkeypatch.setattr(
        stages, "bisected", lambda case, report, until: replace(report, subsystem="lowerings")
    )
    found = stages.in_children(case, deadline(9.0), lambda _: None)
    assert found.guilty == at
    assert (found.subsystem == "lowerings") is is_bisected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (("inductor", "lowerings", 3, "d"), {"subsystem": "lowerings", "number": 3, "detail": "d"}),
        (None, {"notes": ("torch's bisector found no stage at fault",)}),
        (("aot_eager", None, None, ""), {"notes": ("torch's bisector says aot_eager",)}),
        (
            ("inductor", None, None, ""),
            {"notes": ("no single pass, lowering or option of it is at fault",)},
        ),
    ],
)
def test_what_torchs_bisector_finds_is_part_of_the_report(
    monkeypatch: pytest.MonkeyPatch, found: Any, expected: dict[str, Any]
) -> None:
    before = StageReport({"inductor": REPRODUCES}, "inductor")
    monkeypatch.setattr(stages.torch_internals, "bisect_inductor", lambda fails: found)
    assert stages.bisected(case_for(), before, deadline(9.0)) == replace(before, **expected)


@pytest.mark.parametrize(
    ("verdict", "left_s", "note"),
    [
        (GONE, 9.0, "no single pass, lowering or option of it is at fault"),
        (REPRODUCES, 9.0, "torch's bisector found no stage at fault"),
        (Verdict.CHANGED, 9.0, "torch's bisector found no stage at fault"),
        (Verdict.INVALID, 9.0, "torch's bisector gave up: a run was invalid"),
        (Verdict.SKIPPED, 9.0, "torch's bisector gave up: a run was skipped"),
        (Verdict.TIMEOUT, 9.0, "the bisection of inductor ran out of time"),
        (GONE, 0.0, "the bisection of inductor ran out of time"),
    ],
)
def test_a_run_of_the_bisection_counts_as_failing_unless_its_failure_is_gone(
    monkeypatch: pytest.MonkeyPatch, verdict: Verdict, left_s: float, note: str
) -> None:
    monkeypatch.setattr(stages, "at_stage", lambda *_: Outcome(verdict))
    monkeypatch.setattr(
        stages.torch_internals,
        "bisect_inductor",
        lambda fails: None if fails("folder") else ("inductor", None, None, ""),
    )
    before = StageReport({"inductor": REPRODUCES}, "inductor")
    assert stages.bisected(case_for(), before, deadline(left_s)).notes == (note,)


def test_a_report_is_read_back_from_what_is_kept() -> None:
    for report in (
        REPORT,
        replace(REPORT, number=0),
        replace(REPORT, subsystem="", number=None, detail="", notes=("a",), passes=("one thread",)),
    ):
        assert StageReport.from_table(report.to_table()) == replace(report, seconds=12.3)
