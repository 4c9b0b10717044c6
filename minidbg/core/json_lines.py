"""JSON and phases among other lines: what a process says to another one that reads its stdout, and logs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def last_json(text: str) -> Mapping[str, Any] | None:
    return next(json_objects(reversed(text.splitlines())), None)


def json_objects(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The lines that are JSON objects; others, and those that were cut off by a kill or a full disk, are passed over."""
    for line in lines:
        if line.startswith("{"):
            with contextlib.suppress(ValueError, RecursionError):
                yield json.loads(line)


def last_phase(text: str) -> str:
    """The last phase that a run has named on stdout, as ``phase compile forward``; empty without one."""
    phases = [line.removeprefix("phase ") for line in text.splitlines() if line.startswith("phase ")]
    return phases[-1] if phases else ""
