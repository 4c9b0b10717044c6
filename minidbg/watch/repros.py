"""The repros that are watched: found, read without running them, told apart when they change; and who watches them.

The header is read here with the standard library alone, since the daemon holds no torch; ``minidbg.repro.read_header``
reads the same block in full.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import platformdirs
import psutil

from minidbg.watch.files import stamp
from minidbg.words.errors import MinidbgError, UnreadableRepro
from minidbg.words.files import NOTE_LIMIT_BYTES, glob, is_file, read_regular, replace_file
from minidbg.words.outcome import Verdict
from minidbg.words.records import damage_in_words
from minidbg.words.run_spec import DAMAGE, BackendRef, Provenance, RunSpec, table_of
from minidbg.words.script_digest import digest_of_files
from minidbg.words.script_header import (
    HIDDEN,
    SCRIPT_LIMIT_BYTES,
    expected_in,
    metadata_of,
    nodes_in,
    table_in,
    text_of,
)
from minidbg.words.text import display_path

UNKNOWN = RunSpec(BackendRef("", ""))
"""Of a script that is damaged."""
NO_REPROS = frozenset({"conftest.py", "__init__.py"})


@dataclass(frozen=True, slots=True)
class Repro:
    name: str
    """Its path relative to the folder that is watched; what people and the history call it."""
    path: Path
    digest: str
    """Of the script and the tensors beside it."""
    stamp: tuple[int, ...] = ()
    """Size and times of both files, by which a later look sees that they are the same."""
    damage: str = ""
    """Why it cannot be run, when it cannot."""
    spec: RunSpec = field(default=UNKNOWN, compare=False)
    """How it is run and what it must show, as the header says."""
    provenance: Provenance = field(default=Provenance(), compare=False)
    expect: Verdict = Verdict.REPRODUCES
    nodes: int = 0
    backend_source: str = ""
    """The text above the model, which ends with ``backend = EXPR``."""

    @property
    def backend_key(self) -> str:
        """Equal for repros that get the same backend in the same way: they share a canary."""
        backend = self.spec.backend
        how = [self.backend_source, *map(repr, (backend.options, backend.mode, backend.paths))]
        return hashlib.sha1("\0".join(how).encode(), usedforsecurity=False).hexdigest()[:12]

    @property
    def modules(self) -> tuple[str, ...]:
        """Top-level modules that hold the backend's code: those the header names, and those that the script imports for it."""
        return tuple(dict.fromkeys([*self.spec.backend.modules, *imported_in(self.backend_source)]))

    @property
    def failing_modules(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(frame.partition(":")[0] for frame in self.spec.expected.frames))


def find_repros(paths: Sequence[Path]) -> list[Path]:
    """The scripts that ``paths`` name: files as they are, of folders those at their top."""
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            names = sorted(name for name in os.listdir(path) if is_script(name))
            found.update(dict.fromkeys(path / name for name in names))
        elif path.exists():
            found[path] = None
    return list(found)


def is_script(name: str) -> bool:
    """Whether a file of a repro folder can be a repro: all but what belongs to pytest or editors."""
    return name.endswith(".py") and name not in NO_REPROS and not name.startswith(".")


def name_of(path: Path, home: Path) -> str:
    return str(path.relative_to(home)) if path.is_relative_to(home) else str(path)


def read_repros(
    paths: Sequence[Path], home: Path, known: Mapping[str, Repro] | None = None
) -> dict[str, Repro]:
    """All repros below ``paths`` by name, damaged ones too. Those of ``known`` whose files are the same are kept."""
    found: dict[str, Repro] = {}
    for path in find_repros(paths):
        name = name_of(path, home)
        old = (known or {}).get(name)
        repro = old if old is not None and old.stamp == stamp_of(path) else read_repro(path, name)
        if repro is not None:
            found[name] = repro
    return found


def stamp_of(path: Path) -> tuple[int, ...]:
    """Size, times and inode of a script and of the tensors beside it; other numbers when they were written again."""
    script = str(path)  # asked for after each run: no Path
    files = script, os.path.splitext(script)[0] + ".safetensors"
    return tuple(number for file in files for number in stamp(file) or (0, 0, 0, 0))


def read_repro(path: Path, name: str) -> Repro | None:
    """The repro at ``path``, or None when it has just gone. Nothing in it is run."""
    now = stamp_of(path)  # before reading: a change in between is seen at the next look
    try:
        data = read_regular(path, SCRIPT_LIMIT_BYTES)
        total = digest_of_files(path, data)
    except FileNotFoundError:
        return None
    except OSError as error:
        which = "" if error.filename in (None, str(path)) else f"{Path(error.filename).name} "
        return Repro(name, path, "", now, damage=f"{which}cannot be read: {error.strerror or error}")
    try:
        text = text_of(data)
        table = table_of(text, path)
        return Repro(
            name, path, total, now, spec=RunSpec.from_table(table), provenance=Provenance.from_table(table),
            expect=Verdict(expected_in(table)), nodes=nodes_in(table),
            backend_source=backend_source(text),
        )  # fmt: skip
    except DAMAGE as error:
        return Repro(name, path, total, now, damage=f"damaged: {damage_in_words(error)}")


def header_table(text: str) -> dict[str, Any]:
    return table_in(metadata_of(text))


def backend_source(text: str) -> str:
    """The script down to what it binds ``backend`` to, without its docstring: imports, what was copied, ``backend = EXPR``."""
    nodes = [node for node in ast.parse(text).body if not isinstance(node, ast.Expr)]
    bound = (getattr(node, "name", "") or ast.unparse(getattr(node, "targets", [node])[0]) for node in nodes)
    ends = [at for at, name in enumerate(bound, 1) if name == "backend"]
    return "\n".join(ast.get_source_segment(text, node) or "" for node in nodes[: max(ends, default=0)])


@lru_cache(maxsize=256)
def imported_in(source: str) -> tuple[str, ...]:
    """Top-level names of the modules that a source imports; Python's own and torch left out."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        else:
            continue
        found += (name.partition(".")[0] for name in names)
    return tuple(name for name in found if name not in ("", "torch", *sys.stdlib_module_names))


def home_of(paths: Sequence[Path]) -> Path:
    """The folder whose ``.minidbg`` holds the history of ``paths``: the first one's. Raises MinidbgError for a typo."""
    for path in paths:
        if not path.exists():
            raise MinidbgError(f"{path}: no such file or folder; give repro scripts or folders of them")
    first = paths[0]
    return first if first.is_dir() else first.parent


def module_names(path: str) -> list[str]:
    """All that Python can import the file at ``path`` as: ``c``, ``b.c`` and ``a.b.c`` for ``/a/b/c.py``."""
    parts = path.removesuffix(".py").removesuffix("/__init__").strip("/").split("/")
    return [".".join(parts[start:]) for start in range(len(parts))] if path.endswith(".py") else []


def find_repro(text: Path, folder: Path) -> Path:
    """The script that a person means by ``text``: a path, or enough of the name of a repro or else a capture in ``folder``.

    Raises MinidbgError.
    """
    captures = folder / HIDDEN / "captures"
    for candidate in (text, folder / text, folder / f"{text}.py", captures / text):
        if is_file(candidate):
            return candidate
    if text.name != str(text):
        raise MinidbgError(f"{text}: no such file; give a repro script, or a part of its name alone")
    repros = find_repros([folder])
    matches = [path for path in repros if str(text) in path.stem]
    matches = matches or [path for path in glob(captures, "*.py") if str(text) in path.stem]
    if len(matches) == 1:
        return matches[0]
    which = [path.stem for path in matches or repros]
    listed = f"{', '.join(which[:5])}{', ...' if len(which) > 5 else ''}"
    if matches:
        raise MinidbgError(f"'{text}' matches several repros: {listed}; give more of the name")
    known = f"{display_path(folder)} has {listed}" if which else "give the path of a repro script"
    raise MinidbgError(f"no repro's name contains '{text}'; {known}")


def write_in_header(path: Path, values: Mapping[str, str | None]) -> None:
    """Write texts into the header of the script at ``path``, each in place of an earlier one; None takes one out.

    Raises MinidbgError when that cannot be done, and OSError.
    """
    try:
        text = text_of(read_regular(path, SCRIPT_LIMIT_BYTES))
        before = header_table(text)
    except ValueError as error:
        raise UnreadableRepro(f"{path}: {error}") from error
    for name, value in values.items():
        text = re.sub(rf"(?m)^# {name} = .*\n", "", text)
        if value is not None:
            line = f"# {name} = {json.dumps(value, ensure_ascii=False)}\n"
            text = text.replace("# [tool.minidbg]\n", f"# [tool.minidbg]\n{line}", 1)
    wanted = {name: value for name, value in {**before, **values}.items() if value is not None}
    if header_table(text) != wanted:
        raise MinidbgError(f"{path}: its header has a form in which nothing can be written; edit it by hand")
    replace_text(path, text)


def replace_text(path: Path, text: str) -> None:
    """Put ``text`` at ``path`` in one step, with the mode of the file that was there. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        if path.exists():
            draft.chmod(path.stat().st_mode)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)  # an empty one, where the disk is full


# Captures: which wait to be reduced, and which failures a repro shows already


class Capture(NamedTuple):
    path: Path
    digest: str
    failure: str


def unreduced(folder: Path) -> list[Capture]:
    """The captures of the repro folder that nobody has reduced as they are now, the oldest first."""
    paths = sorted(glob(folder / HIDDEN / "captures", "*.py"), key=lambda path: stamp_of(path)[1])
    return [one for path in paths if (one := read_capture(path)) is not None and reduced(path) != one.digest]


def read_capture(path: Path) -> Capture | None:
    try:
        data = read_regular(path, SCRIPT_LIMIT_BYTES)
        table = header_table(text_of(data))
        spec, nodes = RunSpec.from_table(table), Provenance.from_table(table).nodes or nodes_in(table)
    except (OSError, *DAMAGE):
        return None
    return Capture(path, hashlib.sha1(data, usedforsecurity=False).hexdigest(), failure_of(spec, nodes))


def reduced(capture: Path) -> str | None:
    try:
        return str(json.loads(read_regular(capture.with_suffix(".reduced"), NOTE_LIMIT_BYTES))["digest"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def shown_by(capture: Capture, repros: Iterable[Repro]) -> Repro | None:
    """The repro that shows the failure of the capture already, in a graph of the same size."""
    sound = (one for one in repros if not one.damage)
    return next(
        (one for one in sound if failure_of(one.spec, one.provenance.nodes or one.nodes) == capture.failure),
        None,
    )


def failure_of(spec: RunSpec, nodes: int) -> str:
    """What a capture and the repro that it was reduced to have in common: backend, failure, and the size at capture."""
    failure = spec.expected
    return repr([spec.backend.name, failure.kind, failure.types, failure.message, failure.frames[:1], nodes])


# Who watches a folder of repros, and where its history is kept

LOCK = "watch.lock"
HOLDER = "watch.json"


class AlreadyWatched(MinidbgError):
    """Another daemon watches this folder; ``holder`` is what it said about itself."""

    def __init__(self, folder: Path, holder: Mapping[str, Any]) -> None:
        self.folder, self.holder = folder, holder
        who = f"process {holder['pid']} on {holder['host']}" if holder else "another process"
        since = time.strftime(" since %Y-%m-%d %H:%M:%S", time.localtime(holder["started"])) if holder else ""
        super().__init__(
            f"{folder} is already watched by {who}{since}; 'minidbg status' shows what it does, kill it to take over"
        )


class Lock:
    """The right to watch a folder, held from construction to ``release``, and given back by the kernel if we die."""

    def __init__(self, folder: Path) -> None:
        """Raises AlreadyWatched."""
        hidden = hidden_folder(folder)
        self.lock = filelock.FileLock(hidden / LOCK)
        self.holder = hidden / HOLDER
        try:
            self.lock.acquire(blocking=False)
        except filelock.Timeout:
            raise AlreadyWatched(folder, read_holder(folder)) from None
        about = {
            "pid": os.getpid(), "created": psutil.Process().create_time(), "started": time.time(),
            "host": platform.node(), "command": sys.argv,
        }  # fmt: skip
        replace_text(self.holder, json.dumps(about))

    def release(self) -> None:
        self.holder.unlink(missing_ok=True)
        self.lock.release()


def hidden_folder(folder: Path) -> Path:
    """Where the history of a repro folder is kept, made if it is missing, and kept out of git."""
    hidden = hidden_path(folder)
    hidden.parent.mkdir(parents=True, exist_ok=True)
    hidden.mkdir(mode=0o700, exist_ok=True)
    ignore = hidden / ".gitignore"
    if not ignore.exists():
        replace_file(ignore, b"*\n")
    return hidden


def hidden_path(folder: Path) -> Path:
    """The folder's ``.minidbg``; of a folder that nothing can be written to, a place among the person's own files."""
    hidden = folder / HIDDEN
    if os.access(hidden if hidden.exists() else folder, os.W_OK):
        return hidden
    name = hashlib.sha1(str(folder.absolute()).encode(), usedforsecurity=False).hexdigest()[:16]
    return platformdirs.user_state_path("minidbg") / "watch" / name


def read_holder(folder: Path) -> Mapping[str, Any]:
    try:
        about = json.loads(read_regular(hidden_path(folder) / HOLDER, NOTE_LIMIT_BYTES))
        kinds = {"pid": int, "host": str, "started": float, "created": float}
        return about if all(type(about[name]) is kind for name, kind in kinds.items()) else {}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}


def living_holder(folder: Path) -> Mapping[str, Any]:
    """The daemon that watches the folder now, and whether its process is ``stopped`` (Ctrl-Z, SIGSTOP); empty when there is none.

    A reused process number does not deceive it. Of another machine's processes nobody knows anything.
    """
    about = read_holder(folder)
    if not about or about["host"] != platform.node():
        return about
    try:
        process = psutil.Process(about["pid"])
        if abs(process.create_time() - about["created"]) >= 0.05:
            return {}
        return {**about, "stopped": process.status() == psutil.STATUS_STOPPED}
    except psutil.Error:
        return {}
