"""From a failing case to a verified repro script: reduce, simplify what is around the graph, write, run, publish.

Runs in a process of its own where it can (``backend.respond`` and the command line see to that): each oracle call
is a child of this process. Nothing is announced that was not run in a fresh interpreter and failed there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from minidbg import repro, workers
from minidbg.case import CallPath, Case
from minidbg.errors import NotReproduced
from minidbg.failure import Kind, Outcome, Verdict
from minidbg.graphs import describing, tensors
from minidbg.graphs.origins import user_line
from minidbg.graphs.size import call_nodes
from minidbg.reduction import core, surroundings
from minidbg.reduction.progress import Event, Listener, silent
from minidbg.repro import Exactness

Ask: TypeAlias = Callable[[Case], Outcome]
"""One oracle call."""

VERIFY_SECONDS = 120.0
"""Time limit of the run in a fresh interpreter; importing torch and inductor is most of a usual one."""

ANSWERS: Mapping[Verdict, core.Answer] = {
    Verdict.REPRODUCES: core.Answer.INTERESTING,
    Verdict.FLAKY: core.Answer.INTERESTING,
    Verdict.CHANGED: core.Answer.OTHER,
    Verdict.CRASHED: core.Answer.OTHER,
    Verdict.TIMEOUT: core.Answer.OTHER,
    Verdict.GONE: core.Answer.NOT,
    Verdict.SKIPPED: core.Answer.INVALID,
    Verdict.INVALID: core.Answer.INVALID,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a reduction may spend. The verification of its result comes on top."""

    seconds: float = 300.0
    max_calls: int | None = None
    call_seconds: float = 60.0
    """Time limit of one oracle call."""
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a case: the verified repro, or why there is none."""

    path: Path | None
    """The verified repro at the top of the folder; None when no form of the case failed in a fresh interpreter."""
    nodes_before: int
    nodes_after: int
    oracle_calls: int
    seconds: float
    certified: bool
    verdict: Verdict
    """Of the last run in a fresh interpreter."""
    notes: tuple[str, ...] = ()
    also_found: int = 0
    """Other failures met on the way."""

    @property
    def line(self) -> str:
        """The result in one line, for stderr and for the exception's note."""
        counts = f"{self.nodes_before} -> {self.nodes_after} nodes, {self.oracle_calls} oracle calls, {self.seconds:.1f} s"
        if self.path is None:
            return (
                f"{counts}; no verified repro ({self.verdict}): {'; '.join(self.notes) or 'no reason known'}"
            )
        extra = "" if self.certified else " (not certified as minimal)"
        return f"{counts}{extra}; run: python {self.path}"

    def to_json(self) -> dict[str, Any]:
        """Plain values; ``from_json`` reads them back."""
        return {
            "path": str(self.path) if self.path else None,
            "nodes_before": self.nodes_before,
            "nodes_after": self.nodes_after,
            "oracle_calls": self.oracle_calls,
            "seconds": round(self.seconds, 3),
            "certified": self.certified,
            "verdict": str(self.verdict),
            "notes": list(self.notes),
            "also_found": self.also_found,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Written:
        """Read ``to_json`` back. Raises KeyError or ValueError on a damaged object."""
        fields = dict(data)
        fields["path"] = Path(fields["path"]) if fields["path"] else None
        fields["verdict"] = Verdict(fields["verdict"])
        fields["notes"] = tuple(fields["notes"])
        return cls(**fields)


@dataclass(slots=True)
class Session:
    """One reduction in progress: what it may spend, what it has spent, what else it met."""

    limits: Limits
    listener: Listener = silent
    ask_once: Ask | None = None
    """Another way to run a case, for tests; the default is a forked child."""
    started: float = field(default_factory=time.monotonic)
    oracle_calls: int = 0
    others: dict[str, Case] = field(default_factory=dict)
    """One case for each other failure met, by its signature."""
    kernels: Path | None = None
    """The kernel cache of its oracle calls."""
    too_slow_nodes: int | None = None
    """Nodes of the smallest graph that ran into the time limit: larger ones are not asked."""

    def elapsed(self) -> float:
        """Seconds since the session began."""
        return time.monotonic() - self.started

    def remaining(self) -> float:
        """Seconds left of the budget, never negative."""
        return max(0.0, self.limits.seconds - self.elapsed())

    def ask(self, case: Case) -> Outcome:
        """One oracle call, counted; failures other than the expected one are remembered."""
        nodes = call_nodes(case.graph_module)
        if self.too_slow_nodes is not None and nodes >= self.too_slow_nodes and case.kind is not Kind.HANG:
            return Outcome(Verdict.INVALID, reason=f"{self.too_slow_nodes} nodes did not finish in time")
        self.oracle_calls += 1
        outcome = self.ask_once(case) if self.ask_once is not None else self.in_a_child(case)
        if outcome.verdict is Verdict.TIMEOUT:
            self.too_slow_nodes = nodes
        if ANSWERS[outcome.verdict] is core.Answer.OTHER and outcome.signature is not None:
            self.others.setdefault(
                str(outcome.signature.to_table()), replace(case, signature=outcome.signature)
            )
        return outcome

    def in_a_child(self, case: Case) -> Outcome:
        """One oracle call in a forked child; what a killed one left half written in the kernel cache goes."""
        began = time.time()
        outcome = workers.submit(
            case, seconds=self.limits.call_seconds, memory_bytes=self.limits.memory_bytes
        )
        died = outcome.signature is not None and outcome.signature.kind in (Kind.CRASH, Kind.HANG)
        if died and self.kernels is not None:
            workers.remove_unfinished(self.kernels, since=began)
        return outcome

    def fails_the_same(self, case: Case) -> bool:
        """Whether an oracle call shows the case's own failure."""
        return ANSWERS[self.ask(case).verdict] is core.Answer.INTERESTING

    def tell(self, phase: str, nodes: int, start_nodes: int) -> None:
        """Report progress."""
        self.listener(Event(phase, nodes, start_nodes, self.oracle_calls, self.elapsed()))


@dataclass(frozen=True, slots=True)
class Form:
    """A case and how exactly its values are written: one thing to try as a script."""

    case: Case
    exactness: Exactness
    note: str = ""


def reduce_and_publish(
    case: Case, folder: Path, *, limits: Limits, listener: Listener = silent, just_seen: bool = False
) -> Written:
    """Reduce ``case`` and leave a verified repro in ``folder``.

    ``just_seen``: the whole case failed a moment ago, so it is not asked again unless nothing smaller fails.
    Raises NotReproduced when the whole case does not show its failure here.
    """
    with workers.own_kernel_cache() as kernels:
        session = Session(limits, listener, kernels=kernels)
        smallest, steps, certified = reduce_case(case, session, just_seen=just_seen)
        return publish_first_that_fails(case, smallest, steps, certified, folder, session)


def reduce_case(case: Case, session: Session, *, just_seen: bool) -> tuple[Case, list[Case], bool]:
    """The smallest case found, the accepted steps on the way (largest first), and whether it is certified.

    When nothing smaller than the whole fails on the way through torch.compile, the other call path is tried.
    """
    if not just_seen:
        case = reproducing_path(case, session)
    reduced = reduce_graph_of(case, session)
    if just_seen and not reduced.steps and not reduced.interrupted and session.remaining() > 0:
        # Nothing smaller failed. Either all of it is needed, or this path never shows the failure: ask the whole.
        found = reproducing_path(case, session)
        if found.call is not case.call:
            case, reduced = found, reduce_graph_of(found, session)
    steps = [case.with_graph(graph, inputs) for graph, inputs in reduced.steps]
    smallest = case.with_graph(reduced.graph_module, tuple(reduced.inputs))
    simpler = surroundings.simplify(smallest, session.fails_the_same, session.remaining)
    return simpler, [*steps, smallest], reduced.certified


def reproducing_path(case: Case, session: Session) -> Case:
    """``case`` with the call path on which the whole of it shows its failure. Raises NotReproduced."""
    outcomes = []
    for call in (case.call, *(other for other in CallPath if other is not case.call)):
        candidate = replace(case, call=call)
        outcome = session.ask(candidate)
        if ANSWERS[outcome.verdict] is core.Answer.INTERESTING:
            if outcome.signature is not None and case.signature is None:
                return with_failure(candidate, outcome)
            return candidate
        outcomes.append(outcome)
    said = outcomes[0]
    raise NotReproduced(
        f"the case does not show its failure here: {said.verdict}{': ' + said.reason if said.reason else ''}. "
        f"Expected {case.kind or 'any failure'}; values, threads or the machine may matter",
        said,
    )


def reduce_graph_of(case: Case, session: Session) -> core.Reduced:
    """Reduce the graph and its inputs with the session's oracle."""
    start = call_nodes(case.graph_module)

    def ask(graph_module: Any, inputs: Sequence[Any]) -> core.Answer:
        return ANSWERS[session.ask(case.with_graph(graph_module, tuple(inputs))).verdict]

    def on_progress(progress: core.Progress) -> None:
        session.tell(progress.phase, progress.nodes, start)

    return core.reduce_graph(
        case.graph_module,
        case.inputs,
        ask,
        hints=surroundings.hints(case),
        budget=core.Budget(max_calls=session.limits.max_calls, seconds=session.remaining()),
        on_progress=on_progress,
    )


def publish_first_that_fails(
    original: Case, smallest: Case, steps: Sequence[Case], certified: bool, folder: Path, session: Session
) -> Written:
    """Write the first form that fails the same way in a fresh interpreter; forms go from short to faithful."""
    start, last = call_nodes(original.graph_module), Outcome(Verdict.INVALID, reason="nothing was run")
    for form in forms(smallest, steps, original):
        session.tell("verify", call_nodes(form.case.graph_module), start)
        if form.exactness is not Exactness.EXACT and not seeded_values_suffice(form, session):
            continue
        is_smallest = call_nodes(form.case.graph_module) == call_nodes(smallest.graph_module)
        for variant in (form, single_threaded(form)):
            case = with_story(variant, original, certified and is_smallest, session)
            last = verify(case, form.exactness, folder)
            if last.verdict is Verdict.REPRODUCES:
                path = repro.publish(case, folder, exactness=form.exactness)
                return written(path, case, original, last, session)
            if last.verdict is not Verdict.CRASHED:
                break
    return written(None, smallest, original, last, session)


def forms(smallest: Case, steps: Sequence[Case], original: Case) -> Iterator[Form]:
    """What to try as a script, in order: what a reader wants most first, what surely fails last."""
    for exactness in (Exactness.SEEDED, Exactness.SMALL, Exactness.EXACT):
        yield Form(smallest, exactness, EXACTNESS_NOTES[exactness])
    if smallest.call is CallPath.TORCH_COMPILE:
        direct = replace(smallest, call=CallPath.DIRECT)
        yield Form(direct, Exactness.EXACT, "fails only when the backend is called directly with this graph")
    for step in reversed(steps[-4:]):
        yield Form(step, Exactness.EXACT, "a smaller form did not fail in a fresh interpreter")
    yield Form(original, Exactness.EXACT, "no reduced form failed in a fresh interpreter")


def single_threaded(form: Form) -> Form:
    """The form with one thread, as the oracle calls have it: C++ code ends the process where it throws in a second one."""
    context = replace(form.case.context, threads=1, threads_matter=True)
    note = "; ".join(
        part for part in (form.note, "with more than one thread the process dies instead") if part
    )
    return replace(form, case=replace(form.case, context=context), note=note)


EXACTNESS_NOTES: Mapping[Exactness, str] = {
    Exactness.SEEDED: "",
    Exactness.SMALL: "integers, booleans and small tensors hold the values of the failing run",
    Exactness.EXACT: "the tensors hold the values of the failing run: seeded ones did not fail",
}


def seeded_values_suffice(form: Form, session: Session) -> bool:
    """Whether the case fails with the values that its script would make: cheaper to ask here than in a new process."""
    names = [node.name for node in form.case.graph_module.graph.nodes if node.op == "placeholder"]
    specs = describing.describe(form.case.inputs, names, form.exactness)
    return session.fails_the_same(replace(form.case, inputs=tuple(tensors.materialise(specs))))


def with_story(form: Form, original: Case, certified: bool, session: Session) -> Case:
    """The form's case with what its docstring tells of the way it was found."""
    where, line = user_line(form.case.graph_module, original.provenance.message, last=True)
    story = replace(
        original.provenance,
        captured_from=where or original.provenance.captured_from,
        line=line if where else original.provenance.line,
        reduced=True,
        certified=certified,
        oracle_calls=session.oracle_calls,
        seconds=session.elapsed(),
        notes=(*original.provenance.notes, *([form.note] if form.note else [])),
    )
    return replace(form.case, provenance=story)


def with_failure(case: Case, outcome: Outcome) -> Case:
    """``case`` expecting the failure that ``outcome`` showed, and telling its message."""
    story = replace(case.provenance, message=outcome.message)
    return replace(case, signature=outcome.signature, provenance=story)


def verify(case: Case, exactness: Exactness, folder: Path, *, seconds: float = VERIFY_SECONDS) -> Outcome:
    """Run the case's script in a fresh interpreter, from a place that is not the repro folder's top."""
    draft = repro.write(case, repro.drafts(folder) / "draft.py", exactness=exactness)
    try:
        return repro.run(draft, seconds=seconds)
    finally:
        repro.discard(draft)


def written(path: Path | None, case: Case, original: Case, last: Outcome, session: Session) -> Written:
    """The session's result in plain values."""
    notes = case.provenance.notes if path else (*case.provenance.notes, last.reason)
    return Written(
        path=path,
        nodes_before=call_nodes(original.graph_module),
        nodes_after=call_nodes(case.graph_module),
        oracle_calls=session.oracle_calls,
        seconds=session.elapsed(),
        certified=case.provenance.certified,
        verdict=last.verdict,
        notes=notes,
        also_found=len(session.others),
    )


def reduce_path(
    path: Path,
    *,
    seconds: float = 300.0,
    max_calls: int | None = None,
    folder: Path | None = None,
    listener: Listener = silent,
) -> Written:
    """Reduce the capture or repro at ``path``. The result goes to ``folder``, or to the repro folder it lies in.

    Raises UnreadableRepro, NotReproduced, and whatever loading the script's backend raises.
    """
    case = repro.load(path)
    limits = Limits(seconds=seconds, max_calls=max_calls)
    return reduce_and_publish(case, folder or repro.folder_of(path), limits=limits, listener=listener)
