"""The seam to the operating system's file events. An event is a hint: it names a path that may have changed.

Behind it is watchdog; where events cannot be had (inotify limits, network file systems) the daemon polls, and says so.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from watchdog import events
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver, ObservedWatch

from minidbg.watch.snapshot import JUNK_FOLDERS, Root, is_inside

Hint = Callable[[str | None], None]
"""Called with a path, or with None when events were lost; from any thread, so it may only enqueue."""

WRITES: list[type[events.FileSystemEvent]] = [
    events.FileCreatedEvent, events.FileModifiedEvent, events.FileClosedEvent, events.FileMovedEvent,
    events.FileDeletedEvent, events.DirCreatedEvent, events.DirMovedEvent, events.DirDeletedEvent,
]  # fmt: skip
"""Opening and reading are left out: our own runs do that, and would cause the next sweep."""

WATCHDOG_LOG = logging.getLogger("watchdog")

NETWORK_FILE_SYSTEMS = frozenset((
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "vboxsf", "ceph", "glusterfs", "lustre", "beegfs", "afs",
    "drvfs", "virtiofs", "prl_fs", "fuse.glusterfs", "fuse.sshfs", "fuse.vmhgfs-fuse",
))  # fmt: skip


class FileEvents(events.FileSystemEventHandler):
    """Hints from the operating system, by watchdog. Tests have scripted ones."""

    def __init__(self, hint: Hint) -> None:
        self.hint = hint
        self.lost = LostEvents(hint)
        self.observer: BaseObserver | None = None
        self.watches: dict[str, tuple[ObservedWatch, int]] = {}
        """By folder: the watch, and the inode it was set on, since a watch stays with a folder that was moved away."""

    def watch(self, roots: Sequence[Root]) -> str:
        """Watch exactly these roots. Returns why polling is needed, or an empty text when events will come.

        Cheap when nothing is new, so it can be asked every second.
        """
        wanted = folders_to_watch(roots)
        mounts = mounted()
        network = [folder for folder in wanted if file_system_of(folder, mounts) in NETWORK_FILE_SYSTEMS]
        if network:
            self.stop()
            kind = file_system_of(network[0], mounts)
            return f"{network[0]} is on a network file system ({kind}), which sends no events"
        try:
            self.adjust(wanted)
        except OSError as error:
            self.stop()
            return limit_reached(error)
        return ""

    def adjust(self, wanted: dict[str, bool]) -> None:
        if self.observer is None:
            WATCHDOG_LOG.addHandler(self.lost)
            WATCHDOG_LOG.propagate = False  # its warnings would go to the terminal, through the matrix
            self.observer = Observer()
            self.observer.start()
        for folder, (watch, inode) in list(self.watches.items()):
            if wanted.get(folder) is not watch.is_recursive or inode_of(folder) != inode:
                del self.watches[folder]
                self.observer.unschedule(watch)
        fresh = [folder for folder in wanted if folder not in self.watches and inode_of(folder)]
        for folder in fresh:
            watch = self.observer.schedule(self, folder, recursive=wanted[folder], event_filter=WRITES)
            self.watches[folder] = watch, inode_of(folder)
        if fresh:
            check_coverage(wanted)
            self.hint(None)  # what happened before the watch was set is not known

    def stop(self) -> None:
        if self.observer is not None:
            self.observer.stop()
            self.observer.join()
            self.observer = None
            WATCHDOG_LOG.removeHandler(self.lost)
            WATCHDOG_LOG.propagate = True
        self.watches.clear()

    def on_any_event(self, event: events.FileSystemEvent) -> None:
        """Runs in watchdog's thread: enqueues. An atomic save shows only as the destination of a move, so both ends count."""
        for path in (event.src_path, getattr(event, "dest_path", "")):
            text = os.fsdecode(path)
            if text and JUNK_FOLDERS.isdisjoint(text.split(os.sep)[-3:]):
                self.hint(text)


class LostEvents(logging.Handler):
    """Watchdog only logs that the kernel's queue overflowed: what it says there becomes a hint to look at everything."""

    def __init__(self, hint: Hint) -> None:
        super().__init__(logging.WARNING)
        self.hint = hint

    def emit(self, record: logging.LogRecord) -> None:
        self.hint(None)


def folders_to_watch(roots: Iterable[Root]) -> dict[str, bool]:
    """The folders for which watches are needed, and whether with all below; a file is watched through its folder.

    Folders inside another deep one are left out.
    """
    found: dict[str, bool] = {}
    for root in roots:
        if os.path.isdir(root.path):
            found[root.path] = found.get(root.path, False) or root.deep
        else:
            found.setdefault(os.path.dirname(root.path), False)
    deep = [folder for folder, is_deep in found.items() if is_deep]
    return {
        folder: is_deep
        for folder, is_deep in found.items()
        if not any(folder != other and is_inside(folder, other) for other in deep)
    }


def inode_of(folder: str) -> int:
    try:
        return os.stat(folder).st_ino
    except OSError:
        return 0


def check_coverage(wanted: dict[str, bool]) -> None:
    """Raise OSError(ENOSPC) when the kernel has fewer watches than there are folders.

    Watchdog reports the limit only when it meets it at a root; below one it goes on without a word.
    """
    if sys.platform != "linux":
        return
    expected = sum(1 for folder, deep in wanted.items() if deep for _ in os.walk(folder))
    found = watches_of_this_process()
    if found is not None and found < expected * 0.99 - 3:
        raise OSError(errno.ENOSPC, f"{found} of {expected} folders could be watched")


def watches_of_this_process() -> int | None:
    """How many inotify watches the kernel counts for us; None when it does not say."""
    try:
        texts = [path.read_text() for path in Path("/proc/self/fdinfo").iterdir()]
    except OSError:
        return None
    return sum(text.count("inotify wd:") for text in texts)


def limit_reached(error: OSError) -> str:
    names = {errno.ENOSPC: ("max_user_watches", 1048576), errno.EMFILE: ("max_user_instances", 1024)}
    if error.errno not in names or sys.platform != "linux":
        return f"file events are not to be had ({error})"
    name, more = names[error.errno]
    try:
        limit = Path(f"/proc/sys/fs/inotify/{name}").read_text().strip()
    except OSError:
        limit = "unknown"
    return (
        f"the system's limit of file watches is reached (fs.inotify.{name} = {limit}); "
        f"to raise it: sudo sysctl fs.inotify.{name}={more}"
    )


def mounted() -> str:
    try:
        return Path("/proc/self/mounts").read_text()
    except OSError:
        return ""


@lru_cache(maxsize=4096)
def file_system_of(path: str, mounts: str) -> str:
    """The type of the file system that holds ``path``; empty when it cannot be told. Kept: it is asked for every two seconds."""
    found = [line.split()[1:3] for line in mounts.splitlines() if line.count(" ") >= 2]
    holding = [(place, kind) for place, kind in found if is_inside(path, place)]
    return max(holding, key=lambda one: len(one[0]))[1] if holding else ""
