"""Files that are put in place in one step."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name, or a copy where links do not reach. Raises OSError."""
    try:
        os.link(source, target)
    except FileExistsError:
        pass
    except OSError:
        shutil.copyfile(source, target)


def for_others_to_read(path: str, flags: int) -> int:
    """An opener whose new files have the mode of the user's umask, and are never writable by everybody."""
    return os.open(path, flags, 0o664)


def replace_file(path: Path, content: bytes) -> None:
    """Put ``content`` at ``path`` in one step, on disk before it is seen, with the mode that the user's umask gives."""
    # Not tempfile: its files are private, and a repro is made to be shared.
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with open(draft, "xb", opener=for_others_to_read) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return  # a folder cannot be opened there
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
