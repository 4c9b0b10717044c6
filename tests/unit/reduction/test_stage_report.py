"""What a stage report says, and how it gets into a script that lies there already."""

from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import fx

from minidbg import repro
from minidbg.fx.case import Case
from minidbg.reduction.stages import StageReport, keep_stages, stages_of
from minidbg.words.errors import UnreadableRepro
from minidbg.words.outcome import Kind, Signature, Verdict
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
        "eager, aot_eager and aot_eager_decomp_partition pass; inductor fails, and passes without number 3 of its "
        'lowerings (aten "cumsum")',
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


def test_a_report_survives_the_header(script: Path) -> None:
    assert stages_of(repro.read_header(script)) is None
    keep_stages(script, REPORT)
    assert stages_of(repro.read_header(script)) == replace(REPORT, seconds=12.3)


def test_nothing_else_of_the_script_changes(script: Path) -> None:
    before, header = script.read_text(), repro.read_header(script)
    keep_stages(script, REPORT)
    after = repro.read_header(script)
    assert replace(after, stages=None) == replace(header, stages=None)
    old, new = before.splitlines(), script.read_text().splitlines()
    changes = list(difflib.ndiff(old, new))
    assert not [line for line in changes if line.startswith("- ")]
    assert f"+ Stages: {REPORT.sentence}." in changes
    compile(script.read_text(), str(script), "exec")


def test_a_second_report_takes_the_place_of_the_first(script: Path) -> None:
    other = replace(REPORT, number=4)
    keep_stages(script, other)
    once = script.read_text()
    keep_stages(script, REPORT)
    keep_stages(script, other)
    assert script.read_text() == once


def test_a_docstring_rewritten_by_hand_is_left_alone(script: Path) -> None:
    text = script.read_text()
    end = text.index('"""', 3)
    script.write_text('"""Mine.' + text[end:])
    keep_stages(script, REPORT)
    assert script.read_text().startswith('"""Mine."""')
    assert stages_of(repro.read_header(script)) is not None


def test_a_detail_cannot_end_the_docstring(script: Path) -> None:
    keep_stages(script, replace(REPORT, detail='""" + exit() + """ \\'))
    compile(script.read_text(), str(script), "exec")
    found = stages_of(repro.read_header(script))
    assert found.detail == '""" + exit() + """ \\'


def test_what_is_no_repro_is_refused_and_left(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text("x = 1\n")
    with pytest.raises(UnreadableRepro):
        keep_stages(path, REPORT)
    assert path.read_text() == "x = 1\n"


def test_a_damaged_table_counts_as_none(script: Path) -> None:
    keep_stages(script, REPORT)
    script.write_text(script.read_text().replace('eager = "gone"', 'eager = "perhaps"', 1))
    assert stages_of(repro.read_header(script)) is None
