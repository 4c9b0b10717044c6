"""The replay log: every question of a reduction and its answer, on disk before the next one is asked.

A reduction is deterministic, so one that was ended goes on by asking the same questions in the same order: those of
the log are answered from it, without a run. The log is one JSON object a line: a head, the answers, and an end once
a repro was published. What cannot be read is set aside, and named.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from minidbg import torch_internals
from minidbg.fx.case import Case
from minidbg.fx.copying import storage_key
from minidbg.reduction.result import ReductionResult
from minidbg.source.size import canonical_text
from minidbg.words.files import LOG_LIMIT_BYTES, read_regular, replace_file
from minidbg.words.outcome import Outcome

SCHEMA = 1
FILE = "replay.jsonl"
FEW = 8
"""Elements up to which a tensor's values tell it from another one."""


@dataclass(slots=True)
class ReplayLog:
    """The log of one reduction. ``path`` None: nothing is kept (no folder could be written)."""

    path: Path | None
    head: dict[str, Any] = field(default_factory=dict)
    entries: list[dict[str, Any]] = field(default_factory=list)
    """Answers of the reduction that this one goes on from."""
    complaint: str = ""
    """What was wrong with the file that was there."""
    used: set[int] = field(default_factory=set)
    """Which of ``entries`` were an answer."""
    is_replaying: bool = True
    """Whether all questions so far were answered by it."""

    def recorded(self, digest: str) -> Outcome | None:
        """The answer that the log has for the question, or None.

        Questions may come in another order than they were asked: what is asked ahead depends on how long questions take. One that is asked
        several times has its answers in their order.
        """
        for index, entry in enumerate(self.entries):
            if entry["digest"] == digest and index not in self.used:
                self.used.add(index)
                return Outcome.from_json(entry["outcome"])
        self.is_replaying = False
        return None

    def append(self, entry: Mapping[str, Any]) -> None:
        """Put one answer on disk. A full disk or a read-only folder only costs the ability to go on later."""
        if self.path is None:
            return
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            self.path = None

    def write_anew(self) -> None:
        """Put the head and the entries that count on disk, in the place of what is there."""
        if self.path is None:
            return
        lines = [json.dumps(one) + "\n" for one in (self.head, *self.entries)]
        try:
            replace_file(self.path, "".join(lines).encode())
        except OSError:
            self.path = None

    def start_over(self) -> None:
        """Forget all answers: they are about a backend that has changed."""
        self.entries, self.used, self.is_replaying = [], set(), True
        self.write_anew()


def open_log(folder: Path | None, case: Case, *, just_seen: bool) -> ReplayLog:
    """The log in ``folder`` for ``case``: one to go on from when it is about the same case and not at its end.

    ``just_seen``: whether the whole case failed a moment ago; a log that says so is believed.
    """
    head = {
        "schema": SCHEMA,
        "case": digest_of(case),
        "just_seen": just_seen,
        "torch": torch.__version__,
        "began": time.time(),
    }
    path = folder / FILE if folder else None
    earlier, entries, complaint = read_log(path) if path else ({}, [], "")
    same = all(earlier.get(name) == head[name] for name in ("schema", "case", "torch"))
    if not same or any("end" in entry for entry in entries):
        entries = []
    elif earlier.get("just_seen"):
        head["just_seen"] = True
    log = ReplayLog(path, head, entries, complaint)
    log.write_anew()
    return log


def read_log(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]], str]:
    """Head and entries of the log at ``path``, as far as they can be read, and what is wrong with the rest.

    A damaged log is kept beside it as ``*.damaged``.
    """
    try:
        data = read_regular(path, LOG_LIMIT_BYTES)
    except OSError:
        return {}, [], ""
    lines = data.split(b"\n")
    found: list[dict[str, Any]] = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            found.append(checked(json.loads(line), head=not found))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            aside = path.with_name(path.name + ".damaged")
            with contextlib.suppress(OSError):
                aside.write_bytes(data)
            complaint = (
                f"line {number} of {path} cannot be read ({error}); the file was set aside as {aside.name}"
            )
            break
    else:
        complaint = ""  # what follows the last line break was being written: nothing is lost
    return (found[0] if found else {}), found[1:], complaint


def last_result(folder: Path, *, since: float = 0.0) -> ReductionResult | None:
    """What the reduction in ``folder`` ended with, if it came to an end and began ``since`` then, in seconds of the epoch."""
    head, entries, _ = read_log(folder / FILE)
    began = head.get("began", 0.0)
    for entry in entries[-1:] if isinstance(began, float) and began >= since else ():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            return ReductionResult.from_json(entry["written"])
    return None


def checked(value: Any, *, head: bool) -> dict[str, Any]:
    """``value`` if it may stand in a log. Raises KeyError, TypeError or ValueError."""
    if not isinstance(value, dict):
        raise TypeError("no JSON object")
    if head:
        return {**value, "schema": value["schema"]}
    if "end" not in value:
        Outcome.from_json(value["outcome"])
        value["digest"]
    return value


def digest_of(case: Case) -> str:
    """Equal for the same question in another process. 32 hex digits.

    Values of large tensors do not count: the order of the questions tells apart what differs in them only.
    """
    digest = hashlib.blake2b(digest_size=16)
    parts = [
        canonical_text(case.graph_module),
        case.backend.expression,
        repr(sorted(case.backend.options.items())),
        str(case.backend.mode),
        str(case.spec.call),
        repr((case.spec.dynamic, case.spec.dynamic_dims, case.spec.backward)),
        repr(case.signature.to_table() if case.signature else None),
        repr(
            (
                case.spec.context.grad,
                case.spec.context.inference,
                case.spec.context.autocast,
                case.spec.context.deterministic,
            )
        ),
        *map(input_in_words, case.inputs),
        repr(aliases(case.inputs)),
    ]
    for part in parts:
        digest.update(part.encode("utf-8", "backslashreplace") + b"\0")
    return digest.hexdigest()


def input_in_words(value: Any) -> str:
    """An input in words that are the same in every process."""
    if not isinstance(value, torch.Tensor):
        return f"{type(value).__name__} {value!r}" if isinstance(value, int | float | bool | None) else ""
    kind = f"{value.dtype} {tuple(value.shape)} {value.requires_grad} {value.device}"
    if value.layout is not torch.strided or value.is_meta or value.is_quantized:
        return kind
    value = value.detach() if (plain := torch_internals.in_memory(value)) is None else plain
    values = value.detach().tolist() if value.numel() <= FEW and not value.dtype.is_floating_point else ""
    return f"{kind} {value.stride()} {values}"


def aliases(inputs: tuple[Any, ...]) -> list[int]:
    """For each input the index of the first one that shares its storage."""
    first: dict[Any, int] = {}
    return [
        first.setdefault(storage_key(value) if isinstance(value, torch.Tensor) else index, index)
        for index, value in enumerate(inputs)
    ]
