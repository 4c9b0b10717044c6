"""Who belongs to a process is read from the kernel, without anything that must be installed."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
import time

import psutil
import pytest

from minidbg.workers import family

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc elsewhere")
STARTS_ANOTHER = (
    "import subprocess, sys; print(subprocess.Popen(['sleep', '300']).pid, flush=True); sys.stdin.read()"
)


def test_children_and_theirs_are_told_also_those_of_another_thread() -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        command = [sys.executable, "-S", "-c", STARTS_ANOTHER]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))

    thread = threading.Thread(target=lambda: [start(), time.sleep(2)])
    thread.start()
    while not started:
        time.sleep(0.01)
    child = started[0]
    grandchild = int(child.stdout.readline())
    assert {child.pid, grandchild} <= set(family.descendants(os.getpid()))
    assert family.descendants(child.pid) == [child.pid, grandchild]
    family.kill(grandchild, family.started_at(grandchild))
    child.communicate()
    thread.join()
    assert family.descendants(child.pid) == [child.pid]


def test_a_number_that_was_given_anew_is_another_process() -> None:
    sleeper = subprocess.Popen(["sleep", "300"])
    began = family.started_at(sleeper.pid)
    assert began is not None
    family.kill(sleeper.pid, began - 1)
    assert sleeper.poll() is None
    family.kill(sleeper.pid, began)
    assert sleeper.wait() == -9
    assert family.started_at(sleeper.pid) is None


def test_memory_is_what_a_process_has_written_and_not_what_it_has_mapped() -> None:
    here = psutil.Process()
    before = family.own_bytes(os.getpid())
    held = mmap.mmap(-1, 64 << 20)  # of the system's own: what others have freed would not show
    for page in range(0, len(held), mmap.PAGESIZE):
        held[page] = 1
    grown = family.own_bytes(os.getpid()) - before
    assert len(held) * 0.9 < grown < len(held) * 1.5
    assert family.own_bytes(os.getpid()) < here.memory_info().rss
    assert family.own_bytes(1 << 30) == 0
