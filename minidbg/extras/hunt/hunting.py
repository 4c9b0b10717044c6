"""The hunt: batches of samples go to children of the forkserver, then each distinct failure is
reduced to a verified repro.

No backend runs here. Threads ask for batches and reductions; the main thread takes the answers.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed, wait
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from minidbg import workers
from minidbg.core import settings
from minidbg.core.errors import MinidbgError
from minidbg.core.machine import memory_limit
from minidbg.core.outcome import Outcome, Verdict
from minidbg.core.text import json_objects, last_line, plural
from minidbg.extras.hunt import judging
from minidbg.extras.hunt.judging import Sample, SampleCell, SampleResult
from minidbg.reduction.result import Limits
from minidbg.torch_internals import OP_SAMPLES
from minidbg.workers import Ended

IN_BATCH = 60  # at most: each of the jobs gets one
REDUCE_SECONDS = 120.0
RUN_GRACE_S, ALONE_S, HUNT_POLL_S, TELL_EVERY_S = 30.0, 300.0, 0.5, 20.0


@dataclass(slots=True)
class SampleFailure:
    """Failures that are one: the first that was met, and what its reduction gave."""

    state: SampleResult
    sample: Sample
    outcome: Outcome
    repro: str | None = None
    refused: str = ""
    """Why its reduction has given no repro: it did not show again."""
    ops: Counter[str] = field(default_factory=Counter)


JudgedSample: TypeAlias = tuple[SampleCell, SampleResult, str, SampleFailure | None]


@dataclass
class Hunt:
    """One hunt. After ``run``, even interrupted, ``judged`` and ``failures`` hold all results."""

    backend: str
    folder: Path
    tell: Callable[[str], object]
    ops: Sequence[str] = ()
    dtypes: Sequence[str] = ()
    devices: Sequence[str] = ("cpu",)
    options: Mapping[str, Any] = field(default_factory=dict)
    mode: str | None = None
    seconds: float | None = None
    samples: int = 2
    jobs: int = 1
    call_seconds: float = 30.0
    cells: list[SampleCell] = field(default_factory=list)
    judged: list[JudgedSample] = field(default_factory=list)
    failures: dict[tuple[str, ...], SampleFailure] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def asked_of(self) -> dict[str, Any]:
        return {"backend": self.backend, "options": dict(self.options), "mode": self.mode}

    def run(self) -> None:
        """Raises MinidbgError when the backend or torch's samples cannot be had."""
        ends = time.monotonic() + (self.seconds or float("inf"))
        ref = judging.backend_of(self.asked_of).ref
        self.fork = workers.Warmup(
            (*ref.modules, OP_SAMPLES), "inductor" if ref.name == "inductor" else "aot"
        )
        with (
            workers.own_kernel_cache(),
            tempfile.TemporaryDirectory(prefix="minidbg-") as scratch,
            ThreadPoolExecutor(self.jobs) as pool,
        ):
            self.cells = judging.plan(self.ops, self.dtypes, self.devices)
            every = [Sample(*cell, number) for number in range(self.samples) for cell in self.cells]
            size = max(1, min(IN_BATCH, len(every) // self.jobs))
            batches = (
                partial(self.batch, every[at : at + size], Path(scratch, str(at)), ends)
                for at in range(0, len(every), size)
            )
            told = time.monotonic()
            for judged in self.work_off(pool, batches):
                for sample, outcome in judged:
                    self.take_in(sample, outcome)
                if time.monotonic() > told + TELL_EVERY_S:
                    told = time.monotonic()
                    self.tell(self.summary)
            list(self.work_off(pool, [partial(self.reduce, one) for one in self.failures.values()]))

    def work_off(self, pool: Executor, tasks: Iterable[Callable[[], Any]]) -> Iterator[Any]:
        """What the tasks bring, done in threads; Ctrl-C ends what they wait for."""
        futures = [pool.submit(task) for task in tasks]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            self.interrupted = True
            for future in futures:
                future.cancel()
            while wait(futures, timeout=HUNT_POLL_S).not_done:
                workers.end_server()
            raise

    def take_in(self, sample: Sample, outcome: Outcome) -> None:
        state, text, failure = judging.sample_result(outcome), outcome.reason, None
        if outcome.signature is not None:
            text = outcome.message
            if state.rank >= SampleResult.FAILS.rank:
                key = judging.failure_key(outcome.signature, sample.op)
                failure = self.failures.setdefault(key, SampleFailure(state, sample, outcome))
                failure.ops[sample.op] += 1
        self.judged.append((SampleCell(*sample[:3]), state, text, failure))

    # ---- asking children

    def ask(self, name: str, facts: Mapping[str, Any], seconds: float, stream: Any = None) -> Ended:
        if self.interrupted:
            raise KeyboardInterrupt
        argument = {**self.asked_of, "call_seconds": self.call_seconds, **facts}
        request = workers.Request(
            call=f"{judging.__name__}:{name}", argument=argument, seconds=seconds,
            memory_bytes=memory_limit(self.jobs), fork=self.fork,
            asks=name != "run_batch", stream=stream and stream.fileno(),
        )  # fmt: skip
        return workers.start_server().ask(request).result()

    def batch(self, todo: Sequence[Sample], path: Path, end: float) -> list[tuple[Sample, Outcome]]:
        judged: list[tuple[Sample, Outcome]] = []
        while todo and time.monotonic() < end:
            seconds = len(todo) * self.call_seconds + RUN_GRACE_S
            done = self.ask("run_batch", {"batch": todo, "results": str(path)}, seconds)
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            path.unlink(missing_ok=True)
            outcomes = list(json_objects(lines))
            if not done.answered and len(outcomes) < len(todo):
                outcomes.append(self.alone(todo[len(outcomes)]))
            pairs = zip(todo, outcomes, strict=False)
            judged += [(sample, Outcome.from_json(outcome)) for sample, outcome in pairs if outcome]
            todo = todo[len(outcomes) :]
        return judged

    def alone(self, sample: Sample) -> dict[str, Any]:
        """The outcome of a sample that ended a child. Raises MinidbgError for a request not met."""
        done = self.ask("run_sample_alone", {"sample": sample}, self.call_seconds + ALONE_S)
        if done.error:
            raise MinidbgError(last_line(done.error))
        if done.answered:
            return done.value  # type: ignore[no-any-return]
        why = "ends the process before the backend is called"
        return Outcome(Verdict.INVALID, reason=why).to_json()

    def reduce(self, failure: SampleFailure) -> None:
        most = settings.load().value_limit_bytes
        limits = Limits(REDUCE_SECONDS, call_seconds=self.call_seconds, value_limit_bytes=most)
        argument = {
            "sample": failure.sample, "outcome": failure.outcome.to_json(),
            "folder": str(self.folder), "limits": asdict(limits),
        }  # fmt: skip
        with open(os.devnull, "w") as stream:
            done = self.ask("reduced_sample", argument, REDUCE_SECONDS + RUN_GRACE_S, stream)
        reply = done.value if done.answered else {"refused": done.why_no_answer}
        failure.repro = reply.get("path")
        failure.refused = "" if failure.repro else str(reply.get("refused") or reply.get("verdict"))

    # ---- what is known

    def table(self) -> dict[SampleCell, tuple[SampleResult, str]]:
        """The worst of each cell's samples and its text; what did not fail again is no failure."""
        worst: dict[SampleCell, tuple[SampleResult, str]] = {}
        for cell, judged, text, failure in self.judged:
            state = SampleResult.SKIPPED if failure is not None and failure.refused else judged
            if cell not in worst or state.rank > worst[cell][0].rank:
                worst[cell] = (state, text)
        return worst

    def distinct(self) -> list[SampleFailure]:
        failures = [one for one in self.failures.values() if not one.refused]
        return sorted(failures, key=lambda one: -one.state.rank)

    @property
    def summary(self) -> str:
        pairs = plural(len(self.cells), "op x dtype pair")
        return f"{len(self.table()):,} of {pairs}, {plural(len(self.distinct()), 'failure')}"
