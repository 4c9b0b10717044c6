"""Code that travels: the zip of a content, the folder that it is unpacked into, and what of it a run sees. No Dask."""

from __future__ import annotations

import io
import json
import os
import py_compile
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from minidbg.extras.cluster import code as room
from minidbg.extras.cluster.code import MANIFEST, Code, Edited, Trees, as_sent, code_of, differing, moved
from minidbg.watch.snapshot import Ignore, Root, Snapshot, scan


def code_in(folder: Path, *paths: str, build: str = "") -> Code:
    found = scan([Root(str(folder))], Ignore(), Snapshot(), now_ns=0)
    contents = {path: entry.digest for path, entry in found.files.items()}
    return code_of(contents, paths, build=build, build_folder=str(folder) if build else "")


def sent(code: Code, trees: Trees) -> Path:
    """The folder of the code on the worker, which can be used."""
    tree, there, why = trees.ready(code.digest, code.zipped)
    assert (there.digest, why) == (code.digest, "")
    return tree


@pytest.fixture
def trees(tmp_path: Path) -> Trees:
    return Trees(tmp_path / "code")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    found = tmp_path / "home" / "acme"
    found.mkdir(parents=True)
    (found / "__init__.py").write_text("from acme.lower import lower\n")
    (found / "lower.py").write_text("def lower():\n    return 1\n")
    (found / "tool.sh").write_text("#!/bin/sh\n")
    (found / "tool.sh").chmod(0o755)
    return found


def test_a_tree_holds_the_files_at_their_paths(package: Path, trees: Trees) -> None:
    tree = sent(code_in(package, str(package.parent)), trees)
    for name in ("__init__.py", "lower.py", "tool.sh"):
        there = Path(f"{tree}{package}/{name}")
        assert there.read_bytes() == (package / name).read_bytes()
        assert os.access(there, os.X_OK) == (name == "tool.sh")


def test_each_content_has_a_folder_that_stays_as_it_is(package: Path, trees: Trees) -> None:
    first = sent(code_in(package), trees)
    (package / "lower.py").write_text("def lower():\n    return 2\n")
    second = sent(code_in(package), trees)
    assert "return 1" in Path(f"{first}{package}/lower.py").read_text()
    assert "return 2" in Path(f"{second}{package}/lower.py").read_text()
    (package / "lower.py").write_text("def lower():\n    return 1\n")
    before = os.stat(first / MANIFEST)
    assert sent(code_in(package), trees) == first
    assert os.stat(first / MANIFEST) == before, "it was not unpacked again"


def test_bytecode_goes_along_for_files_that_are_the_same(package: Path, trees: Trees) -> None:
    """And Python takes it for that of the file there, although another content was unpacked later."""
    first = sent(code_in(package), trees)
    for name in ("__init__.py", "lower.py"):
        py_compile.compile(f"{first}{package}/{name}")
    (package / "lower.py").write_text("def lower():\n    return 2\n")
    second = sent(code_in(package), trees)
    cached = [path.name.partition(".")[0] for path in Path(f"{second}{package}/__pycache__").iterdir()]
    assert cached == ["__init__"]
    stamps = {int(os.stat(f"{tree}{package}/__init__.py").st_mtime) for tree in (first, second)}
    assert len(stamps) == 1


def test_workers_that_unpack_at_the_same_time_see_no_part_of_it(
    package: Path, trees: Trees, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers of one machine: while one is in the middle, the folder is not there; then both have the same whole one."""
    code, middle, go_on = code_in(package), threading.Event(), threading.Event()
    extract = room.extract

    def slowly(zipped: bytes, tree: Path) -> None:
        extract(zipped, tree)
        if threading.current_thread() is not threading.main_thread():
            middle.set()
            assert go_on.wait(30)

    monkeypatch.setattr(room, "extract", slowly)
    other, found = Trees(trees.folder), list[Path]()
    thread = threading.Thread(target=lambda: found.append(sent(code, other)))
    thread.start()
    assert middle.wait(30)
    assert not (trees.folder / code.digest).exists()
    mine = sent(code, trees)
    go_on.set()
    thread.join(30)
    assert found == [mine]
    assert [path.name for path in trees.folder.iterdir()] == [code.digest]


KILLED = """
import os, sys
from pathlib import Path
from minidbg.extras.cluster import code as room

extract = room.extract
room.extract = lambda *arguments: (extract(*arguments), os._exit(9))
room.Trees(Path(sys.argv[1])).ready(sys.argv[2], sys.stdin.buffer.read())
"""


def test_what_a_killed_worker_had_half_unpacked_is_not_taken_for_the_whole(
    package: Path, trees: Trees
) -> None:
    """It lies under another name, and goes after a day."""
    code = code_in(package)
    command = [sys.executable, "-c", KILLED, str(trees.folder), code.digest]
    assert subprocess.run(command, input=code.zipped, check=False, timeout=60).returncode == 9
    (half,) = trees.folder.iterdir()
    assert half.name != code.digest
    tree = sent(code, trees)
    assert Path(f"{tree}{package}/lower.py").exists()
    assert half.exists()
    long_ago = time.time() - room.DRAFT_S - 1
    os.utime(half, (long_ago, long_ago))
    (package / "lower.py").write_text("def lower():\n    return 2\n")
    sent(code_in(package), trees)
    assert not half.exists()


def test_no_file_leaves_the_tree(tmp_path: Path, trees: Trees) -> None:
    code = Code({"/a/../../../../evil.py": ""})
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(MANIFEST, code.manifest)
        archive.writestr("a/../../../../evil.py", b"x")
    with pytest.raises(ValueError, match="no absolute path"):
        trees.ready(code.digest, content.getvalue())
    assert not list(tmp_path.rglob("evil.py"))
    assert not list(trees.folder.iterdir())


def test_a_zip_of_other_code_is_refused(package: Path, trees: Trees) -> None:
    """A verdict belongs to a digest, and so does the folder."""
    code = code_in(package)
    with pytest.raises(ValueError, match=code.digest):
        trees.ready("0" * 40, code.zipped)
    assert not list(trees.folder.iterdir())


def test_a_build_that_fails_is_the_reason(package: Path, trees: Trees) -> None:
    build = "echo fine; echo 'lower.cpp:3: error: no such thing' >&2; exit 4"
    code = code_in(package, build=build)
    for _ in range(2):
        assert (
            trees.ready(code.digest, code.zipped)[2]
            == "the build failed with status 4: lower.cpp:3: error: no such thing"
        )


def test_a_build_runs_once_and_one_that_was_killed_starts_anew(package: Path, trees: Trees) -> None:
    """What the killed one had made may be half written, and a make would take it for done."""
    count = trees.folder.parent / "count"
    code = code_in(package, build=f"test -e made && exit 3; echo x >> {count}; echo whole > made")
    tree = sent(code, trees)
    assert sent(code, trees) == tree
    assert count.read_text() == "x\n"
    (tree / room.BUILD_SAID).unlink()
    Path(f"{tree}{package}/made").write_text("ha")
    sent(code, trees)
    assert Path(f"{tree}{package}/made").read_text() == "whole\n"
    assert count.read_text() == "x\nx\n"


def test_what_a_build_makes_does_not_travel(package: Path) -> None:
    (package / "native.so").write_bytes(b"ELF")
    assert f"{package}/native.so" in code_in(package).files
    assert f"{package}/native.so" not in code_in(package, build="make").files


def test_installed_code_stays_and_must_be_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker with the same version and another file judges nothing: its verdict would not be on this code."""
    inside = tmp_path / "lib" / "site-packages"
    (inside / "acmepack").mkdir(parents=True)
    (inside / "acmepack" / "__init__.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(inside))
    code = code_in(inside, str(inside))
    assert not code.files
    assert not code.paths
    assert differing(code) == ""
    (inside / "acmepack" / "__init__.py").write_text("VALUE = 222\n")
    assert "acmepack" in differing(code)


def test_an_edit_while_the_zip_is_made_is_noticed(package: Path) -> None:
    """Nothing is sent that is not what its digest says; once the file is as it was, it goes."""
    code = code_in(package)
    (package / "lower.py").write_text("def lower():\n    return 3\n")
    with pytest.raises(Edited, match=r"lower\.py"):
        _ = code.zipped
    (package / "lower.py").write_text("def lower():\n    return 1\n")
    with zipfile.ZipFile(io.BytesIO(code.zipped)) as archive:
        assert len(archive.namelist()) == 4
        assert sorted(json.loads(archive.read(MANIFEST))["files"]) == sorted(code.files)


def test_paths_in_a_script_point_into_the_tree() -> None:
    text = "load('/home/u/train.py'); path = \"/home/u/acme\"; other = '/home/user'"
    found = moved(text, ["/home/u", "/home/u/acme", "/home/u/train.py"], Path("/home/u/cache"))
    assert found == (
        "load('/home/u/cache/home/u/train.py'); path = \"/home/u/cache/home/u/acme\"; other = '/home/user'"
    )


def test_files_of_a_run_are_told_as_the_sender_knows_them() -> None:
    files = ["/c/trees/d/home/u/acme/a.py", "/v/lib/python3/site-packages/torch/fx/node.py", "/usr/lib/os.py"]
    assert as_sent(files, Path("/c/trees/d")) == ["/home/u/acme/a.py", "torch/fx/node.py"]


def test_a_worker_keeps_the_trees_that_were_used_last(package: Path, trees: Trees) -> None:
    codes = []
    for number in range(room.MOST_TREES + 3):
        (package / "lower.py").write_text(f"def lower():\n    return {number}\n")
        codes.append(code := code_in(package))
        tree = sent(code, trees)
        os.utime(tree, (number, number))
    sent(code_in(package), trees)
    assert {path.name for path in trees.by_use()} == {code.digest for code in codes[-room.MOST_TREES :]}


def test_paths_of_the_code_come_before_finders_of_editable_installs(monkeypatch: pytest.MonkeyPatch) -> None:
    from minidbg.workers.run_script import put_first

    class Finder:
        def find_spec(self, *_: object) -> None:
            return None

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "/before")
    put_first(("/tree/a",))
    assert sys.path[0] == "/tree/a"
    assert os.environ["PYTHONPATH"] == f"/tree/a{os.pathsep}/before"
    assert isinstance(sys.meta_path[3], Finder)


@pytest.mark.parametrize("digest", ["../../kept", "/kept", "..", "", ".", "a" * 39, "A" * 40])
def test_a_digest_that_is_none_reaches_nothing_outside_the_folder(
    package: Path, trees: Trees, tmp_path: Path, digest: str
) -> None:
    kept = tmp_path.parent / "kept"
    kept.mkdir(exist_ok=True)
    (kept / MANIFEST).write_text("{}")
    with pytest.raises(ValueError, match="is no digest of code"):
        trees.ready(digest, code_in(package, build="true").zipped)
    assert (kept / MANIFEST).exists()
    assert list(trees.folder.iterdir()) == []
