"""Who belongs to a process: all it has started, and what they hold, as the kernel's ``/proc`` says.
Where there is none, a process is known alone, without its memory, and its group can be ended."""

from __future__ import annotations

import contextlib
import os
import signal


def descendants(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        found += children_of(one)
    return found


def children_of(pid: int) -> list[int]:
    """The processes that the threads of ``pid`` have started, and orphans that were given to it."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found


def started_at(pid: int) -> int | None:
    """When a process began, in ticks since the machine started; None for none. With it a number is
    told from the same one given anew."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])  # a name may have spaces, brackets
    return None


def own_bytes(pid: int) -> int:
    """Resident bytes of a process without the files it has mapped: a child of ours maps hundreds of
    megabytes of torch anew."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/status") as status:
        lines = (line.split() for line in status)
        return sum(int(line[1]) * 1024 for line in lines if line[0] in ("RssAnon:", "RssShmem:"))
    return 0


def kill(pid: int, started: int | None) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if started is not None and started_at(pid) == started:
            os.kill(pid, signal.SIGKILL)
