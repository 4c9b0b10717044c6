"""What becomes of a candidate, and what a hunt keeps on disk: results, failures, and the corpus for the next time.

In ``minidbg_repros/.minidbg/hunt/BACKEND``: ``head.json`` says which hunt this is, ``results.jsonl`` has a line for each
candidate, ``cases.jsonl`` one for each reduction, ``corpus.json`` the candidates that failed in the hunt before. Lines are
appended as things happen, so that a hunt which was killed goes on where it was.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from minidbg.repro.folder import hidden
from minidbg.words.errors import MinidbgError
from minidbg.words.files import replace_file
from minidbg.words.json_lines import json_objects
from minidbg.words.run_spec import BackendRef

MOST_IN_CORPUS = 500


class CellState(enum.StrEnum):
    """What became of a candidate; in a cell of the table the worst of its samples stands."""

    OK = "ok"
    UNSUPPORTED = "unsupported"
    FAILS = "fails"
    WRONG = "wrong"
    CRASHED = "crashed"
    HANGS = "hangs"
    HANDED_BACK = "handed back"
    SKIPPED = "skipped"
    NONE = "none"
    """There is no such sample."""

    @property
    def rank(self) -> int:
        """How bad it is: of two states of one cell the higher counts."""
        return RANKS.index(self)

    @property
    def is_failure(self) -> bool:
        return self.rank >= RANKS.index(CellState.FAILS)


RANKS = [
    CellState.NONE, CellState.SKIPPED, CellState.OK, CellState.HANDED_BACK, CellState.UNSUPPORTED, CellState.FAILS, CellState.WRONG, CellState.HANGS,
    CellState.CRASHED,
]  # fmt: skip
SHOWN = [state for state in CellState if state is not CellState.NONE]


@dataclass(slots=True)
class DistinctFailure:
    """Failures that are one: the first that was met, and what its reduction gave."""

    key: str
    state: CellState
    message: str
    first: str
    """The candidate that showed it first."""
    count: int = 1
    ops: dict[str, None] = field(default_factory=dict)
    capture: Path | None = None
    repro: Path | None = None
    line: str = ""
    """What the reduction said."""
    settled: bool = False
    """Whether a reduction has ended, with a repro or without."""
    confirmed: bool = False
    """Whether it failed in a process of its own, which is what a verified repro shows."""
    merged_into: str = ""
    """The key of the case that has the same repro."""
    targets: tuple[str, ...] = ()
    family: str = ""

    def is_like(self, other: DistinctFailure) -> bool:
        """Whether both are one failure, as far as their repros tell: the same script, or calls and signature that are equal."""
        alike = bool(self.targets) and (self.targets, self.family) == (other.targets, other.family)
        return self.repro == other.repro or alike

    @property
    def text(self) -> str:
        return self.message.partition("\n")[0]

    def ops_text(self, most: int) -> str:
        """``add, mul and 3 more``."""
        more = f" and {len(self.ops) - most} more" if len(self.ops) > most else ""
        return ", ".join(list(self.ops)[:most]) + more

    def to_json(self) -> dict[str, Any]:
        return {
            "case": self.key,
            "state": str(self.state),
            "message": self.message,
            "count": self.count,
            "ops": list(self.ops),
            "first": self.first,
            "repro": str(self.repro) if self.repro else None,
            "capture": str(self.capture) if self.capture else None,
            "result": self.line,
        }


@dataclass(slots=True)
class HuntFolder:
    """The state of one hunt, in memory and on disk. Only the lines that came since the last look are read."""

    place: Path
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The latest record of each candidate, by id."""
    found: dict[str, DistinctFailure] = field(default_factory=dict)
    corpus: list[dict[str, Any]] = field(default_factory=list)
    ends: dict[tuple[str, ...], int] = field(default_factory=dict)
    """How many samples a cell has, where that is known."""
    resumed: bool = False
    read_bytes: int = 0
    seconds: float = 0.0
    """That the candidates took, all runs of this hunt together."""

    @property
    def results_file(self) -> Path:
        return self.place / "results.jsonl"

    @property
    def cases_file(self) -> Path:
        return self.place / "cases.jsonl"

    @classmethod
    def open(
        cls, folder: Path, backend: BackendRef, head: Mapping[str, Any], *, fresh: bool = False
    ) -> HuntFolder:
        """The state of the hunt that ``head`` describes: an unfinished one goes on, any other begins anew with its corpus."""
        slug = re.sub(r"\W+", "_", backend.name)[:60]
        digest = hashlib.sha1(
            repr((backend.expression, dict(backend.options), backend.mode)).encode(), usedforsecurity=False
        ).hexdigest()[:6]
        place = hidden(folder, "hunt", f"{slug}_{digest}")
        store = cls(place)
        wanted = {**head, "fingerprint": fingerprint(backend)}
        store.read()
        if not fresh and read_object(place / "head.json") == {**wanted, "ended": None}:
            store.resumed = bool(store.results)
            store.corpus = list(read_object(place / "corpus.json").get("candidates", []))
            return store
        store.begin_anew(wanted)
        return store

    def begin_anew(self, head: Mapping[str, Any]) -> None:
        """Forget the results; the candidates that failed become the corpus."""
        failing = [one["candidate"] for one in self.results.values() if CellState(one["state"]).is_failure]
        older = read_object(self.place / "corpus.json").get("candidates", [])
        self.corpus = unique([*failing, *older])[:MOST_IN_CORPUS]
        replace_file(self.place / "corpus.json", json.dumps({"candidates": self.corpus}).encode())
        for file in (self.results_file, self.cases_file):
            file.unlink(missing_ok=True)
        replace_file(self.place / "head.json", json.dumps({**head, "ended": None}).encode())
        self.results, self.found, self.ends, self.read_bytes, self.seconds = {}, {}, {}, 0, 0.0

    def end(self) -> None:
        """All was tried: the next hunt begins anew."""
        head = read_object(self.place / "head.json")
        replace_file(self.place / "head.json", json.dumps({**head, "ended": True}).encode())

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """A block in which no other process hunts here. Raises MinidbgError when one does."""
        lock = FileLock(self.place / "lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise MinidbgError(
                f"another process hunts in {self.place}; wait for it, or name another folder with --dir"
            ) from None
        try:
            yield
        finally:
            lock.release()

    # ---- results

    def read(self) -> None:
        """Take in what children have written since the last look."""
        known = len(self.found)
        for record in self.new_records():
            self.results[record["id"]] = record
            self.seconds += record.get("seconds", 0.0)
            if record["state"] == CellState.NONE and "op" in record["candidate"]:
                op, dtype, device, number, *_ = record["candidate"].values()
                self.ends[op, dtype, device] = min(number, self.ends.get((op, dtype, device), number))
            if "key" in record:
                self.add(record)
        if not self.read_bytes or len(self.found) > known:
            self.read_cases()

    def new_records(self) -> Iterator[dict[str, Any]]:
        try:
            with open(self.results_file, "rb") as file:
                file.seek(self.read_bytes)
                data = file.read()
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self.read_bytes += len(whole)
        yield from json_objects(whole.decode(errors="replace").splitlines())

    def add(self, record: Mapping[str, Any]) -> None:
        """Count a failure, which may be a new one."""
        name = record["candidate"].get("op", "random graphs")
        known = self.known_as(record)
        if known is not None:
            known.count += 1
            known.ops[name] = None
            if known.capture is None and record.get("capture"):
                known.capture = Path(record["capture"])
            return
        self.found[record["key"]] = DistinctFailure(
            key=record["key"],
            state=CellState(record["state"]),
            message=record.get("message", ""),
            first=record["id"],
            ops={name: None},
            capture=Path(record["capture"]) if record.get("capture") else None,
            line=record.get("refused", ""),
            settled="refused" in record,
            confirmed="refused" in record,  # it has no form as a script, and was seen twice
            family=record.get("family", ""),
        )

    def known_as(self, record: Mapping[str, Any]) -> DistinctFailure | None:
        """The case of which ``record`` is one more: of its key, or a repro's whose every call a random graph has."""
        known = self.found.get(record["key"])
        if known is None and "op" not in record["candidate"]:
            calls = set(record.get("targets", ()))
            for one in self.found.values():
                if one.repro and one.family == record.get("family") and calls.issuperset(one.targets):
                    return self.final(one)
        return self.final(known) if known else None

    def final(self, found: DistinctFailure) -> DistinctFailure:
        return self.found[found.merged_into] if found.merged_into else found

    # ---- cases

    def settle(self, key: str, answer: Mapping[str, Any]) -> None:
        """What the reduction of a case gave, on disk and here."""
        append(self.cases_file, {"case": key, **answer})
        self.take_in(key, answer)

    def read_cases(self) -> None:
        """Take in the reductions of earlier runs."""
        text = self.cases_file.read_text(encoding="utf-8") if self.cases_file.exists() else ""
        for answer in json_objects(text.splitlines()):
            if answer["case"] in self.found and not self.found[answer["case"]].settled:
                self.take_in(answer["case"], answer)

    def take_in(self, key: str, answer: Mapping[str, Any]) -> None:
        found = self.found[key]
        found.settled, found.line = True, str(answer.get("line") or answer.get("refused") or "")
        found.repro = Path(answer["path"]) if answer.get("path") else None
        found.confirmed = found.repro is not None
        found.targets = tuple(answer.get("targets") or ())
        others = (
            one for one in self.found.values() if one is not found and not one.merged_into and one.repro
        )
        same = next((one for one in others if found.repro and found.is_like(one)), None)
        if same is not None:
            found.merged_into = same.key
            same.count += found.count
            same.ops |= found.ops

    def cases(self) -> list[DistinctFailure]:
        """The distinct failures, each once: those with a repro first, then those without, refuted ones left out."""
        distinct = [one for one in self.found.values() if not one.merged_into and not self.is_refuted(one)]
        return sorted(distinct, key=lambda one: (one.repro is None, -one.state.rank, one.first))

    def refuted(self) -> list[DistinctFailure]:
        """What failed in a batch and not again: no failure, or a capture that does not hold what the failure needs."""
        return [one for one in self.found.values() if self.is_refuted(one)]

    def is_refuted(self, found: DistinctFailure) -> bool:
        """Whether no form of it failed again in a process of its own: then it does not count as a failure."""
        return found.settled and not found.confirmed

    def state(self, record: Mapping[str, Any]) -> CellState:
        """The state of a candidate, in the light of what the reduction of its failure said."""
        state = CellState(record["state"])
        found = self.found.get(record.get("key", ""))
        return CellState.SKIPPED if found is not None and self.is_refuted(self.final(found)) else state


def append(path: Path, record: Mapping[str, Any]) -> None:
    write_at_once(path, json.dumps(record, default=str) + "\n", os.O_APPEND)


def write_at_once(path: Path, text: str, flag: int) -> None:
    """Write the text in one call: several children append to a file, and any may be killed. Nothing is flushed to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | flag, 0o664)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def unique(candidates: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({json.dumps(one, sort_keys=True): one for one in candidates}.values())


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in the file; empty where there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def fingerprint(backend: BackendRef) -> str:
    """What changes when the backend's code does: names, sizes and times of the files of its modules."""
    digest = hashlib.sha1(torch.__version__.encode(), usedforsecurity=False)
    modules = [*backend.modules, *(["torch._inductor"] if backend.name == "inductor" else [])]
    for file in sorted({*backend.files, *files_of(modules)}):
        try:
            status = os.stat(file)
        except OSError:
            continue
        digest.update(f"{file} {status.st_size} {status.st_mtime_ns}\n".encode())
    digest.update(backend.embedded.encode())
    return digest.hexdigest()[:16]


def files_of(modules: Sequence[str]) -> Iterator[str]:
    """The Python files and libraries of the modules."""
    for name in modules:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            continue
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            for path in Path(folder).rglob("*"):
                if path.suffix in (".py", ".so"):
                    yield str(path)
        if spec is not None and spec.origin:
            yield spec.origin
