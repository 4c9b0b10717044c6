"""The built-in templates: where they are looked up, and what is escaped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from minidbg.words import templates


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """Stand-ins for the folder in the package and the one beside it."""
    found = tmp_path / "inside", tmp_path / "beside"
    for folder in found:
        folder.mkdir()
    monkeypatch.setattr(templates, "FOLDERS", found)
    templates.environment.cache_clear()
    yield found
    templates.environment.cache_clear()


def test_templates_are_found_in_the_package_first(folders: tuple[Path, Path]) -> None:
    inside, beside = folders
    (inside / "note.j2").write_text("in the package")
    (beside / "note.j2").write_text("beside")
    (beside / "other.j2").write_text("only beside")
    assert templates.fill("note.j2", {}) == "in the package"
    assert templates.fill("other.j2", {}) == "only beside"


def test_pages_escape_what_they_show_and_scripts_do_not(folders: tuple[Path, Path]) -> None:
    for name in ("page.html.j2", "script.py.j2"):
        (folders[0] / name).write_text("{{ x }}")
    assert templates.fill("page.html.j2", {"x": "<b>"}) == "&lt;b&gt;"
    assert templates.fill("script.py.j2", {"x": "<b>"}) == "<b>"
