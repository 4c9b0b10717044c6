"""``ReductionProblem``: the smallest failing candidate so far, and the one door through which passes ask the oracle."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx

from minidbg.core.errors import NotReproduced
from minidbg.core.outcome import Verdict
from minidbg.fx.edit import extract
from minidbg.fx.effects import FactType, is_call, tensors_in
from minidbg.fx.mutation import broken_contracts
from minidbg.fx.nested import Arguments
from minidbg.fx.pieces import CannotExtract
from minidbg.fx.record import EagerFailure, ModeContext, Recording, runs_in_eager
from minidbg.judge.suspects import Suspects
from minidbg.reduction.candidate import SHOWN, BudgetSpent, Candidate
from minidbg.reduction.result import UNLIMITED, Limits
from minidbg.torch_internals.devices import devices_of

MOST_STEPS = 4
"""Accepted candidates that are kept: each holds recorded values."""
FEW_CALLS = 16
"""Calls up to which it is looked whether a candidate's results are as full."""

BATCH = 4
"""Edits that are drawn from the passes at once, always: what a pass sees when it goes on, and so
the result, is the same for any number of jobs and any speed."""
WORTH_ASKING_BESIDE_S = 0.5
"""Seconds of a question from which on it pays to ask what comes after it at the same time."""
MOST_BYTES_AHEAD = 256 << 20
"""Of a question's inputs: two at the same time take twice the memory."""

TELLING = ("nodes", "bypass", "inputs", "outputs")
"""Phases whose candidates lack one node or input of ``best``: what a passing one of them lacks says
most about a failure first."""


Oracle: TypeAlias = Callable[[Sequence[Candidate]], Sequence[Verdict]]
"""The verdict on each candidate, all asked at the same time."""
GraphEdit: TypeAlias = Callable[["ReductionProblem"], Candidate | None]
Pass: TypeAlias = Callable[["ReductionProblem"], Iterator[GraphEdit | None]]
OnProgress: TypeAlias = Callable[[str, int], None]
"""Hears the phase and the nodes of the smallest candidate that fails."""


@dataclass(slots=True)
class ReductionProblem:
    """What a reduction pass works on. A pass is a function of a problem that yields edits.

    Writing a pass:

    - Look at ``problem.best`` (or at ``problem.recording``, the values inside it) and yield edits.
      An edit builds a smaller ``Candidate`` from whatever is ``best`` when it is called, most often
      with ``problem.extract``, and gives None where what it is about has gone: names of nodes stay.
      ``run_passes`` asks; some edits are drawn before the first of them is asked.
    - Where the next question follows from an answer, yield None: what was drawn is answered then.
      After it, call ``problem.consider(candidate)``. If it returns True, the candidate fails in the
      same way, and it is ``problem.best`` now when it is smaller.
    - A candidate seen before, one that cannot run in eager and one without any call cost nothing,
      so a pass need not avoid them. Whether a candidate makes progress is decided by its ``size``.
    - A pass need not run to a fixed point: the driver repeats the passes until none of them changes ``best``.
    - A pass must be deterministic and must not catch ``BudgetSpent`` or ``KeyboardInterrupt``.
    """

    best: Candidate
    ask: Oracle
    limits: Limits = UNLIMITED
    on_progress: OnProgress = lambda phase, nodes: None
    whole_is_known: bool = True
    """Whether the whole was just seen to fail, so that it need not be asked."""
    around: ModeContext = nullcontext
    """The modes in which the graph runs in eager."""
    is_deadly: bool = False
    """Whether the failure ends its process: where in memory a read is deadly is chance, so no size
    is searched for exactly."""
    fails_when_it_runs: bool = False
    """Whether what was compiled raises: the cause is in what the op that raises was computed from."""
    fails_in_inputs: bool = False
    """Whether an input after the call is what is wrong: an output that shows the same write would be another failure."""
    allow_no_calls: bool = False
    """Whether a graph without any call may be a candidate."""
    plainness: Callable[[Candidate], tuple[float, ...]] | None = None
    """Decides between candidates of equal size, while a reduction simplifies."""
    hints: Sequence[str] = ()
    """Words of the error, which may be names of nodes or ops: the culprits'."""
    frames: Callable[[], Suspects] = tuple
    """The nodes that the frames of the failure of ``best`` held, as far as that is known; innermost frame first."""
    followed: Suspects | None = None
    """What was asked of them."""
    on_phase: Callable[[str], object] = str
    """Hears the name of each phase as it begins."""
    phase: str = "reduce"
    oracle_calls: int = 0
    steps: list[Candidate] = field(default_factory=list)
    """The last accepted candidates, largest first."""
    latest: tuple[tuple[Verdict, float], ...] = ()
    """The last two answers, each with the seconds that it took."""
    neighbour: Candidate | None = None
    """A candidate one step smaller than ``best`` that passed; of several, one of the most telling phase."""
    neighbour_rank: int = len(TELLING)
    keep_passed_through: bool = False
    """Whether inputs that the graph returns must stay outputs for the failure to show."""
    settled_sizes: dict[int, int] = field(default_factory=dict)
    """Sizes that an earlier round found to be needed, each with the next smaller one that it tried."""
    rewritten: dict[tuple[str, int | str], Callable[[Arguments], Arguments]] = field(default_factory=dict)
    """Arguments of calls that were made plainer, by call and place, each with a function that puts the original back."""
    keeps_arguments: bool = False
    """Whether arguments must stay as they are: a plainer one had become the cause of the failure."""
    _known: dict[str, Verdict] = field(default_factory=dict)
    _ahead: dict[str, tuple[Verdict, float]] = field(default_factory=dict)
    """Answers to what no pass has asked yet, with their seconds: they count once it does."""
    _passing: list[Set[str]] = field(default_factory=list)
    _recording: tuple[Candidate, Recording] | None = None
    _started: float = field(default_factory=time.monotonic)
    _whole: Candidate = field(init=False)
    _broken: frozenset[tuple[str, str]] = field(init=False)

    def __post_init__(self) -> None:
        self._whole = self.best
        self._broken = broken_contracts(self.best.graph_module)

    @property
    def recording(self) -> Recording:
        if self._recording is None or self._recording[0] is not self.best:
            parent = self._recording[1] if self._recording else None
            made = Recording(
                self.best.graph_module,
                self.best.inputs,
                parent=parent,
                same_values=self.best.faithful,
                around=self.around,
            )
            self._recording = (self.best, made)
        return self._recording[1]

    def extract(
        self, keep: Set[fx.Node], *, out_of: tuple[Candidate, Recording] | None = None, **how: Any
    ) -> Candidate | None:
        """The candidate of just the calls in ``keep``, nodes of ``best`` or of the earlier candidate ``out_of``.

        ``how`` goes to ``fx.edit.extract``. None when a value that it needs cannot be recorded.
        """
        base, recording = out_of or (self.best, self.recording)
        by_names = not how
        how.setdefault("passed_through", self.keep_passed_through)
        how.setdefault("returns_writes", not self.fails_in_inputs)
        try:
            piece = extract(recording, keep, **how)
        except CannotExtract:
            return None
        known = dict(zip(recording.placeholders, base.tokens, strict=True))
        tokens = tuple(
            known[node] if node in known and not writes else ("value", base.epoch, node.name, writes, path)
            for node, writes, path in piece.origins
        )
        return Candidate(piece.graph_module, piece.inputs, tokens, piece.faithful, base.epoch, by_names)

    def consider(self, candidate: Candidate | None) -> bool:
        """Whether ``candidate`` fails in the same way; it becomes ``best`` if it is smaller than it.

        None stands for a candidate that could not be built. Raises BudgetSpent, and what the oracle raises.
        """
        if candidate is None or not self._is_something(candidate):
            return False
        return self.answer(candidate) in SHOWN

    def _is_something(self, candidate: Candidate) -> bool:
        calls, _, outputs, *_ = candidate.size
        return calls > 0 or (self.allow_no_calls and outputs > 0)

    def answer(self, candidate: Candidate) -> Verdict:
        """The verdict on ``candidate``, from memory where it is there."""
        if candidate.key not in self._known:
            self._known[candidate.key] = self._judge(candidate)
        verdict = self._known[candidate.key]
        if verdict in SHOWN and self._is_smaller(candidate, candidate.size):
            self._accept(candidate)
        return verdict

    def _judge(self, candidate: Candidate) -> Verdict:
        """INVALID where eager refuses the candidate; else the oracle's answer, which counts now,
        also where it came ahead."""
        if candidate.key not in self._ahead:
            if not self.is_valid(candidate):
                return Verdict.INVALID
            self._ask([candidate])
        self._check_budget()
        verdict, seconds = self._ahead.pop(candidate.key)
        self._note(candidate, verdict, seconds)
        return verdict

    def _ask(self, candidates: Sequence[Candidate]) -> None:
        self._check_budget()
        began = time.monotonic()
        # one that fails half-way leaves its mode behind
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            verdicts = self.ask(candidates)
        seconds = time.monotonic() - began
        keys = (candidate.key for candidate in candidates)
        self._ahead |= {key: (verdict, seconds) for key, verdict in zip(keys, verdicts, strict=True)}

    def ask_beside(self, edits: Iterable[GraphEdit | None]) -> None:
        """Ask the first of ``edits`` together with what comes after it, where that saves time and
        costs little memory: as many as there are jobs, and none beyond a None."""
        if not self._may_ask_beside():
            return
        fresh: dict[str, Candidate] = {}
        for edit in edits:
            candidate = edit(self) if edit else None
            is_new = candidate is not None and candidate.key not in self._known.keys() | self._ahead.keys()
            if (
                candidate is not None
                and is_new
                and self._is_something(candidate)
                and self.is_valid(candidate)
            ):
                fresh[candidate.key] = candidate
            if edit is None or not fresh or len(fresh) == self.limits.jobs:
                break
        if len(fresh) > 1:
            self._ask(list(fresh.values()))

    def _may_ask_beside(self) -> bool:
        """Whether questions take so long that it pays, there is room for two, and nobody counts."""
        if self.limits.jobs == 1 or self.limits.max_calls is not None or not self.latest:
            return False
        is_worth = self.latest[-1][1] >= WORTH_ASKING_BESIDE_S
        # one that fails makes what comes after it another question
        have_failed = len(self.latest) == 2 and all(verdict in SHOWN for verdict, _ in self.latest)
        return is_worth and not have_failed and sum(self.best.storages.values()) <= MOST_BYTES_AHEAD

    def is_valid(self, candidate: Candidate) -> bool:
        """Whether ``candidate`` runs in eager; costs no run.

        On an accelerator the oracle finds out: an index out of range there would leave the device
        in error for this process.
        """
        if not self.keeps_contracts(candidate):
            return False
        if candidate.faithful or devices_of(candidate.inputs):
            return True
        return runs_in_eager(candidate.graph_module, candidate.inputs, self.around)

    def keeps_contracts(self, candidate: Candidate) -> bool:
        """Whether ``candidate`` breaks no contract of a higher-order op or a level that the program's own graph keeps.

        Compilers refuse such a graph, in words that may be those of the failure; a body that
        returns what it carries may be a loop without end; and a level that is entered and not left
        is in the way of whatever runs next, dynamo included.
        """
        return broken_contracts(candidate.graph_module) <= self._broken

    def is_as_full(self, candidate: Candidate) -> bool:
        """Whether no call of ``candidate`` gives nothing, or no finite numbers, where it does in
        ``best``. Nobody looks at a large graph."""
        if devices_of(candidate.inputs) or len(candidate.calls) > FEW_CALLS:
            return True
        again = Recording(candidate.graph_module, candidate.inputs, around=self.around)
        return again.failure is None and is_as_full(self.recording, again)

    def _is_smaller(self, candidate: Candidate, size: tuple[int, ...]) -> bool:
        if size != self.best.size or self.plainness is None:
            return size < self.best.size
        return self.plainness(candidate) < self.plainness(self.best)

    def _note(self, candidate: Candidate, verdict: Verdict, seconds: float) -> None:
        self.oracle_calls += 1
        size, self.latest = candidate.size, (*self.latest[-1:], (verdict, seconds))
        if verdict is Verdict.GONE and self.phase in TELLING[: self.neighbour_rank + 1]:
            self.neighbour, self.neighbour_rank = candidate, TELLING.index(self.phase)
        improved = verdict in SHOWN and self._is_smaller(candidate, size)
        self.on_progress(self.phase, (size if improved else self.best.size)[0])

    def begin_phase(self, name: str) -> None:
        self.phase = name
        self.on_phase(name)

    def _check_budget(self) -> None:
        limit = self.limits.max_calls
        if self.elapsed() >= self.limits.seconds or (limit is not None and self.oracle_calls >= limit):
            raise BudgetSpent

    def _accept(self, candidate: Candidate) -> None:
        epoch = candidate.epoch if candidate.faithful else candidate.key
        self.best = replace(candidate, epoch=epoch)
        self.steps = [*self.steps, self.best][-MOST_STEPS:]
        self.neighbour, self.neighbour_rank = None, len(TELLING)

    def go_back_to(self, earlier: Candidate) -> None:
        """Begin anew from a candidate that was ``best``; what was answered since is remembered."""
        self.steps = [] if earlier is self._whole else [earlier]
        self.best, self.neighbour, self.neighbour_rank = earlier, None, len(TELLING)
        self.rewritten.clear()
        self.settled_sizes.clear()

    def elapsed(self) -> float:
        return time.monotonic() - self._started

    def confirm_whole(self, *, doubtful: bool = False) -> None:
        """Make sure that the whole fails, when nothing smaller has: asked only if it was not seen to, or is ``doubtful``.

        Raises NotReproduced.
        """
        if self.steps or (self.whole_is_known and not doubtful):
            return
        if self.answer(self.best) not in SHOWN:
            raise NotReproduced(
                "nothing to reduce: the interestingness test says that the whole graph does not fail. "
                "Call it with the graph and inputs given to see why"
            )
        self.whole_is_known = True

    # --- sets of nodes: what larger answers say about smaller ones ---

    def presumed_passing(self, names: Set[str]) -> bool:
        """Whether a superset of these nodes was seen to pass. A reason to look elsewhere first, never a proof."""
        return any(names <= passing for passing in self._passing)

    def begin_round(self) -> None:
        """Look at ``best`` as at a new whole; answers are remembered, nothing is presumed."""
        self._passing.clear()
        self.keep_passed_through = False

    def remember_passing(self, names: Set[str]) -> None:
        self._passing.append(names)


def run_passes(problem: ReductionProblem, passes: Iterable[tuple[str, Pass]]) -> None:
    """Consider the edits of the passes in order, across their ends."""
    edits = ((name, edit) for name, reduction_pass in passes for edit in reduction_pass(problem))
    while batch := list(_drawn(edits)):
        while batch:
            problem.ask_beside(edit for _, edit in batch)
            name, edit = batch.pop(0)
            problem.begin_phase(name)
            if edit is not None:
                problem.consider(edit(problem))


def _drawn(edits: Iterator[tuple[str, GraphEdit | None]]) -> Iterator[tuple[str, GraphEdit | None]]:
    """The next ``BATCH`` edits, or fewer up to a None."""
    for drawn in itertools.islice(edits, BATCH):
        yield drawn
        if drawn[1] is None:
            return


def is_as_full(before: Recording, after: Recording) -> bool:
    """Whether no call of ``after`` gives nothing, or an infinity or NaN, where it gave finite numbers before."""
    again = {node.name: node for node in after.nodes}
    pairs = [(node, again[node.name]) for node in before.nodes if is_call(node) and node.name in again]
    try:
        sides = [_by_index(run, [pair[side] for pair in pairs]) for side, run in enumerate((before, after))]
    except EagerFailure:
        return False
    return all(
        _is_as_full(one, two)
        for index in sides[0].keys() & sides[1].keys()
        for one, two in zip(sides[0][index], sides[1][index], strict=False)
    )


def _by_index(recording: Recording, nodes: Sequence[fx.Node]) -> dict[int, list[Tensor]]:
    known = [
        (index, node)
        for index, node in enumerate(nodes)
        if node in recording.facts and recording.facts[node].type is not FactType.OPAQUE
    ]
    values = recording.values([(recording.index[node] + 1, node) for _, node in known])
    return {index: list(tensors_in([value])) for (index, _), value in zip(known, values, strict=True)}


def _is_as_full(before: Tensor, after: Tensor) -> bool:
    try:
        if before.numel() and not after.numel():
            return False
        return not bool(before.isfinite().all()) or bool(after.isfinite().all())
    except (RuntimeError, NotImplementedError):  # a dtype or layout without these ops
        return True
