"""``Session``: one reduction in progress. The one place that runs, counts and remembers cases."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from minidbg import oracle, repro, workers
from minidbg.codegen.size import call_nodes
from minidbg.core.errors import CannotWrite
from minidbg.core.machine import Deadline
from minidbg.core.outcome import Outcome, Signature, Verdict
from minidbg.core.text import plural
from minidbg.fx.case import Case
from minidbg.fx.copying import bytes_of
from minidbg.fx.effects import tensors_in
from minidbg.judge.suspects import Suspects
from minidbg.reduction.result import Limits, Listener, Progress, silent
from minidbg.reduction.search import MOST_BYTES_AHEAD, SHOWN, BudgetSpent
from minidbg.torch_internals.devices import place_of

BEST_FILE = "best.py"
BEST_EVERY_S = 10.0
"""A search that ends sooner writes no script but its result; what goes on after a kill begins from
the last one written."""
FOR_VERIFICATION_S = 15.0
"""Of the budget, at most its half: to write the script and to run it by itself."""
LARGE = 100
"""Nodes above which one run may take longer than the time limit of a call."""

PROGRAM_PHASES = (
    "reduce", "suspects", "islands", "bisect", "needed", "chunks", "outputs", "nodes", "reliability"
)  # fmt: skip
"""Phases whose candidates are program calls on values it had: no other's failures are its own."""


def is_another(seen: Signature, expected: Signature | None) -> bool:
    """Whether ``seen`` is more than ``expected`` under another label: what is written to an input
    may be an output as well."""
    labels = [one.message.partition(":")[::2] if one else ("", "") for one in (seen, expected)]
    return {label for label, _ in labels} != {"input", "output"} or labels[0][1] != labels[1][1]


@dataclass(slots=True)
class Session:
    """One reduction in progress: what it may spend, what it has spent, what else it met."""

    limits: Limits
    listener: Listener = silent
    kernels: Path | None = None
    """The kernel cache of its runs."""
    folder: Path | None = None
    """Where the best so far is kept."""
    submit: workers.Submit = workers.submit
    started: float = field(init=False)
    deadline: Deadline = field(init=False)
    """When the answer is due."""
    until: Deadline = field(init=False)
    """When questions end: what is left then is for the verification."""
    oracle_calls: int = 0
    asked_s: float = 0.0
    """Seconds of questions, with those in which a server got ready for them."""
    repeats: int = 1
    """Runs of a case until it counts as passing: more than 1 for a flaky failure."""
    interrupted: bool = False
    """Whether Ctrl-C was pressed: what is there is published, nothing more is tried."""
    others: dict[str, tuple[Case, Outcome]] = field(default_factory=dict)
    """One case for each other failure met, and how it failed, by its signature."""
    too_slow_nodes: float = math.inf
    """Nodes of the smallest graph that ran into the time limit: larger ones are not asked."""
    best_written_s: float = 0.0
    """When the best so far was last put on disk, in seconds since the session began."""
    is_made_up: bool = False
    """Whether what fails by now has arguments, values or settings that the program never had."""
    best: Case | None = None
    """The smallest case that was seen to fail."""
    suspects: Suspects = ()
    """The nodes that the frames of its failure held."""
    last_shown: Outcome | None = None
    """Of the last question that showed the failure."""
    standby: Callable[[], workers.Standby | None] = lambda: None
    """Gives an interpreter that waits for a script to run by itself, where there can be one."""

    def __post_init__(self) -> None:
        seconds = self.limits.seconds
        self.deadline = Deadline(self.limits.due or time.monotonic() + seconds)
        self.started = self.deadline.at - seconds  # since then somebody has waited, and is told how long
        self.until = self.deadline.earlier(min(FOR_VERIFICATION_S, seconds / 2))

    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def remaining(self) -> float:
        """Seconds left for questions, never negative; none after Ctrl-C."""
        return 0.0 if self.interrupted else self.until.left()

    @property
    def budget(self) -> str:
        """``budget of 8 s``: what may end it, in words."""
        limits = self.limits
        if limits.max_calls is not None and not self.until.is_over:
            return f"budget of {plural(limits.max_calls, 'run')}"
        return f"budget of {limits.seconds:.3g} s"

    def ask(self, cases: Sequence[Case], *, phase: str = "") -> list[Outcome]:
        """What each case shows, all run at the same time in children; where chance decides, each of
        ``repeats`` runs is another chance to fail. What a killed one left half written in the
        kernel cache goes.

        What is asked in a ``phase`` is learnt at once; a search says itself when it learns. Raises
        BudgetSpent where too little time is left: what the deadline cuts off looks hung.
        """
        outcomes, least = list[Outcome](), self.too_slow_nodes
        sizes = [0 if case.spec.traits.endless else call_nodes(case.graph_module) for case in cases]
        asked = [(case, size) for case, size in zip(cases, sizes, strict=True) if size < least]
        for _ in range(self.repeats if asked else 0):
            if self.until.is_over:
                raise BudgetSpent
            self.oracle_calls += len(asked)
            began, before = time.time(), time.monotonic()
            usual = self.limits.call_seconds
            longer = max(usual, self.remaining() / 2)  # many nodes may take minutes to compile
            outcomes = oracle.ask_all(
                [(case, longer if size > LARGE else usual) for case, size in asked],
                memory_bytes=self.limits.memory_bytes,
                to_the_end=False,
                deadline=self.until,
                submit=self.submit,
            )
            self.asked_s += time.monotonic() - before
            kinds = [outcome.signature.kind for outcome in outcomes if outcome.signature]
            if self.kernels is not None and any(kind.traits.dies for kind in kinds):
                workers.remove_unfinished(self.kernels, since=began)
            if any(self.was_cut_off(outcome, self.until) for outcome in outcomes):
                raise BudgetSpent
            if any(outcome.verdict is not Verdict.GONE for outcome in outcomes):
                break
        too_slow = Outcome(Verdict.INVALID, reason=f"{least} nodes did not finish in time")
        shown = iter(outcomes)
        outcomes = [next(shown) if size < least else too_slow for size in sizes]
        for case, outcome in zip(cases, outcomes, strict=True):
            if outcome.verdict is Verdict.TIMEOUT:
                self.too_slow_nodes = call_nodes(case.graph_module)
            if phase:
                self.learn(phase, case, outcome, is_best=outcome.verdict in SHOWN)
        return outcomes

    def was_cut_off(self, outcome: Outcome, deadline: Deadline) -> bool:
        """Whether a run ended by the deadline and not by a time limit of its own, or may have."""
        ended = outcome.signature is not None and outcome.signature.kind.traits.endless
        # invalid is one of which nobody has heard in which phase it was
        return deadline.is_over and (ended or outcome.verdict in (Verdict.TIMEOUT, Verdict.INVALID))

    def learn(self, phase: str, case: Case, outcome: Outcome, *, is_best: bool) -> None:
        """Remember the best so far, now and then on disk, and failures that were not expected."""
        is_of_program = phase in PROGRAM_PHASES
        if outcome.verdict in SHOWN:
            self.last_shown = outcome
            self.is_made_up |= not is_of_program
        if is_best:
            self.best, self.suspects = case, outcome.suspects or self.suspects
            if self.elapsed() - self.best_written_s >= BEST_EVERY_S:
                self.keep_best()
        is_other = outcome.verdict.exit_status == Verdict.CHANGED.exit_status
        seen = outcome.signature if is_other else None
        if seen and is_of_program and not self.is_made_up and is_another(seen, case.signature):
            self.others.setdefault(str(seen), (case, outcome))

    def keep_best(self) -> None:
        """Put the best so far on disk, as a script that is not verified yet."""
        if self.folder is None or self.best is None:
            return
        self.best_written_s = self.elapsed()
        with contextlib.suppress(CannotWrite, OSError):
            repro.write(
                repro.case_to_keep(self.best),
                self.folder / BEST_FILE,
                repro.Form.CAPTURE,
                exactness=repro.Exactness.SMALL,
                value_limit_bytes=self.limits.value_limit_bytes,
            )

    def fails(self, case: Case, phase: str) -> bool:
        """Whether a run shows the case's own failure; where no time is left for one, none did."""
        try:
            return self.ask([case], phase=phase)[0].verdict in SHOWN
        except BudgetSpent:
            return False

    def tell(self, phase: str, nodes: int, start_nodes: int) -> None:
        self.listener(Progress(phase, nodes, start_nodes, self.oracle_calls, self.elapsed()))


@contextlib.contextmanager
def standbys(case: Case, session: Session) -> Iterator[None]:
    """A block in which the session has interpreters that import torch while the search runs, one at
    a time; ended with the block."""
    ahead = repro.standby_plan(case.backend.name, without=case.spec.context.env)
    waiting: list[workers.Standby | None] = []
    with contextlib.ExitStack() as until_the_end:

        def started() -> workers.Standby | None:
            with contextlib.suppress(OSError):  # no process can be made now: the proof tries again
                return until_the_end.enter_context(workers.start_server().start_standby(*ahead))
            return None

        if session.submit is workers.submit:
            waiting.append(started())
            session.standby = lambda: (waiting.pop() if waiting else None) or started()
        yield


# --- flaky failures: how often one shows itself, and what follows from that ---

WRONG_PASS = 0.01
"""Accepted chance that a flaky case passes all its runs although the failure is in it."""
MOST_REPEATS = 20
"""A failure that needs more runs than these to be believed gone is too rare to be reduced."""
RUNS_OF_WHOLE = 5
RUNS_OF_SMALL = 2


@dataclass(frozen=True, slots=True)
class Reliability:
    """``failed`` of ``runs`` runs showed the failure."""

    failed: int
    runs: int

    @property
    def is_flaky(self) -> bool:
        return 0 < self.failed < self.runs

    @property
    def repeats(self) -> int:
        """Runs after which a case that never failed counts as healthy, with under 1 % of error."""
        if self.failed == self.runs:
            return 1
        p = (self.failed + 1) / (self.runs + 2)  # of few runs not too much may be concluded
        return math.ceil(math.log(WRONG_PASS) / math.log(1 - p))

    def __str__(self) -> str:
        return f"fails in {self.failed} of {self.runs} runs"


def may_run_together(case: Case) -> bool:
    """Whether two runs at the same time say what each says alone: not where a time limit is the
    answer, or both would fill the memory."""
    is_small = bytes_of(tensors_in(case.inputs)) <= MOST_BYTES_AHEAD
    return not case.spec.traits.endless and place_of(case.inputs) == "cpu" and is_small


def measured(case: Case, session: Session, *, failed: int, runs: int, more: int) -> Reliability:
    """The reliability of ``case`` after ``more`` further runs; ``failed`` of ``runs`` are known.
    Ends early when no run says anything new: invalid stays invalid."""
    together = min(2, session.limits.jobs) if may_run_together(case) else 1
    for begun in range(0, more, together):
        outcomes = session.ask([case] * min(together, more - begun), phase="reliability")
        if any(outcome.verdict.exit_status == Verdict.INVALID.exit_status for outcome in outcomes):
            break
        runs += len(outcomes)
        failed += sum(outcome.verdict in SHOWN for outcome in outcomes)
    return Reliability(failed, runs)


def runs_worth_having(case: Case) -> int:
    """Further runs of a small case that tell if its failure is flaky: none if that is too unlikely.

    A compiler that fails on a graph does so each time; each run of a hang costs its whole time
    limit. Both are run once more with the values of the script, and again in a fresh interpreter.
    """
    traits = case.spec.traits
    return RUNS_OF_SMALL if traits.compiles and not traits.endless else 0
