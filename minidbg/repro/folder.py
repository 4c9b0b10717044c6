"""The repro folder: verified repros at its top and nothing else, all the rest in ``.minidbg``; each
script is written whole or not at all."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import itertools
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from filelock import FileLock
from safetensors.torch import save
from torch import Tensor

from minidbg import backends
from minidbg.codegen.inputs import Exactness, bytes_to_store
from minidbg.codegen.size import canonical_text
from minidbg.core import script_header
from minidbg.core.errors import UnreadableRepro
from minidbg.core.files import replace_file, sync_folder
from minidbg.core.records import plain
from minidbg.core.settings import VALUE_LIMIT_BYTES
from minidbg.fx.case import Case
from minidbg.repro.header import read_header
from minidbg.repro.render import Form, render
from minidbg.repro.wording import main_op
from minidbg.workers import leftovers

IGNORE = ".gitignore"
LOCK_SECONDS = 60.0
SHARED, PRIVATE = 0o775, 0o700
"""Modes of folders, less what the user's umask takes."""


def publish(case: Case, draft: Path, folder: Path | str) -> Path:
    """Move ``case``'s verified script ``draft`` to ``folder``'s top; one failure gives one file.

    A readable repro of the same failure stays as it is: it was verified then, and somebody may have
    edited it or marked it as fixed. Several processes may publish into one folder at once. What
    lacks its backend goes among the hidden files.
    """
    place = hidden(folder, "missing_backend") if case.backend.missing_backend else Path(folder)

    with _placed(file_name(case), folder, place) as (path, is_new):
        if is_new:
            move_script(draft, path)
    discard(draft)
    return path


def keep_capture(case: Case, folder: Path | str, *, value_limit_bytes: int = VALUE_LIMIT_BYTES) -> Path:
    """Write an unverified case to ``folder``'s captures; one failure gives one file, with the
    values of the last time. Those beyond the limit are replaced by seeded ones."""
    case = case_to_keep(case)
    fits = bytes_to_store(case.inputs, Exactness.SMALL) <= value_limit_bytes
    exactness = Exactness.SMALL if fits else Exactness.SEEDED
    with _placed(file_name(case), folder, captures(folder)) as (path, _):
        limit = value_limit_bytes
        return write(case, path, Form.CAPTURE, exactness=exactness, value_limit_bytes=limit)


@contextlib.contextmanager
def _placed(name: str, folder: Path | str, place: Path) -> Iterator[tuple[Path, bool]]:
    """A block in which nobody else writes: where the script ``name`` lies or is to be written in
    ``place``, and whether no readable one is there."""
    path, is_new = place / name, False
    with FileLock(hidden(folder) / "lock", timeout=LOCK_SECONDS, mode=0o664):
        try:
            read_header(path)
        except UnreadableRepro:  # such a file stays: somebody may be editing it just now
            names = (path.with_stem(f"{path.stem}_{number}") for number in itertools.count(2))
            path = next(name for name in itertools.chain([path], names) if not name.exists())
            is_new = True
        yield path, is_new


def hidden(folder: Path | str, *parts: str) -> Path:
    """A folder inside ``.minidbg``, made when missing, for its owner alone: captures hold values of
    inputs. Raises OSError."""
    top = Path(folder) / script_header.HIDDEN
    make_folder(top.parent)
    make_folder(top, PRIVATE)
    ignore = top / IGNORE
    if not ignore.exists():
        replace_file(ignore, b"*\n")
    place = top.joinpath(*parts)
    make_folder(place, PRIVATE)
    return place


def captures(folder: Path | str) -> Path:
    return hidden(folder, "captures")


def reduction_folder(case: Case, folder: Path | str) -> Path:
    """Where the result and the best so far of this case's reduction lie; made when missing."""
    return hidden(folder, "reductions", file_name(case).removesuffix(".py"))


def drafts(folder: Path | str) -> Path:
    return leftovers.make_temporary_folder("draft", hidden(folder, "drafts"))


def folder_of(path: Path | str) -> Path:
    return Path(script_header.folder_of_script(str(Path(path).absolute())))


def file_name(case: Case) -> str:
    """``compile_cumsum_3f9c2a.py``: kind, an op that tells it apart, and a digest that is the same
    for one failure: backend, call path, signature and graph."""
    backend = case_to_keep(case).backend
    expression = backend.expression
    with contextlib.suppress(SyntaxError):  # without its style
        expression = ast.unparse(ast.parse(expression, mode="eval"))
    parts = [
        expression,
        repr(sorted(backend.options.items())),
        str(backend.mode),
        str(case.spec.call),
        repr(plain(case.signature)),
        str(case.spec.backward),
        canonical_text(case.graph_module),
    ]
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:6]
    op = re.sub(r"[^A-Za-z0-9]+", "_", main_op(case)).strip("_")[:40]
    return "_".join(filter(None, (str(case.spec.expected.kind), op, digest))) + ".py"


def case_to_keep(case: Case) -> Case:
    """``case`` as a lasting script has it: a backend pickled for children is to be filled in."""
    backend = backends.to_keep(case.backend)
    return case if backend is case.backend else case.with_spec(backend=backend)


def write(
    case: Case,
    path: Path | str,
    form: Form = Form.SHORT,
    *,
    exactness: Exactness = Exactness.SEEDED,
    value_limit_bytes: int = VALUE_LIMIT_BYTES,
    remark: str = "",
) -> Path:
    """Write the script of ``case`` to ``path``, its tensors beside it; a capture is for its owner
    alone. An earlier script is replaced: a reader sees the old one or the new one, never a part.

    Folders are made. Raises what ``render`` raises, and leaves the file that was there.
    """
    path, private = Path(path), form is Form.CAPTURE
    script = render(
        case,
        form,
        exactness=exactness,
        value_limit_bytes=value_limit_bytes,
        remark=remark,
        folder=str(folder_of(path)),
    )
    make_folder(path.parent)
    if script.tensors:
        replace_file(tensors_of(path), as_safetensors(script.tensors), private=private)
    replace_file(path, script.text.encode(), private=private)
    if not script.tensors:
        tensors_of(path).unlink(missing_ok=True)
    return path


def move_script(source: Path, target: Path) -> None:
    has_tensors = tensors_of(source).exists()
    if has_tensors:
        os.replace(tensors_of(source), tensors_of(target))
    os.replace(source, target)
    if not has_tensors:
        tensors_of(target).unlink(missing_ok=True)
    sync_folder(target.parent)


def tensors_of(path: Path) -> Path:
    return path.with_suffix(".safetensors")


def as_safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Equal for equal tensors, which are copied: safetensors refuses shared memory."""
    return save({key: tensors[key].clone() for key in sorted(tensors)})


def make_folder(folder: Path, mode: int = SHARED) -> None:
    """Make ``folder`` and the missing ones above it, none writable by everybody. Raises OSError."""
    if not folder.parent.exists():
        make_folder(folder.parent, mode)
    folder.mkdir(mode=mode, exist_ok=True)


def discard(path: Path) -> None:
    """Remove a script and its tensors, of a draft with its folder."""
    path.unlink(missing_ok=True)
    tensors_of(path).unlink(missing_ok=True)
    if path.parent.parent.name == "drafts":
        shutil.rmtree(path.parent, ignore_errors=True)
