"""What a script says about where a module came from."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from minidbg.backends.modules import requirement_of

NOWHERE = "some_dist is on no index: it was imported from the folder src"


@pytest.mark.parametrize(
    ("version", "origin", "requirement", "remark"),
    [
        ("2.1+cu126", None, "some-dist==2.1", ""),
        (None, None, "", NOWHERE),
        ("1.2", {"url": "https://me:secret@host/some.git", "vcs_info": {}}, "", NOWHERE),
        ("1.2", {"url": "file:///src/project", "dir_info": {"editable": True}}, "", NOWHERE),
    ],
    ids=["of an index, without the local label", "of no distribution", "of a repository", "editable"],
)
def test_a_module_is_one_of_an_index_or_a_remark_says_where_it_was_imported_from(
    version: str | None,
    origin: dict[str, Any] | None,
    requirement: str,
    remark: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, info = tmp_path / "src", tmp_path / "site" / "some_dist-0.dist-info"
    source.mkdir()
    info.mkdir(parents=True)
    (source / "some_dist.py").touch()
    if version is not None:
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: some-dist\nVersion: {version}\n")
        (info / "RECORD").touch()
        (info / "top_level.txt").write_text("some_dist\n")
    if origin is not None:
        (info / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(info.parent)
    monkeypatch.syspath_prepend(source)
    monkeypatch.delitem(sys.modules, "some_dist", raising=False)
    importlib.import_module("some_dist")

    assert requirement_of("some_dist.sub") == (requirement, remark, (str(source),))


def test_module_of_an_installed_distribution_needs_no_path() -> None:
    import packaging

    assert requirement_of("packaging") == (f"packaging=={packaging.__version__}", "", ())
