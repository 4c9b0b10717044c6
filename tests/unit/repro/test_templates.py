"""Templates of one's own: used where they work; where they do not, the built-in one is, and file and line are named."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from minidbg.repro import templates


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of templates that ``pyproject.toml`` names, relative to itself."""
    (tmp_path / "pyproject.toml").write_text('[tool.minidbg]\ntemplates = "ours"\n')
    (tmp_path / "ours").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(templates, "FOLDERS", (tmp_path / "builtin",))
    (tmp_path / "builtin").mkdir()
    (tmp_path / "builtin" / "note.j2").write_text("built in: {{ x }}")
    templates.environment.cache_clear()
    yield tmp_path / "ours"
    templates.environment.cache_clear()


def test_a_template_of_ones_own_is_used_in_place_of_the_built_in_one(folder: Path) -> None:
    assert templates.fill("note.j2", {"x": 1}) == "built in: 1"
    (folder / "note.j2").write_text("ours: {{ x }}")
    assert templates.fill("note.j2", {"x": 1}) == "ours: 1"


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("one\n{% if x %}\nthree\n", 3, "Unexpected end of template"),
        ("one\n{{ y }}\n", 2, "'y' is undefined"),
        ("one\n\n{{ x / 0 }}\n", 3, "ZeroDivisionError"),
        ("{{ x | nonesuch }}\n", 1, "nonesuch"),
    ],
)
def test_a_broken_template_is_named_with_its_line_and_nothing_is_lost(
    folder: Path, text: str, line: int, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "note.j2").write_text(text)
    with caplog.at_level(logging.WARNING, "minidbg"):
        assert templates.fill("note.j2", {"x": 1}) == "built in: 1"
    (record,) = caplog.records
    assert f"{folder / 'note.j2'}, line {line}: " in record.getMessage()
    assert why in record.getMessage()
    assert "the built-in note.j2 is used" in record.getMessage()


def test_what_a_template_makes_is_checked(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "note.j2").write_text("no Python (")

    def check(text: str) -> None:
        compile(text, "note", "exec")

    with caplog.at_level(logging.WARNING, "minidbg"):
        assert templates.fill("note.j2", {"x": 1}, check) == "built in: 1"
    assert "what it makes cannot be used" in caplog.text


def test_templates_are_found_in_the_package_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "FOLDERS", (folder, folder.parent / "builtin"))
    (folder / "note.j2").write_text("in the package")
    (folder.parent / "builtin" / "other.j2").write_text("only beside")
    assert templates.built_in("note.j2", {}) == "in the package"
    assert templates.built_in("other.j2", {}) == "only beside"


def test_a_template_may_include_a_built_in_one(folder: Path) -> None:
    (folder / "own.j2").write_text("before {% include 'note.j2' %} after")
    assert templates.fill("own.j2", {"x": 2}) == "before built in: 2 after"


def test_pages_escape_what_they_show_and_scripts_do_not(folder: Path) -> None:
    for name in ("page.html.j2", "script.py.j2"):
        (folder / name).write_text("{{ x }}")
    assert templates.fill("page.html.j2", {"x": "<b>"}) == "&lt;b&gt;"
    assert templates.fill("script.py.j2", {"x": "<b>"}) == "<b>"
