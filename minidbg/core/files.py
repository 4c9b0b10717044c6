"""Files that are put in place in one step."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from functools import partial
from io import BufferedReader
from pathlib import Path

NOTE_LIMIT_BYTES = 1 << 20
"""Of a small file of ours: an answer that was kept, a token, what a daemon says about itself."""
LOG_LIMIT_BYTES = 64 << 20
"""Of the log of a reduction, of which a line for each run is some hundred bytes."""


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """The regular file at ``path``, or behind a link there, to read. Raises OSError, whose
    ``strerror`` says that it is none."""
    # without waiting for a writer, should a pipe have come into the place of the file
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return open(handle, "rb")
    os.close(handle)
    raise OSError(errno.EINVAL, "not a regular file; move it away", os.fspath(path))


def read_regular(path: str | os.PathLike[str], limit_bytes: int) -> bytes:
    """The content of the regular file at ``path``. Raises OSError whose ``strerror`` says why."""
    with open_regular(path) as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        mib = limit_bytes >> 20
        why = f"more than {mib} MiB, which is the most that is read of such a file; move it away"
        raise OSError(errno.EFBIG, why, os.fspath(path))
    return content


def glob(folder: Path, pattern: str) -> list[Path]:
    """What ``folder`` has of that pattern, in order; nothing where it may not be looked into."""
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


for_its_owner = partial(os.open, mode=0o600)
for_others_to_read = partial(os.open, mode=0o664)
"""Openers: less what the user's umask takes, so that no new file is writable by everybody."""


def replace_file(path: Path, content: bytes, *, private: bool = False) -> None:
    """Put ``content`` at ``path`` in one step, on disk before it is seen.

    Its mode is what the umask gives: repros are for sharing; ``private``: nobody else reads it.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with open(draft, "xb", opener=for_its_owner if private else for_others_to_read) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
