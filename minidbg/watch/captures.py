"""The captures of a repro folder: which of them wait to be reduced, and which failures a repro shows already. Needs no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from minidbg.watch.repros import Repro, header_table, stamp_of
from minidbg.words.files import NOTE_LIMIT_BYTES, glob, read_regular
from minidbg.words.run_spec import DAMAGE, Provenance, RunSpec
from minidbg.words.script_header import HIDDEN, SCRIPT_LIMIT_BYTES, nodes_in, text_of


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
