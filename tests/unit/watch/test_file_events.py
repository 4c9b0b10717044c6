"""Hints from real file events, and when there are none to be had."""

from __future__ import annotations

import errno
import logging
import os
import queue
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import python

from minidbg.watch import file_events
from minidbg.watch.file_events import FileEvents, folders_to_watch, limit_reached
from minidbg.watch.snapshot import Root


class Heard:
    """The hints that have arrived."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def has(self, path: Path, seconds: float = 10.0) -> bool:
        """Whether a hint for the path arrives in time."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            try:
                if self.queue.get(timeout=left) == str(path):
                    return True
            except queue.Empty:
                return False
        return False

    def drain(self, seconds: float = 0.3) -> list[str | None]:
        """What arrives until it is quiet."""
        found = []
        try:
            while True:
                found.append(self.queue.get(timeout=seconds))
        except queue.Empty:
            return found


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def source(heard: Heard) -> Iterator[FileEvents]:
    watching = FileEvents(heard.queue.put)
    yield watching
    watching.stop()


@pytest.fixture
def folder(tmp_path: Path, source: FileEvents, heard: Heard) -> Path:
    path = tmp_path / "package"
    (path / "inner").mkdir(parents=True)
    assert source.watch([Root(str(path))]) == ""
    heard.drain()
    return path


def test_a_write_an_atomic_save_and_a_removal_are_hinted(folder: Path, heard: Heard) -> None:
    (folder / "a.py").write_text("1")
    assert heard.has(folder / "a.py")
    heard.drain()
    (folder / "a.py.new").write_text("2")
    os.replace(folder / "a.py.new", folder / "a.py")
    assert heard.has(folder / "a.py")
    heard.drain()
    (folder / "a.py").unlink()
    assert heard.has(folder / "a.py")


def test_a_file_moved_in_from_outside_is_hinted(folder: Path, heard: Heard, tmp_path: Path) -> None:
    (tmp_path / "b.py").write_text("1")
    os.replace(tmp_path / "b.py", folder / "inner" / "b.py")
    assert heard.has(folder / "inner" / "b.py")


def test_reading_causes_no_hint(folder: Path, heard: Heard) -> None:
    (folder / "a.py").write_text("1")
    heard.drain()
    for _ in range(3):
        (folder / "a.py").read_text()
        os.listdir(folder)
    assert heard.drain() == []


def test_a_replaced_folder_is_watched_again(source: FileEvents, folder: Path, heard: Heard) -> None:
    os.rename(folder, folder.with_name("old"))
    (folder / "inner").mkdir(parents=True)
    assert source.watch([Root(str(folder))]) == ""
    assert None in heard.drain(), "what happened meanwhile is not known"
    (folder / "inner" / "c.py").write_text("1")
    assert heard.has(folder / "inner" / "c.py")


def test_a_root_that_appears_later_is_watched_then(source: FileEvents, heard: Heard, tmp_path: Path) -> None:
    late = tmp_path / "late"
    source.watch([Root(str(late))])
    heard.drain()
    late.mkdir()
    source.watch([Root(str(late))])
    heard.drain()
    (late / "a.py").write_text("1")
    assert heard.has(late / "a.py")


def test_a_single_file_is_watched_through_its_folder(
    source: FileEvents, heard: Heard, tmp_path: Path
) -> None:
    path = tmp_path / "ext.so"
    path.write_bytes(b"1")
    source.watch([Root(str(path))])
    heard.drain()
    path.write_bytes(b"2")
    assert heard.has(path)


def test_folders_inside_a_watched_one_need_no_watch_of_their_own(tmp_path: Path) -> None:
    inner, other = tmp_path / "src" / "inner", tmp_path / "src2"
    inner.mkdir(parents=True)
    other.mkdir()
    roots = [Root(str(inner)), Root(str(tmp_path / "src")), Root(str(other), deep=False)]
    assert folders_to_watch(roots) == {str(tmp_path / "src"): True, str(other): False}


def test_the_limit_of_watches_names_the_sysctl() -> None:
    assert "sudo sysctl fs.inotify.max_user_watches=" in limit_reached(OSError(errno.ENOSPC, "full"))
    assert "sudo sysctl fs.inotify.max_user_instances=" in limit_reached(OSError(errno.EMFILE, "full"))


def test_a_limit_met_below_the_root_is_noticed(
    folder: Path, source: FileEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Watchdog itself says nothing when a subfolder cannot be watched."""
    other = folder.with_name("large")
    for number in range(20):
        (other / str(number)).mkdir(parents=True)
    monkeypatch.setattr(file_events, "watches_of_this_process", lambda: 3)
    assert "max_user_watches" in source.watch([Root(str(other))])
    assert source.observer is None, "nothing half set up stays behind"


def test_a_network_file_system_is_polled(
    folder: Path, source: FileEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_events, "file_system_of", lambda path, mounts: "nfs4")
    assert "network file system (nfs4)" in source.watch([Root(str(folder))])


def test_an_overflow_of_the_kernels_queue_asks_for_a_look_at_everything(folder: Path, heard: Heard) -> None:
    logging.getLogger("watchdog.observers.inotify_c").warning(
        "Inotify queue overflowed; filesystem events were lost"
    )
    assert heard.drain() == [None]


@pytest.mark.skipif(sys.platform != "linux", reason="inotify")
def test_a_real_shortage_of_inotify_instances_is_explained(tmp_path: Path) -> None:
    """In a process of its own, since the shortage is made by using up this process's file descriptors."""
    program = """
import os, resource, sys
from minidbg.watch.file_events import FileEvents
from minidbg.watch.snapshot import Root
used = len(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (used, used))
source = FileEvents(lambda path: None)
print(source.watch([Root(sys.argv[1])]))
"""
    done = python("-c", program, tmp_path, timeout=60)
    assert "max_user_instances" in done.stdout, done.stderr
