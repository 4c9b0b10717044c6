"""Repros as they lie in a folder: which files are some, what is read of them, and what a person may write into a header."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minidbg.commands.output import find_repro
from minidbg.core.errors import MinidbgError
from minidbg.core.outcome import Verdict
from minidbg.watch.repros import (
    HOLDER,
    Lock,
    Repro,
    find_repros,
    hidden_folder,
    imported_in,
    read_repro,
    read_repros,
    shown_by,
    unreduced,
    watcher_of,
)
from minidbg.workers import leftovers

SCRIPT = """# /// script
# dependencies = []
#
# [tool.minidbg]
# schema = 1
# backend.name = "toy"
# nodes = 3
# [tool.minidbg.signature]
# kind = "compile"
# types = ["ValueError"]
# frames = ["acme.ops:fail", "acme.ops:lower", "acme:run"]
# ///
def backend():
    import toy
    return toy.backend
"""


def script(folder: Path, name: str = "a.py", text: str = SCRIPT) -> Path:
    (folder / name).write_text(text)
    return folder / name


def read(path: Path) -> Repro:
    found = read_repro(path, path.name)
    assert found is not None
    assert found.damage == ""
    return found


def test_of_a_folder_the_scripts_at_its_top_are_repros_and_a_file_is_one_whatever_its_name(
    tmp_path: Path,
) -> None:
    (inner := tmp_path / "inner").mkdir()
    b, a, deep, odd = (script(tmp_path, name) for name in ("b.py", "a.py", "inner/deep.py", "odd.txt"))
    for name in ("conftest.py", "__init__.py", ".c.py"):
        script(tmp_path, name)
    assert find_repros([tmp_path]) == [a, b], "nothing of pytest or an editor"
    assert find_repros([odd, inner, b, tmp_path]) == [odd, deep, b, a], "each once"
    assert find_repros([tmp_path / "gone.py"]) == []


def test_what_a_header_expects_makes_no_other_repro(tmp_path: Path) -> None:
    path = script(tmp_path)
    before = read(path)
    path.write_text(path.read_text().replace("[tool.minidbg]\n", '[tool.minidbg]\n# expect = "gone"\n'))
    after = read(path)
    assert (after.digest, after.contents != before.contents) == (before.digest, True)
    assert (before.expect, after.expect) == (Verdict.REPRODUCES, Verdict.GONE)


def test_what_a_script_needs_is_read_without_running_it(tmp_path: Path) -> None:
    found = read(script(tmp_path, text=SCRIPT + "raise SystemExit\n"))
    assert (found.nodes, found.backend_modules) == (3, ("toy",))
    assert found.failing_modules == ("acme.ops", "acme")


def test_what_changed_is_read_again_and_tensors_beside_a_script_are_part_of_it(tmp_path: Path) -> None:
    path, other = script(tmp_path), script(tmp_path, "b.py")
    before = read_repros([tmp_path], tmp_path)
    other.write_text(SCRIPT.replace("nodes = 3", "nodes = 4"))
    after = read_repros([tmp_path], tmp_path, before)
    assert after["a.py"] is before["a.py"]
    assert after["b.py"].nodes == 4
    digests = {after["a.py"].digest}
    for content in (b"1", b"2"):
        path.with_suffix(".safetensors").write_bytes(content)
        after = read_repros([tmp_path], tmp_path, after)
        digests.add(after["a.py"].digest)
    assert len(digests) == 3
    path.unlink()
    assert list(read_repros([tmp_path], tmp_path, after)) == ["b.py"]


def test_the_modules_of_a_backend_are_those_that_its_function_imports() -> None:
    sources = {
        "import a.b, c": ("a", "c"), "from a.b import c": ("a",), "from . import a": (), "from .a import b": (),
        "import torch, os, a": ("a",), "def f():\n    import a": ("a",),
    }  # fmt: skip
    assert {source: imported_in(source) for source in sources} == sources


def test_a_repro_is_found_by_its_path_or_enough_of_its_name(tmp_path: Path) -> None:
    (captures := tmp_path / ".minidbg" / "captures").mkdir(parents=True)
    capture = script(captures, "captured.py")
    relu, add = script(tmp_path, "3f_relu.py"), script(tmp_path, "3f_add.py")
    for text, found in (
        (relu, relu),
        (Path("3f_relu.py"), relu),
        (Path("3f_relu"), relu),
        (Path("ad"), add),
        (Path("captured.py"), capture),
        (Path("aptur"), capture),
    ):
        assert find_repro(text, tmp_path) == found


def test_the_hidden_folder_is_kept_out_of_git_unless_somebody_decided_otherwise(tmp_path: Path) -> None:
    ignore = hidden_folder(tmp_path) / ".gitignore"
    assert ignore.read_text() == "*\n"
    ignore.write_text("mine\n")
    hidden_folder(tmp_path)
    assert ignore.read_text() == "mine\n"


def test_a_folder_is_watched_once_and_a_killed_daemon_watches_nothing(tmp_path: Path) -> None:
    program = "import os, sys; from pathlib import Path; from minidbg.watch.repros import Lock; Lock(Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False, timeout=60)
    assert (tmp_path / ".minidbg" / HOLDER).exists()
    assert watcher_of(tmp_path) == ""
    lock = Lock(tmp_path)
    with pytest.raises(MinidbgError, match=rf"already watched by process {os.getpid()} on .* since"):
        Lock(tmp_path)
    assert f"process {os.getpid()} " in watcher_of(tmp_path)
    lock.release()
    assert watcher_of(tmp_path) == ""


def test_a_folder_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / ".minidbg").write_text("no folder")
    with pytest.raises(MinidbgError, match=r"cannot be written: .*; copy the repros into a folder of yours"):
        Lock(tmp_path)


def test_who_holds_a_folder_is_what_its_file_says_while_that_process_lives(tmp_path: Path) -> None:
    here = {"pid": os.getpid(), "started_ms": leftovers.started_ms(os.getpid()), "host": platform.node()}
    elsewhere = {**here, "host": "another", "pid": 2**22 + 5}
    texts = {
        "this process": (json.dumps(here), os.getpid()),
        "another machine, of whose processes nothing is known": (json.dumps(elsewhere), 2**22 + 5),
        "a process that is gone": (json.dumps({**here, "pid": 2**22 + 5}), None),
        "one that has begun since": (json.dumps({**here, "started_ms": 0}), None),
        **{f"no word of a holder: {text}": (text, None) for text in ("", "[]", '{"pid": 3}', "{")},
    }
    file = hidden_folder(tmp_path) / HOLDER
    found = {}
    for what, (text, _) in texts.items():
        file.write_text(text)
        found[what] = watcher_of(tmp_path)
    said = {what: f"watched by process {pid} on " if pid else "" for what, (_, pid) in texts.items()}
    assert {what: text[: len(said[what])] or text for what, text in found.items()} == said


def test_captures_wait_the_oldest_first_until_they_are_reduced_or_a_repro_shows_their_failure(
    tmp_path: Path,
) -> None:
    (captures := tmp_path / ".minidbg" / "captures").mkdir(parents=True)

    def waiting() -> list[str]:
        return [one.path.stem for one in unreduced(tmp_path)]

    for at, (name, error) in enumerate((("old", "A"), ("new", "B")), 1):
        os.utime(script(captures, f"{name}.py", SCRIPT.replace("ValueError", error)), (at, at))
    (captures / "damaged.py").write_text("# ///")
    assert waiting() == ["old", "new"]
    script(tmp_path, "b.py", SCRIPT.replace("ValueError", "B"))
    (tmp_path / "cut_off.py").write_text("")
    repros = read_repros([tmp_path], tmp_path).values()
    assert [known and known.name for known in (shown_by(one, repros) for one in unreduced(tmp_path))] == [
        None,
        "b.py",
    ]
    (captures / "old.reduced").touch()
    assert waiting() == ["new"]
    os.utime(captures / "old.py", (time.time() + 10,) * 2)
    assert waiting() == ["new", "old"]
