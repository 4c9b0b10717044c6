"""``Search``: the smallest case that still fails, and the one place where a candidate is refused,
asked, remembered, counted and taken."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import fx

from minidbg.codegen.size import HOLDS, call_nodes, canonical_text
from minidbg.core.errors import NotReproduced
from minidbg.core.kinds import UNSEEN, Traits
from minidbg.core.machine import NEVER, Deadline
from minidbg.core.outcome import Outcome, Verdict
from minidbg.fx.copying import bytes_of
from minidbg.fx.edit import CannotExtract, extract
from minidbg.fx.effects import graph_attribute, is_call, tensors_in
from minidbg.fx.mutation import broken_contracts
from minidbg.fx.record import ModeContext, Recording, runs_in_eager
from minidbg.judge.suspects import Suspects
from minidbg.torch_internals.devices import place_of

SHOWN = (Verdict.REPRODUCES, Verdict.FLAKY)
"""Verdicts of what fails in the same way."""
REFUSED = Outcome(Verdict.INVALID, reason="eager takes no such graph")

BATCH = 4
"""Edits that are drawn from the passes at once, always: what a pass sees when it goes on, and so
the result, is the same for any number of jobs and any speed."""
WORTH_ASKING_BESIDE_S = 0.2
"""Seconds of a question from which on it pays to ask what comes after it at the same time."""
MOST_BYTES_AHEAD = 256 << 20
"""Of a question's inputs: two at the same time take twice the memory."""
MOST_STEPS = 4
"""Accepted candidates that are kept: each holds recorded values."""
TELLING = ("nodes", "bypass", "inputs", "outputs")
"""Phases whose candidates lack one node or input of ``best``: what a passing one of them lacks says
most about a failure first."""


class BudgetSpent(Exception):
    """No call is left. Passes let it through; the driver ends with the best so far."""


def last_that_holds(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The last place that holds, by bisection: ``low`` is taken to hold, and ``high`` not to."""
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


ArgumentPlace: TypeAlias = tuple[str, int | str]
"""A call and which of its arguments."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A graph and its inputs, not to be changed. ``tokens`` tell input values apart unseen."""

    graph_module: fx.GraphModule
    inputs: tuple[Any, ...]
    tokens: tuple[Hashable, ...]
    faithful: bool = False
    """Whether eager need not be asked, since all of it ran in eager before."""
    epoch: str = ""
    """Changes with each edit that changes values: recorded ones are not taken for earlier ones."""
    rewrites: Mapping[ArgumentPlace, tuple[Any, ...]] = field(default_factory=dict)
    """The originals of the arguments made plainer on the way to it."""

    @classmethod
    def whole(cls, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Candidate:
        names = [node.name for node in graph_module.graph.find_nodes(op="placeholder")]
        tokens = tuple(("value", "", name, 0, ()) for name in names)
        return cls(graph_module, tuple(inputs), tokens, faithful=True)

    def edited(
        self, graph_module: fx.GraphModule, inputs: tuple[Any, ...], tokens: tuple[Hashable, ...]
    ) -> Candidate:
        return Candidate(graph_module, inputs, tokens, epoch=self.epoch, rewrites=self.rewrites)

    @property
    def calls(self) -> list[fx.Node]:
        return [node for node in self.graph_module.graph.nodes if is_call(node)]

    def call(self, name: str) -> fx.Node | None:
        return next((node for node in self.calls if node.name == name), None)

    @cached_property
    def key(self) -> str:
        """Equal for equal candidates; the names of the nodes do not count."""
        held = [node.target for node in self.graph_module.graph.nodes if node.op in HOLDS]
        text = f"{canonical_text(self.graph_module)}{held}{self.tokens}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    @cached_property
    def size(self) -> tuple[int, ...]:
        """What a reduction makes smaller, most important first: calls, inputs and own tensors, outputs."""
        graph = self.graph_module.graph
        own = [graph_attribute(node) for node in graph.find_nodes(op="get_attr")]
        returned = next((node.args[0] for node in graph.find_nodes(op="output")), ())
        outputs = len(returned) if isinstance(returned, tuple | list) else 1
        taken = len(self.inputs) + sum(isinstance(value, torch.Tensor) for value in own)
        return call_nodes(self.graph_module), taken, outputs


Oracle: TypeAlias = Callable[[Sequence[Candidate]], Sequence[Outcome]]
"""What a run of each candidate shows, all run at the same time."""
GraphEdit: TypeAlias = Callable[["Search"], Candidate | None]
Pass: TypeAlias = Callable[["Search"], Iterator[GraphEdit | None]]


@dataclass(slots=True)
class Search:
    """What a reduction pass works on. A pass is a function of a search that yields edits.

    Writing a pass:

    - Look at ``search.best`` (or at ``search.recording``, the values inside it) and yield edits.
      An edit builds a smaller ``Candidate`` from whatever is ``best`` when it is called, most often
      with ``search.cut``, and gives None where what it is about has gone: names of nodes stay.
      ``run_passes`` asks; some edits are drawn before the first of them is asked.
    - Where the next question follows from an answer, yield None: what was drawn is answered then.
      After it, call ``search.consider(candidate)``. If it returns True, the candidate fails in the
      same way, and it is ``search.best`` now when it is smaller.
    - A candidate seen before, one that cannot run in eager and one without any call cost nothing,
      so a pass need not avoid them. Whether a candidate makes progress is decided by its ``size``.
    - A pass need not run to a fixed point: the driver repeats them until none changes ``best``.
    - A pass must be deterministic and must not catch ``BudgetSpent`` or ``KeyboardInterrupt``.
    """

    best: Candidate
    ask: Oracle
    until: Deadline = NEVER
    max_calls: float = math.inf
    jobs: int = 1
    """Questions at the same time; 1 where runs disturb each other, somebody counts, or chance decides."""
    on_answer: Callable[[Search, Candidate, Outcome, bool], object] = lambda *answer: None
    """Hears each answer as it is learnt, and whether the candidate is ``best`` by it."""
    by_predicate: bool = False
    """Whether a predicate of the user's answers: nobody has seen the whole fail then, and a graph
    without any call may be a candidate."""
    around: ModeContext = nullcontext
    """The modes in which the graph runs in eager."""
    traits: Traits = UNSEEN
    """Of the failure's kind."""
    fails_in_inputs: bool = False
    """Whether an input after the call is wrong: an output with the same write is another failure."""
    hints: Sequence[str] = ()
    """Words of the error, which may be names of nodes or ops: the culprits'."""
    frames: Callable[[], Suspects] = tuple
    """The nodes that the frames of ``best``'s failure held, where known; innermost frame first."""
    followed: Suspects | None = None
    """What was asked of them."""
    phase: str = "reduce"
    asked: int = 0
    steps: list[Candidate] = field(default_factory=list)
    """The last accepted candidates, largest first."""
    proven: Candidate | None = None
    """What no single removal made smaller."""
    is_out_of_budget: bool = False
    latest: tuple[tuple[Verdict, float], ...] = ()
    """The last two answers, each with the seconds that it took."""
    neighbour: tuple[int, Candidate] | None = None
    """A candidate one step smaller than ``best`` that passed, of the most telling phase."""
    plainness: Callable[[Candidate], tuple[float, ...]] | None = None
    """Decides between candidates of equal size, while a reduction simplifies."""
    keep_passed_through: bool = False
    """Whether inputs that the graph returns must stay outputs for the failure to show."""
    settled_sizes: dict[int, int] = field(default_factory=dict)
    """Sizes that an earlier round found needed, each with the next smaller one that it tried."""
    passing: list[Set[str]] = field(default_factory=list)
    """Names of calls that passed in this round: a part is presumed to pass, which proves nothing."""
    answers: dict[str, Verdict] = field(default_factory=dict)
    beforehand: dict[str, tuple[Outcome, float]] = field(default_factory=dict)
    """Answers to what no pass has asked yet, with their seconds: they count once it does."""
    started: float = field(default_factory=time.monotonic)
    _recording: tuple[Candidate, Recording] | None = None
    _broken: frozenset[tuple[str, str]] = field(init=False)

    def __post_init__(self) -> None:
        self._broken = broken_contracts(self.best.graph_module)

    @property
    def recording(self) -> Recording:
        if self._recording is None or self._recording[0] is not self.best:
            best = self.best
            self._recording = best, Recording(best.graph_module, best.inputs, around=self.around)
        return self._recording[1]

    def cut(
        self,
        keep: Set[fx.Node] | None = None,
        *,
        out_of: tuple[Candidate, Recording] | None = None,
        **how: Any,
    ) -> Candidate | None:
        """The candidate of just the calls in ``keep``, nodes of ``best`` or of the earlier candidate
        ``out_of``; of all calls of it by default. ``how`` goes to ``fx.edit.extract``. None when a
        value that it needs cannot be recorded."""
        base, recording = out_of or (self.best, self.recording)
        how.setdefault("passed_through", self.keep_passed_through)
        how.setdefault("returns_writes", not self.fails_in_inputs)
        try:
            piece = extract(recording, {*base.calls} if keep is None else keep, **how)
        except CannotExtract:
            return None
        token_of = dict(zip(recording.placeholders, base.tokens, strict=True))
        tokens = tuple(
            token_of[node]
            if node in token_of and not writes
            else ("value", base.epoch, node.name, writes, path)
            for node, writes, path in piece.origins
        )
        return replace(base.edited(piece.graph_module, piece.inputs, tokens), faithful=piece.faithful)

    def consider(self, candidate: Candidate | None) -> bool:
        """Whether ``candidate`` fails in the same way; it becomes ``best`` if it is smaller. None:
        it could not be built. Raises BudgetSpent, and what the oracle raises."""
        return candidate is not None and self.answer(candidate) in SHOWN

    def answer(self, candidate: Candidate) -> Verdict:
        """The verdict on ``candidate``, from memory where it is known; INVALID if it is refused."""
        outcome = None
        if candidate.key not in self.answers:
            if self._is_new(candidate):
                self._ask({candidate.key: candidate})
            outcome, seconds = self.beforehand.pop(candidate.key, (REFUSED, 0.0))
            self.answers[candidate.key] = outcome.verdict
        verdict = self.answers[candidate.key]
        is_step = verdict in SHOWN and (
            candidate.size < self.best.size
            if self.plainness is None or candidate.size != self.best.size
            else self.plainness(candidate) < self.plainness(self.best)
        )
        if is_step:
            self.best = candidate if candidate.faithful else replace(candidate, epoch=candidate.key)
            self.steps = [*self.steps, self.best][-MOST_STEPS:]
            self.neighbour = None
        if outcome is not None and outcome is not REFUSED:
            self.asked += 1
            self.latest = (*self.latest[-1:], (verdict, seconds))
            rank = TELLING.index(self.phase) if self.phase in TELLING else len(TELLING)
            most_telling = self.neighbour[0] if self.neighbour else len(TELLING) - 1
            if verdict is Verdict.GONE and rank <= most_telling:
                self.neighbour = rank, candidate
            self.on_answer(self, candidate, outcome, is_step)
        return verdict

    def _ask(self, fresh: Mapping[str, Candidate]) -> None:
        """One question for each, by its key, all at the same time; nothing is learnt yet."""
        if self.until.is_over or self.asked >= self.max_calls:
            raise BudgetSpent
        began = time.monotonic()
        outcomes = self.ask(list(fresh.values()))
        seconds = time.monotonic() - began
        self.beforehand |= {key: (outcome, seconds) for key, outcome in zip(fresh, outcomes, strict=True)}

    def ask_beside(self, edits: Iterable[GraphEdit | None]) -> None:
        """Ask the first of ``edits`` together with what comes after it, where that saves time and
        costs little memory: as many as there are jobs, and none beyond a None. Not where questions
        are quick, or the last two failed: what follows is another question then."""
        is_worth = bool(self.latest) and self.latest[-1][1] >= WORTH_ASKING_BESIDE_S
        have_failed = len(self.latest) == 2 and all(verdict in SHOWN for verdict, _ in self.latest)
        has_room = bytes_of(tensors_in(self.best.inputs)) <= MOST_BYTES_AHEAD
        if self.jobs == 1 or self.max_calls < math.inf or not is_worth or have_failed or not has_room:
            return
        fresh: dict[str, Candidate] = {}
        for edit in edits:
            candidate = edit(self) if edit else None
            if candidate is not None and self._is_new(candidate):
                fresh[candidate.key] = candidate
            if edit is None or not fresh or len(fresh) == self.jobs:
                break
        if len(fresh) > 1:
            self._ask(fresh)

    def _is_new(self, candidate: Candidate) -> bool:
        is_known = candidate.key in self.answers or candidate.key in self.beforehand
        return not is_known and self.is_valid(candidate)

    def is_valid(self, candidate: Candidate) -> bool:
        """Whether ``candidate`` has anything in it and runs in eager; costs no run. On an
        accelerator the oracle finds out: an index out of range leaves the device in error here."""
        calls, _, outputs, *_ = candidate.size
        if (not calls and not (self.by_predicate and outputs)) or not self.keeps_contracts(candidate):
            return False
        if candidate.faithful or place_of(candidate.inputs) != "cpu":
            return True
        return runs_in_eager(candidate.graph_module, candidate.inputs, self.around)

    def keeps_contracts(self, candidate: Candidate) -> bool:
        """Whether ``candidate`` keeps all contracts of ops and levels that the program's own graph keeps.

        Compilers refuse such a graph, in words that may be those of the failure; a body that
        returns what it carries may be a loop without end; and a level that is entered and not left
        is in the way of whatever runs next, dynamo included.
        """
        return broken_contracts(candidate.graph_module) <= self._broken

    def confirm_whole(self) -> None:
        """Make sure that the whole fails, when nothing smaller has. Raises NotReproduced."""
        if not self.steps and self.answer(self.best) not in SHOWN:
            raise NotReproduced(
                "nothing to reduce: the interestingness test says that the whole graph does not fail. "
                "Call it with the graph and inputs given to see why"
            )


def run_passes(search: Search, passes: Iterable[tuple[str, Pass]]) -> None:
    """Consider the edits of the passes in order, across their ends: ``BATCH`` of them are drawn at
    once, or fewer up to a None."""
    edits = ((name, edit) for name, reduction_pass in passes for edit in reduction_pass(search))
    for first in edits:
        batch = [first]
        while batch[-1][1] is not None and len(batch) < BATCH and (drawn := next(edits, None)):
            batch.append(drawn)
        while batch:
            search.ask_beside(edit for _, edit in batch)
            search.phase, edit = batch.pop(0)
            search.consider(edit(search) if edit else None)
