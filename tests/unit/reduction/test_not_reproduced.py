"""What is said of a repro that does not show its failure any more, here after an edit by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from planted_backends import raises_on_relu

import minidbg
from minidbg.core.errors import NotReproduced

EDITS = {
    "torch.tanh": r"the case does not show its failure here: gone.* tried: through torch.compile \(gone\)",
    "torch.linalg.det": "this is not a failure of the backend: eager itself fails",
}


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("repro") / "relu.py"
    return minidbg.save_repro(lambda x: torch.relu(x.sin()), (torch.ones(3),), raises_on_relu, path)


@pytest.mark.parametrize(("op", "sentence"), EDITS.items())
def test_an_edited_repro_that_passes_is_told_from_one_that_eager_refuses(
    script: Path, tmp_path: Path, op: str, sentence: str
) -> None:
    edited = tmp_path / "edited.py"
    edited.write_text(script.read_text().replace("torch.relu(", f"{op}("))
    with pytest.raises(NotReproduced, match=sentence):
        minidbg.reduce(edited, folder=tmp_path / "out")
    assert not list(tmp_path.glob("out/*.py"))


def test_a_damaged_best_of_an_ended_reduction_is_skipped_and_said(
    script: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = minidbg.reduce(script, folder=tmp_path)
    (done,) = tmp_path.glob(".minidbg/reductions/*/done.json")
    done.rename(done.with_name("best.py"))
    assert minidbg.reduce(script, folder=tmp_path) == first
    assert "best.py is skipped: " in caplog.text
