"""The hunt: batches of samples go to children of the forkserver, then each distinct failure is reduced to a verified repro.

This process runs no backend. Batches and reductions are asked by threads; the main thread takes in what they bring.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from minidbg import workers
from minidbg.extras.hunt.judging import State
from minidbg.extras.hunt.samples import Cell
from minidbg.reduction.result import Limits
from minidbg.repro.cases import backend_named
from minidbg.torch_internals import OP_SAMPLES
from minidbg.words.errors import MinidbgError
from minidbg.words.json_lines import json_objects
from minidbg.words.text import last_line, plural
from minidbg.workers import ChildResult

IN_BATCH = 60
"""At most: each of the jobs gets one."""
REDUCE_SECONDS = 120.0
HANGS_ASKED, HANG_SECONDS = 4, 10.0
"""Questions of the reduction of a hang, each of which takes the whole time limit, and that limit."""
GRACE_S, START_S, LOOK_S, TELL_EVERY_S = 30.0, 300.0, 0.5, 20.0

Record: TypeAlias = dict[str, Any]
"""What became of a sample: ``cell`` and ``id``; ``state`` and ``text`` where there is such a sample; see ``judging.record_of``."""


@dataclass(slots=True)
class Failure:
    """Failures that are one: the first that was met, and what its reduction gave."""

    state: State
    text: str
    first: str
    capture: str | None = None
    refused: str = ""
    """Why there is no capture, or no repro."""
    repro: str | None = None
    ops: Counter[str] = field(default_factory=Counter)

    @property
    def is_refuted(self) -> bool:
        return self.capture is not None and bool(self.refused)


@dataclass
class Hunt:
    """One hunt. After ``run`` the ``records`` and ``failures`` have all that is known, also when it was interrupted."""

    backend: str
    folder: Path
    value_limit_bytes: int
    tell: Callable[[str], object]
    ops: Sequence[str] = ()
    dtypes: Sequence[str] = ()
    devices: Sequence[str] = ("cpu",)
    options: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    """No batch is begun after that."""
    samples: int = 2
    """Of each cell at most."""
    jobs: int = 1
    call_seconds: float = 30.0
    cells: list[Cell] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    failures: dict[str, Failure] = field(default_factory=dict)
    """By their keys."""
    interrupted: bool = False

    def run(self) -> None:
        """Raises MinidbgError when the backend or torch's samples cannot be had."""
        began = time.monotonic()
        ref = backend_named(self.backend).ref
        self.prepare = partial(
            workers.Preparation, imports=(*ref.modules, OP_SAMPLES), warm="inductor" if ref.name == "inductor" else "aot"
        )  # fmt: skip
        with (
            workers.own_kernel_cache(),
            tempfile.TemporaryDirectory(prefix="minidbg-") as scratch,
            ThreadPoolExecutor(self.jobs) as pool,
        ):
            plan = {"ops": self.ops, "dtypes": self.dtypes, "devices": self.devices}
            self.cells = [Cell(*cell) for cell in answer_of(self.asked("cells", plan, START_S))]
            every = [(cell, number) for number in range(self.samples) for cell in self.cells]
            ends = began + (self.seconds or float("inf"))
            size = max(1, min(IN_BATCH, len(every) // self.jobs))
            batches = (
                partial(self.batch, every[at : at + size], Path(scratch, str(at)), ends)
                for at in range(0, len(every), size)
            )
            for record in self.work_off(pool, batches):
                self.take_in(record)
            captured = [one for one in self.failures.values() if one.capture is not None]
            list(self.work_off(pool, (partial(self.reduce, one) for one in captured)))

    def work_off(
        self, pool: ThreadPoolExecutor, tasks: Iterable[Callable[[], list[Record]]]
    ) -> Iterator[Record]:
        """What the tasks bring, done in threads; Ctrl-C ends what they wait for."""
        left: set[Future[list[Record]]] = {pool.submit(task) for task in tasks}
        told = time.monotonic()
        try:
            while left:
                done, left = wait(left, timeout=LOOK_S, return_when=FIRST_COMPLETED)
                for future in done:
                    yield from future.result()
                if time.monotonic() > told + TELL_EVERY_S:
                    told = time.monotonic()
                    self.tell(self.standing)
        except BaseException:
            self.interrupted = True
            for future in left:
                future.cancel()
            while wait(left, timeout=0.0).not_done:
                workers.interrupt_questions()
                workers.end_server()
                wait(left, timeout=LOOK_S)
            raise

    def take_in(self, record: Record) -> None:
        self.records.append(record)
        if "key" in record:
            failure = self.failures.setdefault(
                record["key"], Failure(State(record["state"]), record["text"], record["id"], refused=record.get("refused", ""))
            )  # fmt: skip
            failure.capture = failure.capture or record.get("capture")
            failure.ops[record["cell"][0]] += 1

    # ---- asking children

    def asked(
        self, function: str, argument: Mapping[str, Any], seconds: float, stream: Any = None
    ) -> ChildResult:
        if self.interrupted:
            raise KeyboardInterrupt
        common = {
            "backend": self.backend, "options": dict(self.options), "folder": str(self.folder),
            "known": [key for key, one in list(self.failures.items()) if one.capture],
            "call_seconds": self.call_seconds, "value_limit_bytes": self.value_limit_bytes,
        }  # fmt: skip
        return workers.call_in_server(
            self.prepare(f"minidbg.extras.hunt.judging:{function}"), {**common, **argument},
            seconds=seconds, memory_bytes=workers.memory_limit(), stream=stream,
        )  # fmt: skip

    def batch(self, batch: Sequence[tuple[Cell, int]], place: Path, ends: float) -> list[Record]:
        records: list[Record] = []
        while batch and time.monotonic() < ends:
            seconds = len(batch) * self.call_seconds + GRACE_S
            done = self.asked("run_batch", {"batch": batch, "results": str(place)}, seconds)
            new = list(json_objects(place.read_text(encoding="utf-8").splitlines())) if place.exists() else []
            place.unlink(missing_ok=True)
            records, batch = records + new, batch[len(new) :]
            if not done.answered and batch:
                records.append(self.after_death(batch[0], done))
                batch = batch[1:]
        return records

    def after_death(self, sample: tuple[Cell, int], done: ChildResult) -> Record:
        """The record of the sample at which a child ended. Raises MinidbgError for a request that cannot be met."""
        if last_line(done.error).startswith("minidbg."):
            answer_of(done)
        if done.signal == signal.SIGALRM:  # our own time limit
            done = replace(done, timed_out=True, signal=None)
        told = self.asked(
            "keep_death", {"sample": sample, "done": asdict(done)}, 2 * self.call_seconds + GRACE_S
        )
        said = {"state": State.SKIPPED, "text": "ends the process, and cannot be rebuilt"}
        return dict(told.value) if told.answered else {"cell": sample[0], "id": str(sample), **said}

    def reduce(self, failure: Failure) -> list[Record]:
        limits = Limits(
            REDUCE_SECONDS, call_seconds=self.call_seconds, value_limit_bytes=self.value_limit_bytes
        )
        if failure.state is State.HANGS:
            limits = replace(limits, max_calls=HANGS_ASKED, call_seconds=min(self.call_seconds, HANG_SECONDS))
        argument = {"path": failure.capture, "limits": asdict(limits)}
        with open(os.devnull, "w") as stream:
            done = self.asked("reduced", argument, REDUCE_SECONDS + GRACE_S, stream)
        answer = done.value if done.answered else {"refused": done.why_no_answer}
        failure.repro = answer.get("path")
        failure.refused = "" if failure.repro else str(answer.get("refused") or answer.get("verdict"))
        return []

    # ---- what is known

    def table(self) -> dict[Cell, Record]:
        worst: dict[Cell, Record] = {}
        for record in (one for one in self.records if "state" in one):
            failure = self.failures.get(record.get("key", ""))
            state = State.SKIPPED if failure is not None and failure.is_refuted else State(record["state"])
            cell = Cell(*record["cell"])
            if cell not in worst or state.rank > worst[cell]["state"].rank:
                worst[cell] = {**record, "state": state}
        return worst

    def distinct(self) -> list[Failure]:
        return sorted(
            (one for one in self.failures.values() if not one.is_refuted), key=lambda one: -one.state.rank
        )

    @property
    def standing(self) -> str:
        """``120 of 6,005 op x dtype pairs, 3 failures``."""
        pairs = plural(len(self.cells), "op x dtype pair")
        return f"{len(self.table()):,} of {pairs}, {plural(len(self.distinct()), 'failure')}"


def answer_of(done: ChildResult) -> Any:
    """What a child has answered. Raises MinidbgError with what it said instead: a request that cannot be met."""
    if done.answered:
        return done.value
    last = last_line(done.error or done.stderr_tail)
    said = last.partition(": ")[2] if last.startswith("minidbg.") else last
    raise MinidbgError(said or f"a child ended without an answer (signal {done.signal})")
