"""What is told of a repro comes from its text and the files around it; nothing in it is run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.lying_repro import lay

from minidbg import commands
from minidbg.report import repro_details, summary


@pytest.fixture
def repro(tmp_path: Path) -> Path:
    return lay(tmp_path / "minidbg_repros")


def test_a_story_has_its_history(repro: Path) -> None:
    details = repro_details(repro)
    assert details.title == "no_relu fails to compile relu."
    assert [str(state.verdict) for state in details.states] == ["gone"]


def test_a_repro_alone_in_a_folder_is_told_all_the_same(repro: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone" / "sent_to_me.py"
    alone.parent.mkdir()
    alone.write_text(repro.read_text())
    details = repro_details(alone)
    assert details.states == ()
    assert "not watched yet" in summary(details)


def test_a_glance_shows_the_failure_and_the_figures(repro: Path) -> None:
    text = summary(repro_details(repro))
    assert "no kernel for relu" in text
    assert "1 of 5 nodes, 1 of 3 inputs (no single one can be left out)" in text
    assert "cpu: gone since" in text


def test_show_prints_json_with_the_same_facts(
    repro: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repro.parent.parent)
    with pytest.raises(SystemExit) as ended:
        commands.main(["show", "compile_relu", "--json"])
    assert ended.value.code == 0
    told = json.loads(capsys.readouterr().out)
    assert told["figures"]["nodes_before"] == 5
    assert told["devices"][0]["verdict"] == "gone"
