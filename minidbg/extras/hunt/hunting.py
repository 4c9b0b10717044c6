"""The hunt: batches of candidates go to children of the forkserver, new failures are reduced, and all of it is on disk.

This process runs no backend. Batches and reductions are asked by threads; the main thread reads what the children write.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from minidbg import workers
from minidbg.extras.hunt.candidates import Plan, Wanted, about, name_of, untried
from minidbg.extras.hunt.states import CellState, HuntFolder, append
from minidbg.reduction.importers import backend_named
from minidbg.reduction.replay import last_result
from minidbg.reduction.result import Limits
from minidbg.torch_internals import OP_SAMPLES
from minidbg.words.deadline import NEVER, Deadline
from minidbg.words.errors import MinidbgError
from minidbg.words.text import shrinkage
from minidbg.workers import ChildResult

BATCH_SECONDS = 15.0
MOST_TOGETHER = 12
"""Candidates in one graph: what a compilation costs by itself is shared, and one that fails costs the others another run."""
MOST_RESERVED = 0.4
"""Of the time: what is left to the reductions that wait when it runs out."""
LEAST_PATIENCE_S = 10.0
MUCH_LONGER = 10.0
GRACE_S = 30.0
LOOK_S = 0.25
TO_END_S = 3.0
"""Beyond the time that was given: for a reduction to end what it has started."""
LEAST_FOR_REDUCTION_S = 10.0
"""With less time left none is begun."""
HANGS_ASKED = 4
HANG_SECONDS = 10.0
"""Of a question of the reduction of a hang: candidates that do not hang take far less."""
START_S = 300.0


@dataclass(frozen=True, slots=True)
class HuntProgress:
    """How far the hunt is."""

    tried: int
    cells: int
    cells_begun: int
    failures: int
    doing: str
    seconds: float
    rest_seconds: float | None


Listener = Callable[[HuntProgress], object]
Settled = tuple[str, dict[str, Any]] | None
"""The key of a failure, and what its reduction gave."""


class Hunt:
    """One hunt. ``run`` returns when time or candidates are out; ``store`` then has all that is known."""

    def __init__(self, wanted: Wanted, listener: Listener = lambda standing: None) -> None:
        self.wanted, self.listener = wanted, listener
        self.deadline = NEVER if wanted.seconds is None else Deadline.after(wanted.seconds)
        self.began, self.began_at = time.monotonic(), time.time()
        used = backend_named(wanted.backend)
        self.ref = dataclasses.replace(used.ref, options=wanted.options, mode=wanted.mode)
        self.warmth: dict[str, Any] = {
            "imports": [*self.ref.modules, OP_SAMPLES],
            "warm": "inductor" if self.ref.name == "inductor" else "aot",
        }
        head = {
            "backend": wanted.backend, "options": repr(dict(wanted.options)), "mode": wanted.mode,
            "torch": torch.__version__, "seed": wanted.seed,
        }  # fmt: skip
        self.store = HuntFolder.open(wanted.folder, self.ref, head, fresh=wanted.fresh)
        self.cells: list[tuple[str, str, str]] = []
        self.reductions_begun: set[str] = set()
        self.again: deque[list[dict[str, Any]]] = deque()
        """Batches that a death cut short."""
        self.complaints: dict[str, None] = {}
        self.complete = False
        self.interrupted = False
        self.cut_short: list[Path] = []
        """Repros whose reductions the end of the time has ended early."""
        self.under_way: dict[Future[Settled], str] = {}
        """With what each is about."""
        self.reduced_last = False
        self.seconds_of_reduction = 20.0
        """Of the last one; each takes its turn with a batch."""

    def run(self) -> None:
        """Hunt. Raises MinidbgError when the backend or torch's samples cannot be had."""
        with workers.own_kernel_cache(), self.store.alone(), ThreadPoolExecutor(self.wanted.jobs) as pool:
            try:
                self.cells = [tuple(cell) for cell in self.started()["cells"]]
                self.go_round(pool)
            except BaseException:
                self.interrupted = True
                while wait(self.under_way, timeout=0.0).not_done:
                    workers.interrupt_questions()
                    workers.end_server()
                    wait(self.under_way, timeout=LOOK_S)
                raise
            finally:
                self.take_stock()

    def take_stock(self) -> None:
        """Have all that children have left on disk: also the repros whose reductions were ended before they could tell of them."""
        for future in [one for one in self.under_way if one.done() and one.exception() is None]:
            if settled := future.result():
                self.store.settle(*settled)
        self.store.read()
        for key in self.reductions_begun:
            failure = self.store.found[key]
            if failure.repro is None and failure.capture is not None and not failure.settled:
                place = failure.capture.parents[1] / "reductions" / failure.capture.stem
                written = last_result(place, since=self.began_at)
                failure.repro = written.path if written is not None else None

    def go_round(self, pool: ThreadPoolExecutor) -> None:
        """Have as many batches and reductions under way as there are jobs, until nothing is left."""
        plan = Plan(self.wanted, self.ref.name, self.store, self.cells)
        batches = plan.batches()
        under_way = self.under_way
        numbers = itertools.count()
        while True:
            self.store.read()
            while len(under_way) < self.wanted.jobs:
                to_reduce = self.to_reduce() if self.deadline.left() > LEAST_FOR_REDUCTION_S else []
                reduces_next = to_reduce and plan.swept and not self.reduced_last
                batch = None if reduces_next else self.next_batch(batches)
                if batch is not None:
                    under_way[pool.submit(self.batch, batch, next(numbers))] = about(batch)
                elif to_reduce:
                    # hangs come last: each of their questions takes the whole time limit
                    key = min(to_reduce, key=lambda key: self.store.found[key].state is CellState.HANGS)
                    self.reductions_begun.add(key)
                    under_way[pool.submit(self.reduce, key)] = f"reducing {self.store.found[key].first}"
                else:
                    break
                self.reduced_last = batch is None
            if not under_way:
                return
            done, _ = wait(under_way, timeout=LOOK_S, return_when=FIRST_COMPLETED)
            for future in done:
                del under_way[future]
                if settled := future.result():
                    self.store.settle(*settled)
            self.listener(self.standing(", ".join(under_way.values())))

    def to_reduce(self) -> list[str]:
        """The keys of captured failures that wait for their reduction."""
        waiting = ((key, one) for key, one in self.store.found.items() if key not in self.reductions_begun)
        return [key for key, one in waiting if one.capture and not one.settled]

    def next_batch(self, batches: Iterator[list[dict[str, Any]]]) -> list[dict[str, Any]] | None:
        """What to try next; None when candidates are out, or the time but for the reductions that wait."""
        reserved = len(self.to_reduce()) * self.seconds_of_reduction
        if self.deadline.left() <= min(reserved, MOST_RESERVED * (self.wanted.seconds or 0.0)):
            return None
        while self.again:
            if rest := list(untried(self.again.popleft(), self.store)):
                return rest
        batch = next(batches, None)
        if batch is None:
            self.complete = True
        return batch

    # ---- asking children

    def asked(
        self,
        function: str,
        argument: Mapping[str, Any],
        seconds: float,
        stream: Any = None,
        *,
        late_s: float = 0.0,
    ) -> ChildResult:
        """What ``function`` of ``judging`` answers in a child, at the latest ``late_s`` after the time that was given."""
        if self.interrupted:
            raise KeyboardInterrupt
        deadline = self.deadline.earlier(-late_s)
        found = self.store.found
        common = {
            "backend": {
                "name": self.wanted.backend, "options": dict(self.wanted.options), "mode": self.wanted.mode,
            },
            "seed": self.wanted.seed,
            "results": str(self.store.results_file),
            "folder": str(self.wanted.folder.absolute()),
            "known": [key for key, one in list(found.items()) if one.capture or one.settled],
            "call_seconds": self.wanted.call_seconds,
            "value_limit_bytes": self.wanted.value_limit_bytes,
            "most_together": MOST_TOGETHER,
            "patience": self.patience(),
        }  # fmt: skip
        return workers.call_in_server(
            workers.Preparation(f"minidbg.extras.hunt.judging:{function}", **self.warmth),
            {**common, **argument},
            seconds=deadline.left(seconds),
            deadline=deadline,
            memory_bytes=workers.memory_limit(),
            stream=stream,
        )

    def patience(self) -> float:
        """Seconds that one graph of several candidates may take: by the pace so far and the time left, since one that hangs holds up the others."""
        tried = len(self.store.results)
        usual = (
            self.store.seconds / tried * MOST_TOGETHER if tried > MOST_TOGETHER else self.wanted.call_seconds
        )
        return max(LEAST_PATIENCE_S, min(usual * MUCH_LONGER, self.deadline.left() / 4))

    def started(self) -> dict[str, Any]:
        """The forkserver, ready for batches, and the cells of the table. Raises MinidbgError."""
        wanted = self.wanted
        plan = {"ops": wanted.ops, "dtypes": wanted.dtypes, "devices": wanted.devices}
        done = self.asked("started", plan, START_S)
        if not done.answered and self.deadline.is_over:
            self.complaints["the time was over before anything could be tried; give more --seconds"] = None
            return {"cells": []}
        if not done.answered:
            raise refusal_in(done)
        return dict(done.value)

    def batch(self, batch: list[dict[str, Any]], number: int) -> None:
        """Have the batch judged; what a death cut off goes into another one."""
        doing = self.store.place / f"doing_{os.getpid()}_{number}.json"
        seconds = max(1.0, self.deadline.left(BATCH_SECONDS))
        tried = [name for name in list(self.store.results) if name.startswith("graph ")]
        argument = {"batch": batch, "doing": str(doing), "seconds": seconds, "tried": tried}
        try:
            done = self.asked("run_batch", argument, seconds + 2 * self.wanted.call_seconds + GRACE_S)
            if done.answered:
                rest = batch[done.value["done"] :]
            elif done.error:
                rest = self.after_mistake(batch, done)
            elif self.deadline.is_over:  # that ended it, and says nothing about the candidate
                rest = []
            else:
                rest = self.after_death(batch, doing, done)
        finally:
            doing.unlink(missing_ok=True)
        if rest:
            self.again.append(rest)

    def after_mistake(self, batch: list[dict[str, Any]], done: ChildResult) -> list[dict[str, Any]]:
        """Leave out what a batch began with, and say so. Raises MinidbgError for a request that cannot be met, or the third mistake."""
        refusal = refusal_in(done)
        if done.error.strip().rpartition("\n")[2].startswith("minidbg.") or len(self.complaints) == 2:
            raise refusal
        self.complaints[f"a batch that began with {about(batch)} was left out: {refusal}"] = None
        return []

    def after_death(
        self, batch: list[dict[str, Any]], doing: Path, done: ChildResult
    ) -> list[dict[str, Any]]:
        """Have the candidate that ended the child recorded; the rest of the batch."""
        try:
            candidate = json.loads(doing.read_text())
        except (OSError, ValueError):
            self.complaints["a batch ended before its first candidate"] = None
            return batch[1:]
        if "together" in candidate:  # which of them it was is seen when each has a child of its own
            members = candidate["together"]
            self.again.extend([one] for one in members)
            return [one for one in batch if one not in members]
        if done.signal == signal.SIGALRM:  # our own time limit
            done = dataclasses.replace(done, timed_out=True, signal=None)
        argument = {"candidate": candidate, "done": dataclasses.asdict(done)}
        told = self.asked("keep_death", argument, self.wanted.call_seconds * 2)
        if not told.answered and not self.deadline.is_over:
            record = {
                "candidate": candidate, "id": name_of(candidate), "state": CellState.SKIPPED,
                "reason": "ends the process, and cannot be rebuilt",
            }  # fmt: skip
            append(self.store.results_file, record)
        return [one for one in batch if one != candidate]

    def reduce(self, key: str) -> Settled:
        """Reduce the first failure of ``key`` to a verified repro; the key, and what became of it. None where the time was too short."""
        found, began = self.store.found[key], time.monotonic()
        seconds = self.deadline.left(self.wanted.reduce_seconds)
        limits = Limits(
            seconds=seconds,
            due=None if self.wanted.seconds is None else began + seconds,
            call_seconds=self.wanted.call_seconds,
            value_limit_bytes=self.wanted.value_limit_bytes,
        )
        if found.state is CellState.HANGS:  # each question that shows it costs the whole time limit
            short = min(self.wanted.call_seconds, HANG_SECONDS)
            limits = dataclasses.replace(limits, max_calls=HANGS_ASKED, call_seconds=short)
        argument = {"path": str(found.capture), "limits": dataclasses.asdict(limits)}
        with open(os.devnull, "w") as stream:
            done = self.asked("reduced", argument, limits.seconds + GRACE_S, stream, late_s=TO_END_S)
        self.seconds_of_reduction = time.monotonic() - began
        was_short = seconds < self.wanted.reduce_seconds
        if was_short and not (done.answered and (done.value.get("path") or not done.value.get("ended_by"))):
            return None  # it is still to be reduced
        if done.answered:
            answer = dict(done.value)
            if answer.get("path"):
                answer["line"] = shrinkage(answer["nodes_before"], answer["nodes_after"])
                if was_short and answer.get("ended_by"):
                    self.cut_short.append(Path(answer["path"]))
            else:
                answer.setdefault(
                    "refused", f"no repro: {answer.get('verdict')}: {'; '.join(answer.get('notes', ()))}"
                )
        else:
            how = (
                "was ended after its time" if done.timed_out else f"died ({done.signal or done.exit_status})"
            )
            answer = {"refused": f"its reduction {how}: {done.error.strip().rpartition(chr(10))[2]}"}
        return key, answer

    def standing(self, doing: str) -> HuntProgress:
        begun = {tuple(name.split(" ")[:3]) for name in self.store.results if not name.startswith("graph")}
        rest = self.deadline.left()
        return HuntProgress(
            tried=len(self.store.results),
            cells=len(self.cells),
            cells_begun=len(begun.intersection(self.cells)),
            failures=len(self.store.cases()),
            doing=doing,
            seconds=time.monotonic() - self.began,
            rest_seconds=rest if rest != float("inf") else None,
        )


def refusal_in(done: ChildResult) -> MinidbgError:
    """What a child said before it could judge anything: a request that cannot be met."""
    last = done.error.strip().rpartition("\n")[2] or done.stderr_tail.strip().rpartition("\n")[2]
    said = last.partition(": ")[2] if last.startswith("minidbg.") else last
    return MinidbgError(said or f"a child ended without an answer (signal {done.signal})")
