"""``list`` and ``status`` read a script once, and say nothing false of one that was written again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from minidbg.watch import recorder, summaries
from minidbg.watch.summaries import FILE, KEPT_FROM, heading

SCRIPT = '"""fails"""\n# /// script\n# [tool.minidbg]\n# schema = 1\n# kind = "{kind}"\n# backend = "{backend}"\n# ///\n'
OLD_NS = 10**18


class Folder:
    """A repro folder, and which of its scripts were read by the last call of ``rows``."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self.read = home, list[str]()
        real = summaries.read_repro

        def read_repro(path: Path, name: str) -> object:
            self.read.append(name)
            return real(path, name)

        monkeypatch.setattr(summaries, "read_repro", read_repro)
        for number in range(KEPT_FROM):
            self.write(f"r{number:03}.py")

    def write(self, name: str, kind: str = "compile", backend: str = "toy") -> Path:
        path = self.home / name
        path.write_text(SCRIPT.format(kind=kind, backend=backend))
        return path

    def rows(self) -> dict[str, tuple[object, object]]:
        self.read.clear()
        return {row["repro"]: (row["kind"], row["backend"]) for row in recorder.rows_of(self.home)}

    @property
    def file(self) -> Path:
        return self.home / ".minidbg" / FILE


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    made = Folder(tmp_path, monkeypatch)
    # as if all that was written long ago: the change time cannot be set
    later = time.time_ns() + 10 * summaries.RACY_NS
    monkeypatch.setattr(summaries, "time_ns", lambda: later)
    return made


def test_the_second_call_reads_no_script(folder: Folder) -> None:
    first = folder.rows()
    assert len(folder.read) == len(first) == KEPT_FROM
    assert folder.rows() == first
    assert folder.read == []


def test_one_that_was_written_again_with_the_same_size_and_time_is_read_again(folder: Folder) -> None:
    path = folder.home / "r007.py"
    os.utime(path, ns=(OLD_NS, OLD_NS))
    folder.rows()
    folder.write("r007.py", backend="yot")
    os.utime(path, ns=(OLD_NS, OLD_NS))
    assert folder.rows()["r007.py"] == ("compile", "yot")
    assert folder.read == ["r007.py"]


def test_one_that_is_young_is_read_each_time(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written within the clock's grain of another write, it has the same size, times and inode."""
    folder.rows()
    path = folder.write("young.py")
    now = path.stat().st_mtime_ns
    monkeypatch.setattr(summaries, "time_ns", lambda: now + 1000)
    folder.rows()
    assert folder.rows()["young.py"] == ("compile", "toy")
    assert "young.py" in folder.read
    assert "young.py" not in json.loads(folder.file.read_bytes().partition(b"\n")[2])


def test_new_tensors_are_seen_by_the_digest(folder: Folder) -> None:
    folder.rows()
    (folder.home / "r001.safetensors").write_bytes(b"values")
    folder.rows()
    assert folder.read == ["r001.py"]


def test_a_removed_repro_and_an_added_one_are_seen(folder: Folder) -> None:
    folder.rows()
    (folder.home / "r001.py").unlink()
    folder.write("new.py", kind="runtime")
    found = folder.rows()
    assert "r001.py" not in found
    assert found["new.py"] == ("runtime", "toy")
    assert folder.read == ["new.py"]


def flipped(data: bytes) -> bytes:
    place = data.index(b"toy")
    return data[:place] + b"T" + data[place + 1 :]


def of_a_wrong_kind(data: bytes) -> bytes:
    body = data.partition(b"\n")[2].replace(b'"toy"', b"3")
    return heading(body) + b"\n" + body


SPOILT: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[:-7],
    "flipped": flipped,
    "empty": lambda data: b"",
    "of another version": lambda data: data.replace(summaries.VERSION.encode(), b"minidbg summaries 2", 1),
    "of a wrong kind": of_a_wrong_kind,
    "a list": lambda data: heading(b"[]") + b"\n[]",
    "nested": lambda data: heading(b"[" * 100_000) + b"\n" + b"[" * 100_000,
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=list(SPOILT))
def test_a_damaged_or_newer_file_is_made_anew_in_silence(
    folder: Folder, spoil: Callable[[bytes], bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    first = folder.rows()
    folder.file.write_bytes(spoil(folder.file.read_bytes()))
    assert folder.rows() == first
    assert len(folder.read) == KEPT_FROM
    assert capfd.readouterr() == ("", "")
    folder.rows()
    assert folder.read == []


def test_a_small_folder_stays_as_it_is(folder: Folder) -> None:
    (folder.home / "r000.py").unlink()
    folder.rows()
    assert not (folder.home / ".minidbg").exists()


def test_what_cannot_be_read_just_now_is_tried_again(folder: Folder) -> None:
    os.mkfifo(folder.home / "pipe.py")
    folder.rows()
    folder.rows()
    assert folder.read == ["pipe.py"]


def test_where_nothing_can_be_written_the_scripts_are_read_again(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(summaries, "replace_file", refuse)
    assert folder.rows() == folder.rows()
    assert len(folder.read) == KEPT_FROM
