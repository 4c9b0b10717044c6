"""What ``minidbg list`` and ``status`` say of each repro, kept in ``.minidbg/summaries`` so that a script is read once.

Nothing false may come out of it: a summary counts only for files whose size, times and inode are those that it was made
of, and none is kept of files so young that they may change again without another time (``snapshot.RACY_NS``). A file of
another version of this module, or one that is not whole, is as good as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from time import time_ns
from typing import Any

from minidbg.watch.repros import (
    Repro,
    find_repros,
    hidden_folder,
    hidden_path,
    name_of,
    read_repro,
    stamp_of,
)
from minidbg.watch.snapshot import RACY_NS
from minidbg.words.files import LOG_LIMIT_BYTES, read_regular, replace_file
from minidbg.words.json_lines import json_objects
from minidbg.words.outcome import Verdict
from minidbg.words.records import check_kinds
from minidbg.words.script_header import HIDDEN

FILE = "summaries"
VERSION = "minidbg summaries 1"
"""Another one when something else is read out of a script, or another sentence said of a damaged one."""
VERIFIED = "verified.jsonl"
"""Written by ``repro.folder``, which needs torch."""
KEPT_FROM = 100
"""Repros. Fewer are read as quickly as the file, and a folder that is only looked at stays as it is."""
LIMIT_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Summary:
    """One line of ``minidbg list``, without what the history says."""

    name: str
    damage: str
    device: str
    kind: str
    backend: str
    expect: str
    digest: str

    @classmethod
    def of(cls, repro: Repro) -> Summary:
        """Of a repro that was read."""
        spec = repro.spec
        kind = "" if repro.damage else str(spec.expected.kind)
        return cls(
            repro.name, repro.damage, spec.device, kind, spec.backend.name, str(repro.expect), repro.digest
        )


def summaries(paths: Sequence[Path], home: Path) -> dict[str, tuple[Path, Summary]]:
    """Each repro below ``paths`` by name, with where it lies. Scripts that are as they were are not read again."""
    known, now_ns = read_kept(home), time_ns()
    found: dict[str, tuple[Path, Summary]] = {}
    kept: dict[str, list[Any]] = {}
    fresh = 0
    for path in find_repros(paths):
        name, stamp = name_of(path, home), list(stamp_of(path))
        entry = known.get(name)
        if entry is not None and entry[0] == stamp:
            summary = entry[1]
        elif (repro := read_repro(path, name)) is not None:
            summary, stamp = Summary.of(repro), list(repro.stamp)
            fresh += 1
        else:
            continue  # it has just gone
        found[name] = path, summary
        # times of both files; what could not be read may be readable the next time
        is_young = now_ns - max(stamp[1], stamp[2], stamp[5], stamp[6]) < RACY_NS
        if summary.digest and not summary.damage and not is_young:
            kept[name] = [stamp, [getattr(summary, one.name) for one in fields(Summary)]]
    if fresh and len(kept) >= KEPT_FROM:
        keep(home, kept)
    return found


def verified_in(home: Path) -> Mapping[str, Mapping[str, Any]]:
    """When the repros of ``home`` were published, and the digest of what was: each had just failed in a fresh interpreter."""
    try:
        lines = read_regular(home / HIDDEN / VERIFIED, LOG_LIMIT_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return {}
    kinds = {"repro": str, "at": float, "digest": str}
    sound = (
        one for one in json_objects(lines) if all(type(one.get(name)) is kind for name, kind in kinds.items())
    )
    return {one["repro"]: one for one in sound}


def read_kept(home: Path) -> Mapping[str, tuple[list[int], Summary]]:
    """Stamp and summary by name; empty when there is no file, or not a whole one of this version."""
    try:
        head, _, body = read_regular(hidden_path(home) / FILE, LIMIT_BYTES).partition(b"\n")
        if head != heading(body):
            return {}
        return {name: (stamp, sound(values)) for name, (stamp, values) in json.loads(body).items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def sound(values: Sequence[Any]) -> Summary:
    """A summary of these values. Raises ValueError or TypeError where there can be none."""
    summary = Summary(*values)
    check_kinds(summary)
    Verdict(summary.expect)
    return summary


def keep(home: Path, kept: Mapping[str, Any]) -> None:
    """Write the file; where that cannot be, the scripts are read again the next time."""
    body = json.dumps(kept, separators=(",", ":")).encode()
    with contextlib.suppress(OSError):
        replace_file(hidden_folder(home) / FILE, heading(body) + b"\n" + body, private=True)


def heading(body: bytes) -> bytes:
    """The first line: a file of which a byte has flipped is not whole."""
    return f"{VERSION} {hashlib.sha1(body, usedforsecurity=False).hexdigest()}".encode()
