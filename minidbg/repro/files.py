"""Scripts on disk: written whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from minidbg.case import Case
from minidbg.graphs.specs import Exactness
from minidbg.repro.render import VALUE_LIMIT_BYTES, Form, Script, render


def write(
    case: Case,
    path: Path | str,
    form: Form = Form.SHORT,
    *,
    exactness: Exactness = Exactness.SEEDED,
    value_limit_bytes: int = VALUE_LIMIT_BYTES,
) -> Path:
    """Write the script of ``case`` to ``path``, and its tensors beside it; an earlier one is replaced.

    Folders are made. Raises CannotWrite naming the part of the case that has no form, and NoShortForm; both leave the
    file that was there.
    """
    script = render(case, form, exactness=exactness, value_limit_bytes=value_limit_bytes)
    return write_script(script, Path(path))


def move_script(source: Path, target: Path) -> None:
    """Put the script at ``source`` and its tensors at ``target``, in place of an earlier one."""
    has_tensors = tensors_of(source).exists()
    if has_tensors:
        os.replace(tensors_of(source), tensors_of(target))
    os.replace(source, target)
    if not has_tensors:
        tensors_of(target).unlink(missing_ok=True)
    _sync_folder(target.parent)


def write_script(script: Script, path: Path) -> Path:
    """Write a rendered script. A reader sees the old one or the new one, never a part."""
    make_folder(path.parent)
    beside = tensors_of(path)
    if script.tensors:
        replace_file(beside, as_safetensors(script.tensors))
    replace_file(path, script.text.encode())
    if not script.tensors:
        beside.unlink(missing_ok=True)
    return path


def tensors_of(path: Path) -> Path:
    """Where the tensors of the script at ``path`` lie."""
    return path.with_suffix(".safetensors")


def as_safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """The file's bytes; equal for equal tensors."""
    return save({key: tensors[key] for key in sorted(tensors)})


def for_others_to_read(path: str, flags: int) -> int:
    """An opener whose new files have the mode of the user's umask, and are never writable by everybody."""
    return os.open(path, flags, 0o664)


def make_folder(folder: Path) -> None:
    """Make ``folder`` and those above it that are missing, none of them writable by everybody. Raises OSError."""
    if not folder.parent.exists():
        make_folder(folder.parent)
    folder.mkdir(mode=0o775, exist_ok=True)


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
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return  # a folder cannot be opened there
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def discard(path: Path) -> None:
    """Remove a script and its tensors, and its folder when it was the last thing in a draft folder."""
    path.unlink(missing_ok=True)
    tensors_of(path).unlink(missing_ok=True)
    if path.parent.parent.name == "drafts":
        for left in path.parent.glob("__pycache__/*"):
            left.unlink()
        for folder in (path.parent / "__pycache__", path.parent):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
