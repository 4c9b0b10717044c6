"""Whatever lies in a repro folder, each file is one row: no pipe is waited for, no device read, nothing read without an end."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from minidbg.repro import read_header
from minidbg.watch import recorder
from minidbg.watch.repros import read_repro, read_repros
from minidbg.words.errors import UnreadableRepro
from minidbg.words.script_digest import TENSORS_READ_BYTES
from minidbg.words.script_header import SCRIPT_LIMIT_BYTES

SCRIPT = '"""fails"""\n{body}\n# /// script\n# [tool.minidbg]\n# schema = {schema}\n# kind = "compile"\n# backend = "toy"\n{header}# ///\n'


def script(header: str = "", *, body: str = "", schema: object = 1) -> str:
    return SCRIPT.format(header=f"# {header}\n" if header else "", body=body, schema=schema)


HOSTILE = {
    "a body of dashes": (script(body="-" * 100_000), "nested too deeply"),
    "a line of dashes": (script("-" * 100_000), "no TOML"),
    "a long key": (script("a." * 20_000 + "a = 1"), "more than 100 parts"),
    "a long block": (script("\n# ".join(f"a{number} = 1" for number in range(100_000))), "longer than 1 MiB"),
    "a deep value": (script("a = " + "[" * 50_000), "nested too deeply"),
    "paths of a number": (script("paths = 5"), "paths = 5, where a list of texts belongs"),
    "paths of a text": (script("paths = '/a'"), "paths = '/a', where a list of texts belongs"),
    "a mode of a number": (script("mode = 5"), "mode = 5, where a text belongs"),
    "an origin of a text": (script("origin = 'x'"), "origin = 'x', where a table belongs"),
    "a note of a number": (script("origin = {notes = 3}"), "notes = 3, where a list of texts belongs"),
    "seconds of a text": (script("origin = {nodes = 'x'}"), "nodes = 'x', where a whole number belongs"),
    "a table of tolerances": (script("tolerances = {any = ['a', 1]}"), "where two numbers belong"),
    "a variable of a number": (script("origin = {env = {A = 1}}"), "env = [1], where a list of texts belongs"),
    "attempts of a text": (script("attempts = '" + "9" * 5000 + "'"), "where a whole number belongs"),
    "nodes without an end": (script("nodes = inf"), "nodes = inf, where a whole number belongs"),
    "another expectation": (script("expect = 'flaky'"), "known are reproduces, gone"),
    "a newer schema": (script(schema=2), "schema 2, this minidbg reads 1; a newer minidbg reads newer ones"),
    "a schema of a text": (script(schema="'one'"), "schema 'one'"),
    "too long": ("#" * (SCRIPT_LIMIT_BYTES + 1), "more than 16 MiB"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "why"), HOSTILE.values(), ids=list(HOSTILE))
def test_a_hostile_script_is_one_damaged_row_that_says_why_and_what_to_do(
    tmp_path: Path, text: str, why: str
) -> None:
    (tmp_path / "a.py").write_text(script())
    (tmp_path / "b.py").write_text(text)
    began = time.process_time()
    rows = {row["repro"]: row for row in recorder.rows_of(tmp_path)}
    assert time.process_time() - began < 2
    assert rows["a.py"]["reason"] == ""
    assert rows["a.py"]["kind"] == "compile"
    assert rows["b.py"]["kind"] is None
    assert why in rows["b.py"]["reason"]
    assert "; " in rows["b.py"]["reason"], "what to do"


def test_a_word_of_30_000_characters_is_read_in_no_time(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(script(f'owner = "{"a" * 30_000}"'))
    began = time.process_time()
    assert read_repros([tmp_path], tmp_path)["a.py"].damage == ""
    assert time.process_time() - began < 1


def test_what_is_no_regular_file_is_a_damaged_row_beside_a_script_too(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "zero.py").symlink_to("/dev/zero")
    (tmp_path / "tensors.py").write_text(script())
    os.mkfifo(tmp_path / "tensors.safetensors")
    reasons = {name: repro.damage for name, repro in read_repros([tmp_path], tmp_path).items()}
    told = "cannot be read: no regular file but {}; move it away"
    assert reasons == {
        "folder.py": told.format("a folder"), "pipe.py": told.format("a named pipe"), "zero.py": told.format("a device"),
        "tensors.py": "tensors.safetensors " + told.format("a named pipe"),
    }  # fmt: skip


def test_tensors_without_an_end_are_known_by_their_size_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minidbg.words.script_digest.TENSORS_READ_BYTES", 1 << 20)
    assert TENSORS_READ_BYTES == 1 << 30
    (tmp_path / "a.py").write_text(script())
    tensors = tmp_path / "a.safetensors"
    tensors.touch()
    os.truncate(tensors, 1 << 42)
    before = read_repro(tmp_path / "a.py", "a.py")
    os.utime(tensors, ns=(1, 1))
    after = read_repro(tmp_path / "a.py", "a.py")
    assert before is not None
    assert after is not None
    assert before.digest != after.digest


def test_a_newer_schema_is_refused_by_everybody(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(script(schema=2))
    with pytest.raises(UnreadableRepro, match="schema 2, this minidbg reads 1"):
        read_header(tmp_path / "a.py")
    repro = read_repro(tmp_path / "a.py", "a.py")
    assert repro is not None
    assert "schema 2, this minidbg reads 1" in repro.damage
