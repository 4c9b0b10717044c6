"""Where the code of a backend lies, which devices a repro runs on, and how a build ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import click
import pytest
from support.toy_repros import git

from minidbg.core.errors import BadSetting
from minidbg.watch.events import BuildFailed, BuildFinished
from minidbg.watch.runner import Build
from minidbg.watch.settings import (
    Devices,
    chosen_devices,
    devices_of_machine,
    load_watch_settings,
    parse_devices,
)
from minidbg.watch.sources import left_out_folders, module_roots, revisions, worth_watching


def test_packages_links_namespaces_and_single_modules_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, real = tmp_path / "site", tmp_path / "checkout" / "src" / "wl_linked"
    for folder in (site / "wl_plain", site / "wl_namespace" / "part", real, tmp_path / "wl_elsewhere"):
        folder.mkdir(parents=True)
    for folder in (site / "wl_plain", real, tmp_path / "wl_elsewhere"):
        (folder / "__init__.py").write_text("")
    (site / "wl_linked").symlink_to(real)
    (site / "wl_single.py").write_text("")
    (site / "wl_compiled.abi3.so").write_bytes(b"")
    monkeypatch.syspath_prepend(str(site))
    wanted = {
        "wl_linked": [real], "wl_plain": [site / "wl_plain"], "wl_namespace": [site / "wl_namespace"],
        "wl_single": [site / "wl_single.py"], "wl_compiled": [site / "wl_compiled.abi3.so"],
        "wl_missing": [], "wl_plain.part.of": [site / "wl_plain"], "wl_elsewhere": [tmp_path / "wl_elsewhere"],
    }  # fmt: skip
    found = {name: [Path(root) for root in module_roots(name, [str(tmp_path)])] for name in wanted}
    assert found == wanted
    assert "wl_plain" not in sys.modules, "nothing is imported"
    assert {Path(root).name for root in module_roots("torch", ())} >= {"_inductor", "_dynamo", "libtorch.so"}


def test_of_loaded_files_only_those_are_watched_that_can_change_a_verdict(tmp_path: Path) -> None:
    left_out = (os.path.dirname(os.__file__) + os.sep, "/usr/lib/", "/tmp/torchinductor_")
    build, source = tmp_path / "build" / "ext.so", tmp_path / "src"
    inside = [source / "ext.so", source / "table.json"]
    outside = [source / ".git" / "HEAD", tmp_path / "notes.txt"]
    for path in (build, *inside, *outside):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    wanted = {click.__file__, str(build), *map(str, inside)}
    others = [os.__file__, *map(str, outside), "/tmp/torchinductor_x/ab/cab.py", "/usr/lib/libc.so.6"]
    assert set(worth_watching([*wanted, *others], [str(source)], left_out)) == wanted
    assert [*worth_watching([str(build)], [], left_out_folders(tmp_path))] == [str(build)], (
        "people build in /tmp"
    )


def devices_with(kind: str, count: int, version: str = "12.8") -> Devices:
    """A machine whose torch has ``count`` accelerators, the last of which is the current one."""
    accelerator = SimpleNamespace(
        is_available=lambda: count > 0, current_accelerator=lambda: SimpleNamespace(type=kind),
        device_count=lambda: count, current_device_index=lambda: count - 1,
    )  # fmt: skip
    torch = SimpleNamespace(
        accelerator=accelerator, version=SimpleNamespace(**{kind: version}), __version__="2.13.0"
    )
    with mock.patch.dict(sys.modules, torch=torch), mock.patch.dict(os.environ):
        os.environ.pop("MINIDBG__WATCH_PRELOAD", None)
        return Devices(**devices_of_machine({}, None))


def test_a_revision_is_a_commit_and_all_that_differs_from_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert revisions([str(tmp_path)]) == {}, "without a commit"
    seen = []
    for name, text in [("a.py", "1"), ("a.py", "2"), ("new.py", "3"), ("new.py", "4")]:
        (tmp_path / name).write_text(text)
        if not seen:
            git(tmp_path, "add", ".")
            git(tmp_path, "commit", "-q", "-m", "the first")
        seen.append(str(revisions([str(tmp_path)])[str(tmp_path)]))
    assert seen[0] == git(tmp_path, "rev-parse", "HEAD")[:10]
    assert len(set(seen)) == 4
    assert all(one.startswith(f"{seen[0]}+") for one in seen[1:])


def test_each_accelerator_is_found_under_its_number_and_the_current_one_by_its_kind() -> None:
    two = devices_with("cuda", 2)
    assert two.present() == ("cpu", "cuda:0", "cuda:1")
    assert len(set(two.environments.values())) == 4, "two accelerators are two places"
    assert two.environments["cuda"] != devices_with("cuda", 2, "13.0").environments["cuda"]
    assert devices_with("cuda", 0).present() == ("cpu",)
    wanted = chosen_devices("cpu", parse_devices("all, xpu:1,cpu"), devices_with("xpu", 1))
    assert wanted == ("cpu", "xpu:0", "xpu:1"), "what is not here is asked for all the same"


@pytest.mark.parametrize("text", ["", " , ", "cuda:x", "cpu;cuda", "1"])
def test_what_is_no_device_is_refused(text: str) -> None:
    with pytest.raises(BadSetting):
        parse_devices(text)


def test_the_project_file_sets_and_arguments_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project, inner = tmp_path / "pyproject.toml", tmp_path / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    project.write_text("[tool.minidbg]\nseconds = 5\n")
    assert load_watch_settings({}).folder == inner
    project.write_text('[tool.minidbg.watch]\nbuild = "ninja"\nsources = ["csrc"]\njobs = 3\n')
    settings = load_watch_settings({"jobs": 5, "poll_s": None, "sources": ()})
    assert (settings.build, settings.jobs, settings.sources) == ("ninja", 5, (tmp_path / "csrc",))
    assert settings.folder == tmp_path, "where commands run"


@pytest.mark.parametrize(
    ("command", "status", "error"),
    [
        ("seq 100; echo trouble >&2; exit 3", 3, "trouble"),
        ("echo 'gcc -c x.c'; echo 'x.c:3: error: no such'; seq 500; exit 1", 1, "x.c:3: error: no such"),
    ],
)
def test_a_build_that_fails_tells_its_status_its_last_lines_and_its_first_error(
    tmp_path: Path, command: str, status: int, error: str
) -> None:
    built = Build(command, tmp_path).wait(30)
    assert isinstance(built, BuildFailed)
    assert (built.status, built.error, len(built.output.splitlines())) == (status, error, 30)
    assert isinstance(Build("seq 500; echo 'no error'", tmp_path).wait(30), BuildFinished)


def test_a_build_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    build = Build("sleep 1000", tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        build.wait(0.1)
    assert build.process.wait(30) == -9
