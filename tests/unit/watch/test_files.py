"""What counts as a change of the watched files, and when it is looked for."""

from __future__ import annotations

import os
import queue
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minidbg.watch.files import FileEvents, Snapshot, are_stale, scan


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.py").write_text("a = 1\n")
    (folder / "inner" / "b.py").write_text("b = 1\n")
    return folder


@pytest.fixture
def repository(tree: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    return tree


def look(folder: Path, before: Snapshot | None = None, ignore: tuple[str, ...] = ()) -> Snapshot:
    return scan([str(folder)], before or Snapshot(), ignore)


def names(folder: Path, paths: object) -> list[str]:
    return sorted(os.path.relpath(path, folder) for path in paths)  # type: ignore[attr-defined]


def test_added_removed_and_edited_files_are_changes_and_touched_ones_are_not(tree: Path) -> None:
    (tree / "same.py").write_text("")
    before = look(tree)
    (tree / "a.py").write_text("a = 2\n")
    (tree / "inner").rename(tree / "moved")
    (tree / "c.py").write_text("")
    os.utime(tree / "same.py", ns=(1, 1))
    after = look(tree, before)
    assert names(tree, after.changes_since(before)) == ["a.py", "c.py", "inner/b.py", "moved/b.py"]
    assert before.digest([str(tree / "same.py")]) == after.digest([str(tree / "same.py")])
    assert before.digest([str(tree / "a.py")]) != after.digest([str(tree / "a.py")])


def test_two_edits_of_the_same_size_within_one_time_stamp_are_seen(tree: Path) -> None:
    path = tree / "a.py"
    now = path.stat().st_mtime_ns
    before = look(tree)
    path.write_text("a = 2\n")
    os.utime(path, ns=(now, now))
    assert names(tree, look(tree, before).changes_since(before)) == ["a.py"]


@pytest.mark.parametrize("in_git", [True, False])
@pytest.mark.parametrize(
    "name",
    ["__pycache__/a.cpython-311.pyc", ".git/odd", "a.py~", ".a.py.swp", "4913", ".#a.py", "x.tmp", ".venv/lib/a.py",
     "thing.egg-info/PKG-INFO", ".minidbg/history.sqlite", "node_modules/x.js", "a.py___jb_tmp___", "my.gen", "gen/x.py"],
)  # fmt: skip
def test_junk_and_what_a_setting_names_is_never_watched(tree: Path, name: str, in_git: bool) -> None:
    if in_git:
        subprocess.run(["git", "init", "-q", str(tree)], check=True)
    before = look(tree)
    path = tree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("junk")
    assert look(tree, before, ("*.gen", "/gen/")).files == before.files


def test_gits_word_on_what_is_ignored_is_taken(repository: Path) -> None:
    (repository / ".gitignore").write_text("*.log\n/generated/\nenv/\n")
    (repository / "inner" / ".gitignore").write_text("!kept.log\n")
    nested = repository / "nested"
    for name in (
        "x.log",
        "inner/kept.log",
        "inner/y.log",
        "generated/g.py",
        "env/lib/backend/p.py",
        "nested/n.py",
    ):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text("")
    subprocess.run(["git", "init", "-q", str(nested)], check=True)
    (nested / "loop").symlink_to(repository)
    assert names(repository, look(repository).files) == [
        ".gitignore", "a.py", "inner/.gitignore", "inner/b.py", "inner/kept.log", "nested/n.py",
    ]  # fmt: skip
    package = repository / "env" / "lib" / "backend"
    assert names(package, look(package).files) == ["p.py"], (
        "it is watched although it lies in an ignored folder"
    )


def test_links_do_not_trap_a_look_and_where_nothing_has_changed_there_is_no_new_snapshot(tree: Path) -> None:
    (tree / "loop").symlink_to(tree)
    for path in (tree / "a.py", tree / "inner" / "b.py"):
        os.utime(path, ns=(1, 1))
    assert names(tree, look(tree).files) == ["a.py", "inner/b.py"]
    assert names(tree, look(tree / "a.py").files) == ["a.py"]
    library = Path(os.__file__)
    before = look(library)
    assert look(library, before) is before


def test_what_only_one_of_two_snapshots_watches_has_not_changed(repository: Path, tmp_path: Path) -> None:
    """A library that git ignores counts from the run on that has loaded it; then it may come and go."""
    (repository / ".gitignore").write_text("*.so\n")
    library, other = repository / "ext.so", tmp_path / "other.py"
    library.write_bytes(b"1")
    other.write_text("")
    roots = [str(repository)]
    first = scan(roots, Snapshot())
    loaded = first.with_loaded([str(library)])
    assert str(library) in loaded.files
    assert loaded.changes_since(first) == ()
    library.write_bytes(b"2")
    again = scan(roots, loaded)
    assert names(repository, again.changes_since(loaded)) == ["ext.so"]
    assert names(repository, again.changes_since(first)) == ["ext.so"], "also since before it was loaded"
    assert are_stale([str(library)], first, loaded)
    library.unlink()
    assert names(repository, scan(roots, again).changes_since(again)) == ["ext.so"]
    more = scan([*roots, str(other)], again)
    assert names(repository, more.changes_since(again)) == ["ext.so"], "and not the file of the new root"


def test_a_run_is_stale_when_what_it_has_loaded_was_edited_and_not_when_it_was_touched(tree: Path) -> None:
    then = look(tree)
    a, b = str(tree / "a.py"), str(tree / "inner" / "b.py")
    os.utime(a, ns=(1, 1))
    (tree / "inner" / "b.py").write_text("b = 2\n")
    assert [are_stale(paths, then, then) for paths in ([a], [b], [a, b], [], [str(tree / "new.py")])] == [
        False, True, True, False, False,
    ]  # fmt: skip
    Path(a).unlink()
    assert are_stale([a], then, then)


# Events


@pytest.fixture
def heard() -> queue.SimpleQueue[None]:
    return queue.SimpleQueue()


@pytest.fixture
def source(heard: queue.SimpleQueue[None]) -> Iterator[FileEvents]:
    watching = FileEvents(lambda: heard.put(None), 0.05)
    yield watching
    watching.stop()


def is_quiet(heard: queue.SimpleQueue[None], seconds: float = 0.5) -> bool:
    try:
        heard.get(timeout=seconds)
    except queue.Empty:
        return True
    return False


def replaced(path: Path, draft: Path) -> None:
    draft.write_text("2")
    os.replace(draft, path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "a write": lambda folder: (folder / "a.py").write_text("1"),
    "an atomic save": lambda folder: replaced(folder / "a.py", folder / "a.py.new"),
    "a move from elsewhere": lambda folder: replaced(folder / "inner" / "b.py", folder.parent / "b.py"),
    "a removal": lambda folder: (folder / "a.py").unlink(),
    "a write below a folder that was replaced": lambda folder: (folder / "inner" / "c.py").write_text("1"),
}


def test_what_is_written_is_told_of_once_it_is_quiet_and_what_is_read_is_not(
    tree: Path, source: FileEvents, heard: queue.SimpleQueue[None]
) -> None:
    late = tree.with_name("late")
    for name, change in CHANGES.items():
        if "replaced" in name:
            os.rename(tree, tree.with_name("old"))
            (tree / "inner").mkdir(parents=True)
        source.watch([str(tree), str(late), str(tree / "inner")], [])
        while not is_quiet(heard, 0.2):
            pass
        change(tree)
        assert not is_quiet(heard, 10.0), name
    while not is_quiet(heard, 0.2):
        pass
    (tree / "inner" / "c.py").read_text()
    (tree / "__pycache__").mkdir()
    assert is_quiet(heard)
    late.mkdir()
    source.watch([str(late / "single.py")], [])
    (late / "single.py").write_text("1")
    assert not is_quiet(heard, 10.0), "a file is watched through its folder"
