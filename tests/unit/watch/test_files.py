"""What counts as a change of the watched files, and when it is looked for."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from minidbg.watch.files import are_stale, changes, digest_of_all, scan
from minidbg.watch.watched import FileEvents


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.py").write_text("a = 1\n")
    (folder / "inner" / "b.py").write_text("b = 1\n")
    return folder


def look(folder: Path, ignore: tuple[str, ...] = ()) -> dict[str, str]:
    return scan([str(folder)], ignore)


def names(folder: Path, paths: Iterable[str]) -> list[str]:
    return sorted(os.path.relpath(path, folder) for path in paths)


def test_added_removed_and_edited_files_are_changes_and_touched_ones_are_not(tree: Path) -> None:
    (tree / "same.py").write_text("")
    before = look(tree)
    (tree / "a.py").write_text("a = 2\n")
    (tree / "inner").rename(tree / "moved")
    (tree / "c.py").write_text("")
    os.utime(tree / "same.py", ns=(1, 1))
    after = look(tree)
    assert names(tree, changes(before, after)) == ["a.py", "c.py", "inner/b.py", "moved/b.py"]
    same, edited = (
        [digest_of_all(one, [str(tree / name)]) for one in (before, after)] for name in ("same.py", "a.py")
    )
    assert len(set(same)) == 1
    assert len(set(edited)) == 2
    stale = {
        name: are_stale([str(tree / name)], before) for name in ("same.py", "a.py", "inner/b.py", "c.py")
    }
    assert stale == {"same.py": False, "a.py": True, "inner/b.py": True, "c.py": False}, (
        "c.py was not there to be loaded"
    )


def test_two_edits_of_the_same_size_within_one_time_stamp_are_seen(tree: Path) -> None:
    path = tree / "a.py"
    now = path.stat().st_mtime_ns
    before = look(tree)
    path.write_text("a = 2\n")
    os.utime(path, ns=(now, now))
    assert names(tree, changes(before, look(tree))) == ["a.py"]


JUNK = [
    "__pycache__/a.cpython-311.pyc", ".git/odd", "a.py~", ".a.py.swp", "4913", ".#a.py", "x.tmp", ".venv/lib/a.py",
    "thing.egg-info/PKG-INFO", ".minidbg/history.sqlite", "node_modules/x.js", "a.py___jb_tmp___", "my.gen", "gen/x.py",
]  # fmt: skip


def test_junk_and_what_a_setting_names_is_never_watched_and_links_do_not_trap_a_look(tree: Path) -> None:
    for name in JUNK:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("junk")
    (tree / "loop").symlink_to(tree)
    for setting in ("outside git", "in git"):
        assert names(tree, look(tree, ("*.gen", "/gen/"))) == ["a.py", "inner/b.py"], setting
        shutil.rmtree(tree / ".git")
        subprocess.run(["git", "init", "-q", str(tree)], check=True)
    assert names(tree, look(tree / "a.py")) == ["a.py"], "a root may be a file"


def test_gits_word_on_what_is_ignored_is_taken(tree: Path) -> None:
    nested = tree / "nested"
    for name in (
        "x.log",
        "inner/kept.log",
        "inner/y.log",
        "generated/g.py",
        "env/lib/backend/p.py",
        "nested/n.py",
    ):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("")
    for folder in (tree, nested):
        subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (tree / ".gitignore").write_text("*.log\n/generated/\nenv/\n")
    (tree / "inner" / ".gitignore").write_text("!kept.log\n")
    (nested / "loop").symlink_to(tree)
    assert names(tree, look(tree)) == [
        ".gitignore", "a.py", "inner/.gitignore", "inner/b.py", "inner/kept.log", "nested/n.py",
    ]  # fmt: skip
    package = tree / "env" / "lib" / "backend"
    assert names(package, look(package)) == ["p.py"], "it is watched although it lies in an ignored folder"


# Events


@pytest.fixture
def heard() -> queue.SimpleQueue[None]:
    return queue.SimpleQueue()


@pytest.fixture
def source(heard: queue.SimpleQueue[None]) -> Iterator[FileEvents]:
    watching = FileEvents(lambda: heard.put(None))
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
