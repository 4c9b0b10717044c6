"""The built-in templates: where they are looked up."""

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
