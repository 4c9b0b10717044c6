"""``minidbg doctor`` and ``minidbg config``: what is missing is named, with what to do about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minidbg import commands
from minidbg.commands import doctor
from minidbg.commands.doctor import examined, fine


def test_a_compiler_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    (found,) = doctor.compiler()
    assert found.state == "missing"
    assert "no-such-compiler" in found.found
    assert "g++" in found.advice, "what to install"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise ImportError('libfoo.so is missing')", "ImportError: libfoo.so is missing"),
        pytest.param("import os\nos.abort()", "died (signal 6)", marks=pytest.mark.slow),
        pytest.param("thing = 3", "is no callable", marks=pytest.mark.slow),
    ],
)
def test_an_entry_point_is_imported_in_a_child_and_what_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, said: str
) -> None:
    (tmp_path / "broken_backend.py").write_text(source + "\n")
    info = tmp_path / "broken_backend-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-backend\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[torch_dynamo_backends]\nbroken = broken_backend:thing\n")
    monkeypatch.syspath_prepend(tmp_path)
    entry = doctor.metadata.EntryPoint("broken", "broken_backend:thing", "torch_dynamo_backends")
    found = examined("broken", entry)
    assert found.state == "missing"
    assert said in found.found


def test_a_check_that_breaks_does_not_end_the_others() -> None:
    def breaks() -> object:
        raise OSError("no such machine")

    first, second = doctor.examine((breaks, lambda: iter([fine("after", "it")])))
    assert first.state == "broken"
    assert "no such machine" in first.found
    assert second.name == "after"


def test_config_tells_who_set_each_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text(
        '[tool.minidbg]\non_failure = "fallback"\nseconds = 5\n[tool.minidbg.watch]\njobs = 3\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINIDBG_SECONDS", "7")
    with pytest.raises(SystemExit):
        commands.main(["config", "--json"])
    told = {one["name"]: one for one in map(json.loads, capsys.readouterr().out.splitlines())}
    sources = {name: (one["value"], one["source"]) for name, one in told.items()}
    assert sources["on_failure"] == ("fallback", f"[tool.minidbg] of {project}")
    assert sources["seconds"] == (7.0, "the environment")
    assert sources["verify"][1] == "default"
    assert sources["watch.jobs"] == (3, f"[tool.minidbg.watch] of {project}")


def test_an_enum_is_offered_as_the_word_to_write(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINIDBG_ON_FAILURE", "fallbak")
    with pytest.raises(SystemExit) as ended:
        commands.main(["config"])
    assert ended.value.code == 125
    assert capsys.readouterr().err.splitlines()[1] == "  did you mean 'fallback'?"
