"""The watched repros: found, read without a run, told apart when changed; and who watches them.

The daemon holds no torch, so nothing here does.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import filelock

from minidbg.core.errors import MinidbgError
from minidbg.core.files import NOTE_LIMIT_BYTES, glob, open_regular, read_regular, replace_file
from minidbg.core.outcome import Verdict
from minidbg.core.records import MALFORMED, describe_malformed
from minidbg.core.run_spec import BackendRef, RunSpec
from minidbg.core.script_header import HIDDEN, SCRIPT_LIMIT_BYTES, parse_header, text_of
from minidbg.core.settings import VALUE_LIMIT_BYTES
from minidbg.core.text import moment
from minidbg.watch.files import digest_of
from minidbg.workers import leftovers

UNREADABLE_SPEC = RunSpec(BackendRef("", ""))
"""Of a script that is damaged."""


@dataclass(frozen=True, slots=True)
class Repro:
    name: str
    """Its path relative to the folder that is watched; what people and the history call it."""
    path: Path
    digest: str
    """Of the script and the tensors beside it."""
    contents: tuple[str | None, ...] = ()
    """``contents_of`` both files when read, by which a later rescan sees that they are the same."""
    damage: str = ""
    """Why it cannot be run, when it cannot."""
    spec: RunSpec = field(default=UNREADABLE_SPEC, compare=False)
    """How it is run and what it must show, as the header says."""
    expect: Verdict = Verdict.REPRODUCES
    nodes: int = 0
    """Of the graph as it was captured."""
    backend_source: str = ""
    """The text above the model, which ends with ``backend = EXPR``."""

    @property
    def backend_key(self) -> str:
        """Equal for repros that get the same backend in the same way: they share a canary."""
        backend = self.spec.backend
        return repr((self.backend_source, backend.options, backend.mode, backend.paths))

    @property
    def may_hang(self) -> bool:
        return self.spec.expected.kind.traits.endless

    @property
    def backend_modules(self) -> tuple[str, ...]:
        """Top-level modules with the backend's code: the header's, and those its script imports."""
        return tuple(dict.fromkeys([*self.spec.backend.modules, *imported_in(self.backend_source)]))

    @property
    def failure(self) -> tuple[object, ...]:
        """What a capture and the repro that it was reduced to have in common."""
        failure, name = self.spec.expected, self.spec.backend.name
        return name, failure.kind, failure.types, failure.message, failure.frames[:1], self.nodes

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
    """Whether a repro folder's file can be a repro: all but what belongs to pytest or editors."""
    is_python = name.endswith(".py") and not name.startswith(".")
    return is_python and name not in ("conftest.py", "__init__.py")


def repro_name(path: Path, home: Path) -> str:
    return str(path.relative_to(home)) if path.is_relative_to(home) else str(path)


def read_repros(
    paths: Sequence[Path], home: Path, known: Mapping[str, Repro] | None = None, *, parsed: bool = True
) -> dict[str, Repro]:
    """Repros below ``paths`` by name, damaged too. Those of ``known`` with equal files are kept."""
    found: dict[str, Repro] = {}
    for path in find_repros(paths):
        name = repro_name(path, home)
        old = (known or {}).get(name)
        is_same = old is not None and old.contents == contents_of(path)
        repro = old if is_same else read_repro(path, name, parsed=parsed)
        if repro is not None:
            found[name] = repro
    return found


def contents_of(path: Path) -> tuple[str | None, ...]:
    """Digests of a script and of the tensors beside it, as they are now."""
    script = str(path)  # asked for after each run: no Path
    return digest_of(script), digest_of(os.path.splitext(script)[0] + ".safetensors")


def digest_of_files(path: Path, script: bytes) -> str:
    """Of a script and tensors beside it, but not what its header tells people. Raises OSError."""
    total = hashlib.sha1(re.sub(rb"(?m)^# expect = .*\n", b"", script), usedforsecurity=False)
    beside = path.with_suffix(".safetensors")
    with contextlib.suppress(FileNotFoundError), open_regular(beside) as tensors:
        status = os.fstat(tensors.fileno())
        if status.st_size > VALUE_LIMIT_BYTES:  # not read: a sparse one of a petabyte is soon made
            total.update(f"{status.st_size} {status.st_mtime_ns}".encode())
        else:
            hashlib.file_digest(tensors, lambda: total)
    return total.hexdigest()


def read_repro(path: Path, name: str, *, parsed: bool = True) -> Repro | None:
    """The repro at ``path``, or None when it has just gone. Nothing in it is run; not ``parsed``,
    which is most of the work, its header alone is read."""
    now = contents_of(path)  # before reading: a change in between is seen at the next rescan
    digest = ""
    try:
        data = read_regular(path, SCRIPT_LIMIT_BYTES)
        digest = digest_of_files(path, data)
        text = text_of(data)
        header = parse_header(text, path)
        return Repro(
            name, path, digest, now, spec=header.spec, expect=Verdict(header.expect),
            nodes=header.provenance.nodes or header.nodes,
            backend_source=backend_source(text) if parsed else "",
        )  # fmt: skip
    except FileNotFoundError:
        return None
    except OSError as error:
        which = "" if error.filename in (None, str(path)) else f"{Path(error.filename).name} "
        damage = f"{which}cannot be read: {error.strerror or error}"
    except MALFORMED as error:
        damage = f"damaged: {describe_malformed(error)}"
    return Repro(name, path, digest, now, damage=damage)


def backend_source(text: str) -> str:
    """The script's imports, what was copied, ``backend = EXPR``; without its docstring."""
    nodes = [node for node in ast.parse(text).body if not isinstance(node, ast.Expr)]
    bound = [[node, *getattr(node, "targets", ())] for node in nodes]
    names = [{getattr(one, "name", getattr(one, "id", "")) for one in found} for found in bound]
    ends = [node.end_lineno or 0 for node, found in zip(nodes, names, strict=True) if "backend" in found]
    return "\n".join(text.splitlines()[nodes[0].lineno - 1 : max(ends)]) if ends else ""


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
    """The first one's folder, whose ``.minidbg`` has the history. Raises MinidbgError."""
    for path in paths:
        if not path.exists():
            raise MinidbgError(f"{path}: no such file or folder; give repro scripts or folders of them")
    first = paths[0]
    return first if first.is_dir() else first.parent


# Captures: which wait to be reduced, and which failures a repro shows already


def unreduced(folder: Path) -> list[Repro]:
    """The repro folder's captures that nobody has reduced since they were written, oldest first."""

    def written(path: Path) -> int:
        return path.stat().st_mtime_ns if os.path.isfile(path) else 0

    paths = sorted(glob(folder / HIDDEN / "captures", "*.py"), key=written)
    waiting = (path for path in paths if written(path) > written(path.with_suffix(".reduced")))
    captures = (read_repro(path, path.stem) for path in waiting)
    return [one for one in captures if one is not None and not one.damage]


def shown_by(capture: Repro, repros: Iterable[Repro]) -> Repro | None:
    """The repro that shows the failure of the capture already, in a graph of the same size."""
    return next((one for one in repros if not one.damage and one.failure == capture.failure), None)


# Who watches a folder of repros, and where its history is kept

LOCK, HOLDER = "watch.lock", "watch.json"


class Lock:
    """The right to watch a folder until ``release``; given back by the kernel if we die."""

    def __init__(self, folder: Path) -> None:
        """Raises MinidbgError where another daemon watches it."""
        hidden = hidden_folder(folder)
        self.lock = filelock.FileLock(hidden / LOCK)
        self.holder = hidden / HOLDER
        try:
            self.lock.acquire(blocking=False)
        except filelock.Timeout:
            who = watcher_of(folder) or "watched by another process"
            raise MinidbgError(f"{folder} is already {who}; kill it to take over") from None
        pid = os.getpid()
        about = {"pid": pid, "started_ms": leftovers.started_ms(pid), "host": platform.node()}
        replace_file(self.holder, json.dumps(about).encode())

    def release(self) -> None:
        self.holder.unlink(missing_ok=True)
        self.lock.release()


def hidden_folder(folder: Path) -> Path:
    """Where a repro folder's history is, made if missing, kept out of git. Raises MinidbgError."""
    hidden = folder / HIDDEN
    try:
        hidden.mkdir(mode=0o700, exist_ok=True)
        if not (hidden / ".gitignore").exists():
            replace_file(hidden / ".gitignore", b"*\n")
    except OSError as error:
        why = f"{hidden} cannot be written: {error.strerror or error}"
        raise MinidbgError(f"{why}; copy the repros into a folder of yours") from error
    return hidden


def watcher_of(folder: Path) -> str:
    """``watched by process 12 on box since ...``; empty where nobody watches it now. Of those on
    other machines nothing is known."""
    try:
        about = json.loads(read_regular(folder / HIDDEN / HOLDER, NOTE_LIMIT_BYTES))
        pid, host, started_ms = int(about["pid"]), str(about["host"]), int(about["started_ms"])
        if host == platform.node() and leftovers.has_ended(pid, started_ms):
            return ""
        return f"watched by process {pid} on {host} since {moment(started_ms / 1000)}"
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return ""
