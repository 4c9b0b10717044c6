"""Repros as they lie in a folder: which files are some, what is read of them, and what a person may write into a header."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

import psutil
import pytest

from minidbg.watch import repros
from minidbg.watch.repros import (
    AlreadyWatched,
    Repro,
    find_repro,
    find_repros,
    hidden_folder,
    home_of,
    imported_in,
    is_script,
    living_holder,
    module_names,
    name_of,
    read_repro,
    read_repros,
    replace_text,
    write_in_header,
)
from minidbg.words.errors import MinidbgError
from minidbg.words.outcome import Verdict

SCRIPT = """# /// script
# dependencies = []
#
# [tool.minidbg]
# schema = 1
# kind = "compile"
# backend = "toy"
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


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("a.py", True), ("a.txt", False), (".a.py", False), ("conftest.py", False), ("__init__.py", False)],
)
def test_what_belongs_to_pytest_or_an_editor_is_no_repro(name: str, is_one: bool) -> None:
    assert is_script(name) is is_one


def test_of_a_folder_the_scripts_at_its_top_are_repros_and_a_file_is_one_whatever_its_name(
    tmp_path: Path,
) -> None:
    (inner := tmp_path / "inner").mkdir()
    b, a, deep, odd = (script(tmp_path, name) for name in ("b.py", "a.py", "inner/deep.py", "odd.txt"))
    assert find_repros([tmp_path]) == [a, b]
    assert find_repros([odd, inner, b, tmp_path]) == [odd, deep, b, a], "each once"
    assert find_repros([tmp_path / "gone.py"]) == []


def test_a_repro_is_called_by_its_path_in_the_folder_that_is_watched(tmp_path: Path) -> None:
    assert name_of(tmp_path / "inner" / "a.py", tmp_path) == os.path.join("inner", "a.py")
    assert name_of(Path("/elsewhere/a.py"), tmp_path) == "/elsewhere/a.py"


def test_the_history_lies_in_the_first_folder(tmp_path: Path) -> None:
    a = script(tmp_path)
    assert home_of([a]) == home_of([tmp_path, a]) == tmp_path


def test_what_a_header_expects_makes_no_other_repro(tmp_path: Path) -> None:
    path = script(tmp_path)
    before = read(path)
    write_in_header(path, {"expect": "gone"})
    after = read(path)
    assert (after.digest, after.stamp != before.stamp) == (before.digest, True)
    assert (before.expect, after.expect) == (Verdict.REPRODUCES, Verdict.GONE)
    write_in_header(path, {"expect": None})
    assert path.read_text() == SCRIPT


def test_a_text_in_a_header_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    path = script(tmp_path)
    for expect in ("gone", "reproduces"):
        write_in_header(path, {"expect": expect})
        assert path.read_text().count("# expect = ") == 1
        assert read(path).expect == expect


def test_a_header_in_which_nothing_can_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    text = SCRIPT.replace("# [tool.minidbg]\n", "# [tool . minidbg]\n")
    path = script(tmp_path, text=text)
    with pytest.raises(MinidbgError, match="edit it by hand"):
        write_in_header(path, {"expect": "gone"})
    assert path.read_text() == text


def test_what_a_script_needs_is_read_without_running_it(tmp_path: Path) -> None:
    found = read(script(tmp_path, text=SCRIPT + "raise SystemExit\n"))
    assert (found.nodes, found.modules) == (3, ("toy",))
    assert found.failing_modules == ("acme.ops", "acme")


def test_tensors_beside_a_script_are_part_of_it(tmp_path: Path) -> None:
    path = script(tmp_path)
    digests = {read(path).digest}
    for content in (b"1", b"2"):
        path.with_suffix(".safetensors").write_bytes(content)
        digests.add(read(path).digest)
    assert len(digests) == 3


def test_a_repro_whose_files_look_the_same_is_not_read_again_and_one_that_changed_is(tmp_path: Path) -> None:
    path, other = script(tmp_path), script(tmp_path, "b.py")
    before = read_repros([tmp_path], tmp_path)
    other.write_text(SCRIPT.replace("nodes = 3", "nodes = 4"))
    after = read_repros([tmp_path], tmp_path, before)
    assert after["a.py"] is before["a.py"]
    assert after["b.py"].nodes == 4
    path.unlink()
    assert list(read_repros([tmp_path], tmp_path, after)) == ["b.py"]


def test_a_repro_that_cannot_be_read_is_damaged_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    path = script(tmp_path)
    monkeypatch.setattr(repros, "digest_of_files", refuse)
    found = read_repro(path, "a.py")
    assert found is not None
    assert found.damage == "cannot be read: Permission denied"


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        ("import a.b, c", ("a", "c")),
        ("from a.b import c", ("a",)),
        ("from . import a", ()),
        ("from .a import b", ()),
        ("import torch, a", ("a",)),
        ("def f():\n    import a", ("a",)),
    ],
)
def test_the_modules_of_a_backend_are_those_that_its_function_imports(
    source: str, modules: tuple[str, ...]
) -> None:
    assert imported_in(source) == modules


def test_a_file_is_all_that_python_can_import_it_as() -> None:
    assert module_names("/a/b/c.py") == ["a.b.c", "b.c", "c"]
    assert module_names("/a/b/__init__.py") == ["a.b", "b"]
    assert module_names("/a/b/c.so") == []


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


def test_a_name_that_means_no_repro_or_several_says_which_there_are(tmp_path: Path) -> None:
    with pytest.raises(MinidbgError, match="no repro's name contains 'x'"):
        find_repro(Path("x"), tmp_path)
    for number in range(6):
        script(tmp_path, f"{number}_relu.py")
    with pytest.raises(MinidbgError, match=r"0_relu, .*, 4_relu, \.\.\.$"):
        find_repro(Path("x"), tmp_path)
    (tmp_path / "5_relu.py").unlink()
    with pytest.raises(MinidbgError, match=r"several repros: .*, 4_relu; "):
        find_repro(Path("relu"), tmp_path)


def test_a_file_is_replaced_in_one_step_and_keeps_its_mode(tmp_path: Path) -> None:
    path = script(tmp_path)
    path.chmod(0o640)
    replace_text(path, "new")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o640)
    replace_text(tmp_path / "another.py", "new")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.py", "another.py"]


def test_the_hidden_folder_is_kept_out_of_git_unless_somebody_decided_otherwise(tmp_path: Path) -> None:
    ignore = hidden_folder(tmp_path) / ".gitignore"
    assert ignore.read_text() == "*\n"
    ignore.write_text("mine\n")
    hidden_folder(tmp_path)
    assert ignore.read_text() == "mine\n"


def held_by(folder: Path, **changes: object) -> dict[str, object]:
    own = psutil.Process()
    about = {"pid": own.pid, "created": own.create_time(), "started": 0.0, "host": platform.node(), **changes}
    (hidden_folder(folder) / repros.HOLDER).write_text(json.dumps(about))
    return about


def test_a_holder_that_is_stopped_is_told_from_one_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = held_by(tmp_path)
    assert living_holder(tmp_path) == {**about, "stopped": False}
    monkeypatch.setattr(psutil.Process, "status", lambda _: psutil.STATUS_STOPPED)
    assert living_holder(tmp_path)["stopped"] is True


def test_of_a_holder_on_another_machine_nothing_is_known_but_what_it_said(tmp_path: Path) -> None:
    about = held_by(tmp_path, host="another", pid=2**22 + 5)
    assert living_holder(tmp_path) == about


@pytest.mark.parametrize("changes", [{"pid": 2**22 + 5}, {"created": 0.0}])
def test_a_process_that_is_gone_holds_nothing(tmp_path: Path, changes: dict[str, object]) -> None:
    held_by(tmp_path, **changes)
    assert living_holder(tmp_path) == {}


@pytest.mark.parametrize("text", ["", "[]", '{"pid": 3}', "{"])
def test_what_is_no_word_of_a_holder_counts_as_none(tmp_path: Path, text: str) -> None:
    (hidden_folder(tmp_path) / repros.HOLDER).write_text(text)
    assert living_holder(tmp_path) == {}


def test_a_holder_of_whom_nothing_is_known_is_another_process(tmp_path: Path) -> None:
    assert str(AlreadyWatched(tmp_path, {})).startswith(f"{tmp_path} is already watched by another process;")
