"""A kernel cache of minidbg's own for runs: a child that is killed may leave half a file behind.

In the user's cache such a file would break the user's next run. Compiled kernels are keyed by their
source and the compiler's flags, so keeping them from one reduction to the next hides nothing.
Caches of graphs are off (``judge.run``).
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
ELF64_SIZE = 64


@contextlib.contextmanager
def own_kernel_cache() -> Iterator[Path]:
    """A block in which inductor, here and in children, keeps its kernels in a folder of minidbg's,
    where one can be made."""
    folder, before = kernel_folder(), os.environ.get(CACHE_VARIABLE)
    with contextlib.suppress(OSError):
        os.environ |= where_kernels_go()
        remove_unfinished(folder)
    try:
        yield folder
    finally:
        if before is None:
            os.environ.pop(CACHE_VARIABLE, None)
        else:
            os.environ[CACHE_VARIABLE] = before


def kernel_folder() -> Path:
    import platformdirs  # here: a judge may be where only torch is installed, and has no use for it

    return platformdirs.user_cache_path("minidbg") / "kernels"


def where_kernels_go() -> dict[str, str]:
    """The variable that keeps inductor's kernels in minidbg's folder; none if it cannot be made."""
    folder = kernel_folder()
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        return {CACHE_VARIABLE: str(folder)}
    return {}


def remove_unfinished(folder: Path, *, since: float | None = None) -> list[Path]:
    """Delete cut-short libraries, and headers compiled after ``since`` (epoch seconds); what went.
    A file that a process has open stays: another minidbg's compiler is just writing it."""
    unfinished, removed = [], []
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            written = path.stat().st_mtime
            header = path.suffix in (".gch", ".pch") and since is not None and written >= since
            if header or (path.suffix == ".so" and is_cut_short(path)):
                unfinished.append(path)
    in_use = open_files() if unfinished else set()
    for path in unfinished:
        with contextlib.suppress(OSError):
            status = path.stat()  # looked at again: it may have been finished since
            inode = (status.st_dev, status.st_ino)
            if inode not in in_use and (path.suffix != ".so" or is_cut_short(path)):
                path.unlink()
                removed.append(path)
    return removed


def open_files() -> set[tuple[int, int]]:
    """Device and inode of each file open for writing, as far as this user may see (Linux)."""
    found = set()
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.lstat(descriptor).st_mode & stat.S_IWUSR:  # of the link: how the file was opened
                status = descriptor.stat()
                found.add((status.st_dev, status.st_ino))
    return found


def is_cut_short(library: Path) -> bool:
    """Whether an ELF library ends before its section table, which is written last; others pass."""
    with library.open("rb") as file:
        head = file.read(ELF64_SIZE)
        size = file.seek(0, os.SEEK_END)
    if len(head) < ELF64_SIZE or not head[:4].strip(b"\0"):
        return True
    if head[:5] != b"\x7fELF\x02":
        return False
    (table,) = struct.unpack_from("<Q", head, 40)
    entry_size, entries = struct.unpack_from("<HH", head, 58)
    return bool(table == 0 or table + entry_size * entries > size)
