"""What counts as a change of the watched files, and what does not."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from minidbg.watch.snapshot import Ignore, Root, Snapshot, scan, stamp_in, update

LATER = 10**18 * 4


def look(
    folder: Path,
    before: Snapshot | None = None,
    *,
    hinted: tuple[Path, ...] = (),
    now_ns: int = LATER,
    **root: object,
) -> Snapshot:
    hints = [str(path) for path in hinted]
    return scan([Root(str(folder), **root)], Ignore(), before or Snapshot(), hints, now_ns=now_ns)


def names(folder: Path, paths: object) -> list[str]:
    return sorted(os.path.relpath(path, folder) for path in paths)  # type: ignore[attr-defined]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.py").write_text("a = 1\n")
    (folder / "inner" / "b.py").write_text("b = 1\n")
    return folder


def test_added_removed_and_edited_files_are_changes(tree: Path) -> None:
    before = look(tree)
    (tree / "a.py").write_text("a = 2\n")
    (tree / "inner" / "b.py").unlink()
    (tree / "c.py").write_text("")
    assert names(tree, look(tree, before).changes_since(before)) == ["a.py", "c.py", "inner/b.py"]


def test_a_touched_file_and_one_written_as_it_was_are_no_changes(tree: Path) -> None:
    before = look(tree)
    os.utime(tree / "a.py", ns=(1, 1))
    (tree / "inner" / "b.py").write_text("b = 1\n")
    after = look(tree, before)
    assert after.changes_since(before) == ()
    assert after.digest() == before.digest()


def test_two_edits_of_the_same_size_within_one_time_stamp_are_seen(tree: Path) -> None:
    path = tree / "a.py"
    now = path.stat().st_mtime_ns
    before = look(tree, now_ns=now + 1)
    path.write_text("a = 2\n")
    os.utime(path, ns=(now, now))
    known = next(iter(before.files.values()))
    assert known.racy, "it was read within two seconds of its time stamp"
    assert names(tree, look(tree, before).changes_since(before)) == ["a.py"]


def test_an_unchanged_old_file_is_not_read_again(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = look(tree)
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"{path} was read"))
    assert look(tree, before).digest() == before.digest()


def test_a_hinted_file_is_read_whatever_its_time_stamp_says(tree: Path) -> None:
    before = look(tree)
    known = before.files[str(tree / "a.py")]
    (tree / "a.py").write_text("a = 3\n")
    now = stamp_in((tree / "a.py").stat())
    deceived = Snapshot({**before.files, str(tree / "a.py"): type(known)(now, known.digest)})
    assert look(tree, deceived).changes_since(deceived) == ()
    assert names(tree, look(tree, deceived, hinted=(tree / "a.py",)).changes_since(deceived)) == ["a.py"]


def test_updating_by_hints_gives_what_a_whole_scan_gives(tree: Path) -> None:
    before = look(tree)
    (tree / "a.py").write_text("a = 2\n")
    (tree / "new" / "deep").mkdir(parents=True)
    (tree / "new" / "deep" / "n.py").write_text("n = 1\n")
    (tree / "inner").rename(tree / "moved")
    hints = [str(tree / name) for name in ("a.py", "new", "inner", "moved", "never-there.py")]
    after = update([Root(str(tree))], Ignore(), before, hints, now_ns=LATER)
    assert after.files == look(tree).files
    assert names(tree, after.changes_since(before)) == ["a.py", "inner/b.py", "moved/b.py", "new/deep/n.py"]


def test_a_path_outside_every_root_is_no_change(tree: Path, tmp_path: Path) -> None:
    before = look(tree)
    (tmp_path / "elsewhere.py").write_text("")
    after = update([Root(str(tree))], Ignore(), before, [str(tmp_path / "elsewhere.py")], now_ns=LATER)
    assert after.files == before.files


@pytest.mark.parametrize(
    "name",
    ["__pycache__/a.cpython-311.pyc", ".git/index", "a.py~", ".a.py.swp", "4913", ".#a.py", "x.tmp", ".venv/lib/a.py",
     "thing.egg-info/PKG-INFO", ".minidbg/history.sqlite", "node_modules/x.js", "a.py___jb_tmp___"],
)  # fmt: skip
def test_junk_is_never_watched(tree: Path, name: str) -> None:
    before = look(tree)
    path = tree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("junk")
    assert look(tree, before).files == before.files
    assert update([Root(str(tree))], Ignore(), before, [str(path)], now_ns=LATER).files == before.files


@pytest.fixture
def repository(tree: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    return tree


def test_gitignore_files_are_obeyed_from_the_inside_out(repository: Path) -> None:
    (repository / ".gitignore").write_text("*.log\n/generated/\n")
    (repository / "inner" / ".gitignore").write_text("!kept.log\n")
    (repository / "generated").mkdir()
    for name in ("x.log", "inner/kept.log", "inner/y.log", "generated/g.py"):
        (repository / name).write_text("")
    assert names(repository, look(repository).files) == [
        ".gitignore", "a.py", "inner/.gitignore", "inner/b.py", "inner/kept.log",
    ]  # fmt: skip


def test_a_watched_package_inside_an_ignored_folder_is_still_watched(repository: Path) -> None:
    (repository / ".gitignore").write_text("env/\n")
    package = repository / "env" / "lib" / "backend"
    package.mkdir(parents=True)
    (package / "p.py").write_text("")
    assert names(package, look(package).files) == ["p.py"]


@pytest.mark.timeout(10)
def test_a_repository_may_be_the_whole_disk(tree: Path) -> None:
    ignore = Ignore()
    ignore.repository = lambda folder: "/"
    assert not ignore.covers(str(tree / "a.py"), str(tree), folder=False)


def test_a_loaded_library_counts_even_where_it_is_ignored(repository: Path) -> None:
    (repository / ".gitignore").write_text("*.so\n")
    library = repository / "ext.so"
    library.write_bytes(b"1")
    roots = [Root(str(repository))]
    before = scan(roots, Ignore(), Snapshot(), now_ns=LATER, always=[str(library)])
    library.write_bytes(b"2")
    after = update(roots, Ignore(), before, [str(library)], now_ns=LATER, always=[str(library)])
    assert names(repository, after.changes_since(before)) == ["ext.so"]


def test_a_shallow_root_with_suffixes_takes_only_its_own_scripts(tree: Path) -> None:
    (tree / "notes.txt").write_text("")
    (tree / "inner" / "c.py").write_text("")
    before = look(tree, deep=False, suffixes=(".py",))
    assert names(tree, before.files) == ["a.py"]
    roots = [Root(str(tree), suffixes=(".py",), deep=False)]
    hints = [str(tree / "notes.txt"), str(tree / "inner" / "c.py"), str(tree / "inner")]
    assert update(roots, Ignore(), before, hints, now_ns=LATER).files == before.files


def test_links_in_circles_do_not_trap_the_scan(tree: Path) -> None:
    (tree / "loop").symlink_to(tree)
    assert names(tree, look(tree).files) == ["a.py", "inner/b.py"]


def test_the_digest_of_some_paths_changes_with_them_alone(tree: Path) -> None:
    before = look(tree)
    (tree / "a.py").write_text("a = 2\n")
    after = look(tree, before)
    a, b = str(tree / "a.py"), str(tree / "inner" / "b.py")
    assert before.digest([a]) != after.digest([a])
    assert before.digest([b]) == after.digest([b])
