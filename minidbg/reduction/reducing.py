"""From a failing case to a verified repro: reduce, simplify the surroundings, write, run, publish.
Each run is a child of this process, which is one of its own where that can be."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from minidbg import backends, oracle, repro, torch_internals, workers
from minidbg.codegen.size import call_nodes
from minidbg.core import foreign
from minidbg.core.errors import BackendUnreachable, BadSetting, Interrupted, MinidbgError, NotReproduced
from minidbg.core.files import LOG_LIMIT_BYTES, read_regular, replace_file
from minidbg.core.outcome import Outcome, Verdict
from minidbg.core.run_spec import LOST, STAND_IN_NOTE, CallPath, CompilerFn, Context, Level
from minidbg.core.text import abridged, display_path, plural
from minidbg.fx.case import Case
from minidbg.fx.context import entered_modes
from minidbg.fx.ranks import on_its_rank
from minidbg.judge.compare import margin_for
from minidbg.judge.precision import OnCpu
from minidbg.judge.run import NOT_CALLED
from minidbg.oracle.execute import ANOTHER_GRAPH
from minidbg.reduction import context_passes, driver
from minidbg.reduction.find import hints_from_error
from minidbg.reduction.publishing import VERIFY_SECONDS, Reduced, publish_first_that_fails, with_failure
from minidbg.reduction.result import Limits, Listener, ReductionResult, on_stream, silent
from minidbg.reduction.search import SHOWN, BudgetSpent, Candidate, Search
from minidbg.reduction.session import (
    BEST_FILE,
    MOST_REPEATS,
    RUNS_OF_WHOLE,
    Reliability,
    Session,
    may_run_together,
    measured,
    runs_worth_having,
    standbys,
)
from minidbg.torch_internals import devices

log = logging.getLogger("minidbg")
DONE_FILE = "done.json"
"""What the last reduction in a folder ended with, as ``ReductionResult.to_json``."""
OTHERS_KEPT = 5
"""Other failures of one reduction that are kept as captures."""


def reduce_and_publish(
    case: Case,
    folder: Path,
    *,
    limits: Limits,
    listener: Listener = silent,
    just_seen: bool = False,
    submit: workers.Submit = workers.submit,
) -> ReductionResult:
    """Reduce ``case`` and leave a verified repro in ``folder``.

    Where a reduction of the same case was ended before its end, this one begins from the best of
    that. Several processes may reduce the same case at once: one does, and the others take its
    result. ``just_seen``: the whole case failed a moment ago, so it is not asked again unless
    nothing smaller fails. Other failures that the search met become captures. Ctrl-C ends the
    search, and what it has is published; a second one raises Interrupted. Raises NotReproduced
    when the whole case does not show its failure here.
    """
    session = Session(limits, listener, submit=submit)
    lock = locked_folder(case, folder, session)
    with workers.own_kernel_cache() as session.kernels, lock as session.folder:
        own_folder = session.folder
        if own_folder is not None and just_seen:
            published = earlier_result(own_folder, session)
            if published is not None:
                return published
        ready = sum(workers.prepared())
        with standbys(case, session):
            written = None
            try:
                reduced = reduce_from_best(case, session)
                reduced = reduced or reduce_case(case, session, just_seen=just_seen)
                proof_began = time.monotonic()
                while written is None:
                    try:
                        written = publish_first_that_fails(case, reduced, folder, session)
                    except KeyboardInterrupt:
                        if session.interrupted:
                            raise
                        session.interrupted = True  # the first ends the search alone: it was over
            except KeyboardInterrupt:
                session.keep_best()
                best = own_folder / BEST_FILE if own_folder is not None else None
                raise Interrupted(
                    "interrupted before anything smaller was found; start it again"
                    if best is None or not best.is_file()
                    else f"interrupted before a repro was verified; the best so far is {best}, "
                    "and starting again goes on from there"
                ) from None
            finally:
                others = keep_others(folder, session)
        written = replace(written, others=others)
        imports, warm = workers.prepared()
        proof, asked = time.monotonic() - proof_began, session.asked_s + ready - imports - warm
        parts = f"imports {imports:.1f}, warm-up {warm:.1f}, questions {asked:.1f}"
        log.info("minidbg: %.1f s: %s, proof %.1f", session.elapsed(), parts, proof)
        if written.path is not None and own_folder is not None:
            with contextlib.suppress(OSError):
                data = json.dumps(written.to_json()).encode()
                replace_file(own_folder / DONE_FILE, data, private=True)
            repro.discard(own_folder / BEST_FILE)
        return written


@contextlib.contextmanager
def locked_folder(case: Case, folder: Path, session: Session) -> Iterator[Path | None]:
    """Lock this case's reduction folder, for its result and the best so far; None if impossible."""
    try:
        own_folder = repro.reduction_folder(case, folder)
        lock = FileLock(own_folder / "lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            session.tell("waiting for another process that reduces this failure", 0, 0)
            lock.acquire(timeout=session.remaining())
    except (OSError, Timeout):
        yield None
        return
    try:
        yield own_folder
    finally:
        lock.release()


def earlier_result(own_folder: Path, session: Session) -> ReductionResult | None:
    """The result of an earlier reduction of this very case, when its repro is there, certified, and
    fails now, before the deadline."""
    with contextlib.suppress(OSError, KeyError, TypeError, ValueError, RecursionError, MinidbgError):
        data = read_regular(own_folder / DONE_FILE, LOG_LIMIT_BYTES)
        written = ReductionResult.from_json(json.loads(data))
        if written.path is not None and written.certified and written.path.is_file():
            seconds = session.deadline.left(VERIFY_SECONDS)
            outcome = repro.run(written.path, seconds=seconds, submit=session.submit)
            return replace(written, known_before=True) if outcome.verdict in SHOWN else None
    return None


def reduce_from_best(case: Case, session: Session) -> Reduced | None:
    """``reduce_case`` from the best of a reduction of ``case`` that was ended; None where there is
    none that still fails."""
    path = session.folder / BEST_FILE if session.folder is not None else None
    if path is None or not path.is_file():
        return None
    try:
        best = repro.load(path)
    except Exception as error:  # noqa: BLE001 - a damaged script: its code may raise anything
        log.warning("minidbg: %s is skipped: %s", display_path(path), foreign.first_line_of(error))
        return None
    with contextlib.suppress(NotReproduced):
        smaller = case.with_graph(best.graph_module, best.inputs)
        return reduce_case(smaller, session, just_seen=False)
    return None


def keep_others(folder: Path, session: Session) -> tuple[tuple[str, str], ...]:
    """Keep the other failures as captures; what each said, and where it lies."""
    kept, limit = [], session.limits.value_limit_bytes
    for case, outcome in list(session.others.values())[:OTHERS_KEPT]:
        with contextlib.suppress(OSError, MinidbgError):
            path = repro.keep_capture(with_failure(case, outcome), folder, value_limit_bytes=limit)
            kept.append((abridged(outcome.message, 100), str(path)))
    return tuple(kept)


SMALL_WHOLE = 50
"""Nodes up to which a whole that nobody has just seen fail is asked before anything else."""


def reduce_case(case: Case, session: Session, *, just_seen: bool) -> Reduced:
    """Search for the smallest case that fails as ``case`` does; ``case`` itself where the budget
    ends before any is found.

    A large whole is taken at its word: it was captured because it failed, and compiling it again
    may take longer than all that follows. When nothing smaller fails on the way through
    torch.compile, the whole is asked, and the other call path tried. One that left its device in
    error is asked first: nobody could see whether eager would have done the same. So is a hang,
    which a busy machine makes of a slow compile: each question about anything smaller would take
    the whole time limit. Raises NotReproduced.
    """
    untried_in_eager = case.spec.traits.raises_when_run and STAND_IN_NOTE in case.provenance.notes
    believed = not (untried_in_eager or case.spec.traits.endless) and (
        just_seen or (case.signature is not None and call_nodes(case.graph_module) > SMALL_WHOLE)
    )
    chance = Reliability(1, 1)
    try:
        search = searched(case, session, believed=True) if believed else None
        if search is None or (not search.steps and session.remaining() > 0):
            # Nothing smaller failed: all of it is needed, or this path never shows the failure.
            whole, chance = reproducing_path(case, session)
            way = whole.spec.call, whole.backend, whole.spec.context
            another = way != (case.spec.call, case.backend, case.spec.context)
            is_open = not (search and (search.proven or search.is_out_of_budget))
            if search is None or is_open or another or chance.is_flaky:
                case, search = whole, searched(whole, session)
    except BudgetSpent:
        return Reduced(case, ended_by=session.budget)
    steps = search.steps
    if steps and not chance.is_flaky and session.remaining() > 0:
        with contextlib.suppress(BudgetSpent):
            smallest = of_case(case, search.best)
            chance = measured(smallest, session, failed=1, runs=1, more=runs_worth_having(case))
            if chance.is_flaky:  # what passed on the way may have passed by chance: once more
                session.repeats = chance.repeats
                search = searched(smallest, session)
                steps = [*steps, *search.steps]
    session.best = smallest = of_case(case, search.best)

    def fails(simpler: Case) -> bool:
        try:
            return not session.interrupted and session.fails(simpler, "settings")
        except KeyboardInterrupt:
            session.interrupted = True
            return False

    simpler = context_passes.simplify(smallest, fails)
    notes = ("interrupted by Ctrl-C",) if session.interrupted else ()
    if chance.is_flaky:
        simpler = simpler.with_spec(attempts=session.repeats)
        how_often = f"flaky: it {chance}, so each question was asked up to {session.repeats} times"
        notes = (how_often, *notes)
    passed = search.neighbour[1] if search.neighbour else None
    is_short = search.is_out_of_budget or session.until.is_over
    return Reduced(
        simpler,
        (*(of_case(case, step) for step in steps), smallest),
        certified=search.proven is search.best and not session.interrupted,
        notes=notes,
        neighbour=of_case(case, passed) if passed else None,
        ended_by=session.budget if is_short and not session.interrupted else "",
    )


def reproducing_path(case: Case, session: Session) -> tuple[Case, Reliability]:
    """``case`` with the call path, or rank, on which the whole shows its failure, and how often: it
    gets more chances where it did not at once and may be flaky. Raises NotReproduced."""
    tried = []
    is_aten = case.spec.level is Level.ATEN
    others = [call for call in CallPath if call is not case.spec.call and not is_aten]
    calls = (case.with_spec(call=call) for call in (case.spec.call, *others))
    for candidate in filter(None, [*calls, on_its_rank(case)]):
        (outcome,) = session.ask([candidate], phase="reduce")
        if outcome.verdict in SHOWN:
            if candidate.backend is not case.backend:
                session.others.clear()  # what a backend says that finds no ranks is not its failure
            if outcome.signature is not None and case.signature is None:
                candidate = with_failure(candidate, outcome)
            return candidate.with_spec(margin=margin_for(outcome.figures)), Reliability(1, 1)
        tried.append((candidate, outcome))
    said = tried[0][1]
    ways = [f"{CALLED[one.spec.call]} ({outcome.verdict})" for one, outcome in tried]
    if said.verdict is Verdict.GONE and runs_worth_having(case):
        known = measured(case, session, failed=0, runs=1, more=RUNS_OF_WHOLE)
        if known.failed and known.repeats <= MOST_REPEATS:
            session.repeats = known.repeats
            return case, known
        if known.failed:
            why = f"it {known}: too rarely to reduce it, so the whole graph is kept"
            raise NotReproduced(why, said)
        ways.append(f"{plural(known.runs, 'run')} in all")
        context, traits = case.spec.context, case.spec.traits
        threads = context.threads or 1
        if threads > 1 and not context.threads_matter and traits.compiles and not traits.endless:
            # forks have one, and more may be what is missing
            threaded = case.with_spec(context=replace(context, threads_matter=True))
            if all(session.fails(threaded, "reduce") for _ in range(RUNS_WITH_THREADS)):
                return threaded, Reliability(1, 1)
            ways.append(f"with {plural(threads, 'thread')}")
    if said.verdict is Verdict.INVALID and said.reason.startswith("eager itself fails"):
        raise NotReproduced(f"this is not a failure of the backend: {said.reason}", said)
    notes = case.provenance.notes
    lost = "".join(f"; {note}" for note in notes if note.startswith((STAND_IN_NOTE, LOST)))
    other = case.signature.unlike(said.signature) if case.signature and said.signature else ""
    raise NotReproduced(
        f"the case does not show its failure here: {said.in_words}{other and f' ({other})'}. "
        f"Expected {case.kind or 'any failure'}; tried: {', '.join(ways)}{lost}",
        said,
    )


CALLED = {CallPath.TORCH_COMPILE: "through torch.compile", CallPath.DIRECT: "called directly"}
RUNS_WITH_THREADS = 3
"""Of a case that no run with one thread has shown: that all of these do is no chance."""
STRAYS = 3
"""Questions that dynamo did not hand to the backend as they were, before any failed, after which a
whole that was believed is asked itself."""


def of_case(case: Case, candidate: Candidate) -> Case:
    return case.with_graph(candidate.graph_module, candidate.inputs)


def searched(case: Case, session: Session, *, believed: bool = False) -> Search:
    """The search for the smallest graph of ``case``, at its end."""
    start, strays = call_nodes(case.graph_module), 0
    by_itself = session.repeats == 1 and may_run_together(case)
    frames_before = tuple(tuple(group.split()) for group in case.provenance.suspects)

    def learn(search: Search, candidate: Candidate, outcome: Outcome, is_best: bool) -> None:
        nonlocal strays
        session.learn(search.phase, of_case(case, candidate), outcome, is_best=is_best)
        session.tell(search.phase, search.best.size[0], start)
        strays += outcome.reason.startswith((ANOTHER_GRAPH, NOT_CALLED))
        if believed and strays == STRAYS and not search.steps:
            raise NotReproduced("torch.compile takes none of it as it is", outcome)

    search = Search(
        Candidate.whole(case.graph_module, case.inputs),
        lambda candidates: session.ask([of_case(case, candidate) for candidate in candidates]),
        until=session.until,
        max_calls=session.limits.max_calls or math.inf,
        jobs=session.limits.jobs if by_itself else 1,
        on_answer=learn,
        hints=hints_from_error(case),
        frames=lambda: session.suspects or frames_before,
        traits=case.spec.traits,
        fails_in_inputs=case.signature is not None and case.signature.message.startswith("input:"),
        around=lambda: surroundings(case.spec.context),
    )
    try:
        with contextlib.suppress(NotReproduced):  # then nothing of it is proven
            driver.reduce_graph(search, simplify=True)
    except KeyboardInterrupt:
        session.interrupted = True
    return search


@contextlib.contextmanager
def surroundings(context: Context) -> Iterator[None]:
    """The modes in which graphs run here; on the CPU where their device is another process's."""
    is_kept = bool(devices.KEPT_ON_CPU.get())
    context = replace(context, default_device=None) if is_kept else context
    with entered_modes(context), OnCpu() if is_kept else contextlib.nullcontext():
        yield


REDUCE = "minidbg.reduction.reducing:reduce_in_child"


def reduce_in_child(
    argument: Mapping[str, Any],
    note: object,
    case_of: Callable[[Mapping[str, Any]], Case] = lambda argument: oracle.unpacked(argument["case"]),
) -> dict[str, Any]:
    """In a forkserver's child: ``reduce_and_publish`` the case that ``case_of`` makes, which just
    failed. The result as JSON, or ``{"refused": why}``. Progress, and what is logged from ``level``
    on, go to the argument's ``stream``."""
    folder, limits = Path(argument["folder"]), Limits(**argument["limits"])
    with os.fdopen(argument["stream"], "w", encoding="utf-8", errors="replace") as stream:
        try:
            case = case_of(argument)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            log.addHandler(logging.StreamHandler(stream))
            log.setLevel(argument.get("level", logging.WARNING))
            with on_stream(stream) as listener, torch_internals.without_overrides():
                return reduce_and_publish(
                    case, folder, limits=limits, listener=listener, just_seen=True
                ).to_json()
        except MinidbgError as refused:  # also a backend, pickled there and not to be had here
            return {"refused": str(refused)}


def reduce_path(
    path: Path,
    *,
    limits: Limits,
    backend: str | CompilerFn | None = None,
    folder: Path | None = None,
    listener: Listener = silent,
) -> ReductionResult:
    """Reduce the capture or repro at ``path``. The result goes to ``folder``, or its repro folder.

    ``backend`` is for a script whose own is to be filled in, and refused for others: BadSetting.
    Goes on where an earlier reduction of it was ended. Raises UnreadableRepro, NotReproduced,
    BackendUnreachable, and whatever loading the script's backend raises.
    """
    case = repro.load(path)
    lacks = case.backend
    if lacks.lacks_backend:
        if backend is None:
            raise BackendUnreachable(
                f"{path}: {lacks.unfilled}; edit it, or give --backend MODULE:EXPRESSION"
            )
        # where the program had it from
        sys.path += [entry for entry in lacks.paths if entry not in sys.path]
        named = backend if isinstance(backend, str) and ":" in backend else None
        reference = backends.find_reference(
            backend, options=lacks.options, mode=lacks.mode, setup=lacks.setup, reference=named
        )
        case = replace(case.with_spec(backend=reference), compiler=backends.resolve(reference))
    elif backend is not None:
        refusal = f"the repro {path} has its backend in it; edit the script to ask another one"
        raise BadSetting(f"backend={backend!r}: {refusal}")
    with contextlib.suppress(KeyError, ValueError):  # repro scripts keep it, as one run's limit
        limits = replace(limits, call_seconds=float(os.environ["MINIDBG_TIME_LIMIT_S"]))
    folder = folder or repro.folder_of(path)
    written = reduce_and_publish(case, folder, limits=limits, listener=listener)
    if path.absolute().parent == repro.captures(repro.folder_of(path)):
        with contextlib.suppress(OSError):
            path.with_suffix(".reduced").touch()
    return written
