"""The built-in templates: where they are looked up."""

from __future__ import annotations

from pathlib import Path

from minidbg.core import templates


def test_templates_are_found_in_the_package_first(tmp_path: Path) -> None:
    inside, beside = tmp_path / "inside", tmp_path / "beside"
    for path, text in (
        (inside / "note.j2", "in the package"),
        (beside / "note.j2", "beside"),
        (beside / "other.j2", "only beside"),
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    found = templates.template_environment((inside, beside))
    assert found.get_template("note.j2").render() == "in the package"
    assert found.get_template("other.j2").render() == "only beside"
