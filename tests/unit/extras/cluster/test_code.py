"""Code that travels: manifests, stores, and what of it a run sees. No Dask."""

from __future__ import annotations

import os
import py_compile
import sys
from pathlib import Path

import pytest

from minidbg.extras.cluster.code import BlobStore, Code, Edited, Outbox, as_sent, code_of, moved, sha_of
from minidbg.watch.snapshot import Ignore, Root, Snapshot, scan


def snapshot_of(folder: Path) -> dict[str, str]:
    found = scan([Root(str(folder))], Ignore(), Snapshot(), now_ns=0)
    return {path: entry.digest for path, entry in found.files.items()}


def send(code: Code, store: BlobStore) -> str:
    """Send all that the store lacks, as the pool does; the digest."""
    digest = sha_of(code.manifest)
    sources = {sha.rstrip("*"): path for path, sha in code.files.items()}
    while lacking := store.lacking(digest):
        store.put(
            {sha: code.manifest if sha == digest else Path(sources[sha]).read_bytes() for sha in lacking}
        )
    return digest


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "store")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    found = tmp_path / "home" / "acme"
    found.mkdir(parents=True)
    (found / "__init__.py").write_text("from acme.lower import lower\n")
    (found / "lower.py").write_text("def lower():\n    return 1\n")
    (found / "tool.sh").write_text("#!/bin/sh\n")
    (found / "tool.sh").chmod(0o755)
    return found


def test_a_tree_holds_the_files_at_their_paths(package: Path, store: BlobStore) -> None:
    tree, why = store.tree(send(code_of(snapshot_of(package), [str(package.parent)]), store))
    assert why == ""
    for name in ("__init__.py", "lower.py", "tool.sh"):
        there = Path(f"{tree}{package}/{name}")
        assert there.read_bytes() == (package / name).read_bytes()
        assert os.access(there, os.X_OK) == (name == "tool.sh")


def test_after_a_save_only_the_file_and_the_manifest_travel(package: Path, store: BlobStore) -> None:
    first = send(code_of(snapshot_of(package), []), store)
    store.tree(first)
    (package / "lower.py").write_text("def lower():\n    return 2\n")
    code = code_of(snapshot_of(package), [])
    second = sha_of(code.manifest)
    assert second != first
    assert store.lacking(second) == [second]
    store.put({second: code.manifest})
    assert store.lacking(second) == [sha_of((package / "lower.py").read_bytes())]


def test_bytecode_goes_along_for_files_that_are_the_same(package: Path, store: BlobStore) -> None:
    first, _ = store.tree(send(code_of(snapshot_of(package), []), store))
    for name in ("__init__.py", "lower.py"):
        py_compile.compile(f"{first}{package}/{name}")
    (package / "lower.py").write_text("def lower():\n    return 2\n")
    second, _ = store.tree(send(code_of(snapshot_of(package), []), store))
    cached = [path.name.partition(".")[0] for path in Path(f"{second}{package}/__pycache__").iterdir()]
    assert cached == ["__init__"]


def test_a_blob_whose_bytes_are_others_is_not_kept(store: BlobStore) -> None:
    store.put({sha_of(b"right"): b"wrong"})
    assert store.lacking("", [sha_of(b"right")]) == [sha_of(b"right")]


def test_a_tree_that_was_left_half_made_is_made_again(
    package: Path, tmp_path: Path, store: BlobStore
) -> None:
    digest = send(code_of(snapshot_of(package), []), store)
    half = tmp_path / "store" / "trees" / digest / "rest"
    half.mkdir(parents=True)
    tree, _ = store.tree(digest)
    assert not half.exists()
    assert Path(f"{tree}{package}/lower.py").exists()


def test_no_file_leaves_the_tree(store: BlobStore) -> None:
    code = Code({"/a/../../../../evil.py": sha_of(b"x")})
    store.put({sha_of(b"x"): b"x", sha_of(code.manifest): code.manifest})
    with pytest.raises(ValueError, match="no absolute path"):
        store.tree(sha_of(code.manifest))


def test_a_build_that_fails_is_the_reason(package: Path, store: BlobStore) -> None:
    build = "echo fine; echo 'lower.cpp:3: error: no such thing' >&2; exit 4"
    code = code_of(snapshot_of(package), [], build=build, build_folder=str(package))
    _, why = store.tree(send(code, store))
    assert why == "the build failed with status 4: lower.cpp:3: error: no such thing"


def test_what_a_build_makes_does_not_travel(package: Path) -> None:
    (package / "native.so").write_bytes(b"ELF")
    assert f"{package}/native.so" in code_of(snapshot_of(package), []).files
    assert f"{package}/native.so" not in code_of(snapshot_of(package), [], build="make").files


def test_installed_code_stays_and_must_be_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: BlobStore
) -> None:
    """A worker with the same version and another file judges nothing: its verdict would not be on this code."""
    inside = tmp_path / "lib" / "site-packages"
    (inside / "acmepack").mkdir(parents=True)
    (inside / "acmepack" / "__init__.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(inside))
    code = code_of(snapshot_of(inside), [str(inside)])
    assert not code.files
    assert not code.paths
    assert store.differing(code) == ""
    (inside / "acmepack" / "__init__.py").write_text("VALUE = 222\n")
    assert "acmepack" in store.differing(code)


def test_an_edit_while_a_file_is_sent_is_noticed(package: Path) -> None:
    outbox = Outbox()
    outbox.take(snapshot_of(package), [str(package)])
    sha = sha_of((package / "lower.py").read_bytes())
    assert outbox.read([sha]) == {sha: (package / "lower.py").read_bytes()}
    (package / "lower.py").write_text("def lower():\n    return 3\n")
    with pytest.raises(Edited):
        outbox.read([sha])


def test_after_a_save_the_manifest_and_the_saved_file_are_the_latest_code(package: Path) -> None:
    outbox = Outbox()
    outbox.take(snapshot_of(package), [str(package)])
    (package / "lower.py").write_text("def lower():\n    return 3\n")
    code = outbox.take(snapshot_of(package), [str(package)])
    assert list(outbox.latest.values()) == [code.manifest, b"def lower():\n    return 3\n"]


def test_a_script_written_again_is_another_blob(tmp_path: Path) -> None:
    script, outbox = tmp_path / "a.py", Outbox()
    script.write_text("x = 1")
    os.utime(script, (1, 1))
    before = outbox.script(script)
    assert before == (sha_of(b"x = 1"), "")
    script.write_text("x = 2")
    assert outbox.script(script) == (sha_of(b"x = 2"), "")


def test_paths_in_a_script_point_into_the_tree() -> None:
    text = "load('/home/u/train.py'); path = \"/home/u/acme\"; other = '/home/user'"
    found = moved(text, ["/home/u", "/home/u/acme", "/home/u/train.py"], Path("/home/u/cache"))
    assert found == (
        "load('/home/u/cache/home/u/train.py'); path = \"/home/u/cache/home/u/acme\"; other = '/home/user'"
    )


def test_files_of_a_run_are_told_as_the_sender_knows_them() -> None:
    files = ["/c/trees/d/home/u/acme/a.py", "/v/lib/python3/site-packages/torch/fx/node.py", "/usr/lib/os.py"]
    assert as_sent(files, Path("/c/trees/d")) == ["/home/u/acme/a.py", "torch/fx/node.py"]


def test_a_worker_keeps_the_trees_that_were_used_last(package: Path, store: BlobStore) -> None:
    from minidbg.extras.cluster import code as room

    for number in range(room.MOST_TREES + 3):
        (package / "lower.py").write_text(f"def lower():\n    return {number}\n")
        last = send(code_of(snapshot_of(package), []), store)
        store.tree(last)
    assert len(store.complete()) == room.MOST_TREES
    assert store.is_complete(last)


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
