"""What a stage report says, and where it is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import fx

from minidbg import repro
from minidbg.fx.case import Case
from minidbg.reduction.stages import StageReport, keep_stages, kept_file, stages_of
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


def test_an_answer_that_an_earlier_version_wrote_into_the_header_counts(script: Path) -> None:
    verdicts = "".join(f'# {name} = "{verdict}"\n' for name, verdict in REPORT.verdicts.items())
    table = f'# [tool.minidbg.stages]\n# backend = "inductor"\n# [tool.minidbg.stages.verdicts]\n{verdicts}'
    script.write_text(script.read_text().replace("# [tool.minidbg]\n", f"{table}# [tool.minidbg]\n", 1))
    found = stages_of(repro.read_header(script))
    assert found is not None
    assert (found.guilty, found.verdicts) == ("inductor", REPORT.verdicts)


@pytest.mark.parametrize("damage", [("gone", "perhaps"), ("{", "["), ("verdicts", "verdict")])
def test_a_damaged_answer_counts_as_none(script: Path, damage: tuple[str, str]) -> None:
    keep_stages(script, REPORT)
    kept = kept_file(script)
    kept.write_text(kept.read_text().replace(*damage, 1))
    assert stages_of(repro.read_header(script)) is None
