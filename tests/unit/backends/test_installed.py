"""What a script says about where a module came from."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minidbg.python_text.modules import installed, public_version

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Makes ``some_dist`` importable, as a distribution of the given version and origin."""

    def make(version: str | None = "1.2", origin: dict[str, Any] | None = None, pth: bool = False) -> Path:
        source, info = tmp_path / "src", tmp_path / "site" / "some_dist-0.dist-info"
        source.mkdir()
        info.mkdir(parents=True)
        (source / "some_dist.py").touch()
        if version is not None:
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: some-dist\nVersion: {version}\n")
            (info / "RECORD").write_text("some.pth,,\n" if pth else "")
            if not pth:
                (info / "top_level.txt").write_text("some_dist\n")
            else:
                (info.parent / "some.pth").write_text(f"{source}\n")
        if origin is not None:
            (info / "direct_url.json").write_text(json.dumps(origin))
        monkeypatch.syspath_prepend(info.parent)
        monkeypatch.syspath_prepend(source)
        monkeypatch.delitem(sys.modules, "some_dist", raising=False)
        importlib.import_module("some_dist")
        return source

    return make


def test_requirement_has_the_public_version_and_the_local_one_is_a_remark(install: Install) -> None:
    folder = install("2.1+cu126")

    found = installed("some_dist.sub")

    assert found.requirement == "some-dist==2.1"
    assert found.remark == "some-dist was 2.1+cu126 where this failed"
    assert found.paths == (str(folder),)


def test_module_of_no_distribution_is_a_remark(install: Install) -> None:
    folder = install(version=None)

    found = installed("some_dist")

    assert found.requirement == ""
    assert found.remark == f"some_dist is not installed: it was imported from the folder {folder.name}"


def test_remark_names_the_commit(install: Install) -> None:
    folder = install(version=None)
    git = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=e"]
    for command in ("init -q", "add .", "commit -qm m", "rev-parse HEAD"):
        said = subprocess.run([*git, *command.split()], check=True, capture_output=True, text=True).stdout
    commit = said[:12]

    assert installed("some_dist").remark.endswith(f" the folder {folder.name} at commit {commit}")
    (folder / "some_dist.py").write_text("changed = 1\n")
    assert installed("some_dist").remark.endswith(f" the folder {folder.name} at commit {commit}-dirty")


def test_editable_install_is_a_remark_without_a_path(install: Install) -> None:
    """The same interpreter finds it; its metadata does not name the module."""
    folder = install(origin={"url": "file:///src/project", "dir_info": {"editable": True}}, pth=True)

    found = installed("some_dist")

    assert found.requirement == ""
    assert found.remark == "some_dist is an editable install of some-dist"
    assert found.paths == ()
    assert folder.exists()


@pytest.mark.parametrize(
    ("origin", "said"),
    [
        (
            {"url": "https://me:secret@host/some.git?t=1", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "by: pip install 'some-dist @ git+https://host/some.git@abc'",
        ),
        ({"url": "file:///src/project", "dir_info": {}}, "from a file or folder project"),
    ],
    ids=["a repository", "a folder"],
)
def test_an_install_says_where_from_without_credentials(
    install: Install, origin: dict[str, Any], said: str
) -> None:
    install(origin=origin)
    assert installed("some_dist").remark == f"some-dist 1.2 was installed {said}"


def test_module_of_an_installed_distribution_needs_no_path() -> None:
    import packaging

    found = installed("packaging")

    assert found.requirement == f"packaging=={packaging.__version__}"
    assert found.paths == ()


@pytest.mark.parametrize(
    ("version", "public"), [("2.13.0+cpu", "2.13.0"), ("1.0.dev3", "1.0.dev3"), ("strange+x", "strange")]
)
def test_public_version_has_no_local_label(version: str, public: str) -> None:
    assert public_version(version) == public
