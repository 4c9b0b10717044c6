"""From the smallest case found to a script atop the folder that failed in a fresh interpreter."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from minidbg import backends, oracle, repro, workers
from minidbg.codegen.inputs import materialise, write_inputs
from minidbg.codegen.origins import user_line
from minidbg.codegen.size import call_nodes, targets_of_calls
from minidbg.core.machine import Deadline
from minidbg.core.outcome import Outcome, Verdict
from minidbg.core.run_spec import LOST, CallPath
from minidbg.core.text import abridged, last_line, signal_name
from minidbg.fx.case import Case
from minidbg.fx.copying import bytes_of
from minidbg.fx.effects import tensors_in
from minidbg.fx.ranks import on_its_rank
from minidbg.reduction.result import ReductionResult
from minidbg.reduction.search import MOST_BYTES_AHEAD, SHOWN, BudgetSpent
from minidbg.reduction.session import Session
from minidbg.repro import Exactness
from minidbg.torch_internals.devices import place_of

log = logging.getLogger("minidbg")

VERIFY_SECONDS = 120.0
"""Most seconds of a run in a fresh interpreter; usually most go to importing torch and inductor."""

SAID_CHARACTERS = 500
"""Of what a script or a backend said, in a sentence of ours."""

RUNS_IN_DOUBT = 3
"""Further runs of a script, each in a new interpreter, if one did not show the expected failure."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """What a reduction found, before any of it was run in a fresh interpreter."""

    smallest: Case
    steps: tuple[Case, ...] = ()
    """Failing cases on the way, largest first."""
    certified: bool = False
    notes: tuple[str, ...] = ()
    neighbour: Case | None = None
    """One step smaller, and passing."""
    ended_by: str = ""
    """What ended the search before its end, in words."""


def publish_first_that_fails(
    original: Case, reduced: Reduced, folder: Path, session: Session
) -> ReductionResult:
    """Write and ``prove`` one form of script after the other, from short to faithful; publish the
    first that fails the same way. Where the budget ends first, the smallest stays, unverified."""
    session.until = session.deadline  # the search is over
    start, smallest_nodes = (call_nodes(case.graph_module) for case in (original, reduced.smallest))
    last = Outcome(Verdict.INVALID, reason="nothing was run")
    try:
        for case, exactness, note in forms(reduced, original):
            nodes = call_nodes(case.graph_module)
            session.tell("verify", nodes, start)
            if exactness is not Exactness.EXACT and next(tensors_in(case.inputs), None) is not None:
                names = [node.name for node in case.graph_module.graph.find_nodes(op="placeholder")]
                made = tuple(materialise(write_inputs(case.inputs, names, exactness)))
                if not session.fails(replace(case, inputs=made), "verify"):
                    continue  # which is cheaper to know from a fork than from a fresh interpreter
            certified = reduced.certified and nodes == smallest_nodes
            # as the runs have it: C++ code ends the process where it throws in a second thread
            one_thread = replace(case.spec.context, threads=1, threads_matter=True)
            dies = f"{note}{note and '; '}with more than one thread the process dies instead"
            for variant, remark in ((case, note), (case.with_spec(context=one_thread), dies)):
                script = with_provenance(variant, remark, original, reduced, session, certified=certified)
                last, draft = prove(script, exactness, folder, session)
                if draft is not None:
                    path = repro.publish(script, draft, folder)
                    return result_of(path, script, original, last, session, reduced.ended_by)
                if last.verdict is not Verdict.CRASHED:
                    break
    except BudgetSpent:
        session.keep_best()
        return result_of(None, reduced.smallest, original, last, session, session.budget)
    return result_of(None, reduced.smallest, original, last, session)


def forms(reduced: Reduced, original: Case) -> Iterator[tuple[Case, Exactness, str]]:
    """Scripts to try, each with a note: what a reader wants most first, what surely fails last."""
    smallest = reduced.smallest
    small = "integers, booleans and small tensors are written out: seeded ones did not fail"
    exact = "the values matter: seeded ones did not fail"
    notes = {Exactness.SEEDED: "", Exactness.SMALL: small, Exactness.EXACT: exact}
    for exactness, note in notes.items():
        for case in filter(None, (smallest, on_its_rank(smallest))):
            yield case, exactness, note
    if smallest.spec.call is CallPath.TORCH_COMPILE:
        direct = smallest.with_spec(call=CallPath.DIRECT)
        note = "fails only when the backend is called directly with this graph"
        yield direct, Exactness.EXACT, note
    for step in reversed(reduced.steps[-4:]):
        yield step, Exactness.EXACT, "a smaller form did not fail in a fresh interpreter"
    yield original, Exactness.EXACT, "no reduced form failed in a fresh interpreter"


def with_provenance(
    case: Case, note: str, original: Case, reduced: Reduced, session: Session, *, certified: bool
) -> Case:
    """``case`` with what its docstring tells of the way to it."""
    where, line = user_line(case.graph_module, original.provenance.message, last=True)
    left_out = "plainer values and settings were" if reduced.certified else "smaller graphs were"
    ended_early = f"{left_out} not all tried: {reduced.ended_by}" if reduced.ended_by else ""
    before, passing, traits = original.provenance, reduced.neighbour, original.spec.traits
    # of the smallest case in the backend's own words, with its sizes, unless all deaths are alike
    message, shown = before.message, session.last_shown.message if session.last_shown else ""
    is_smallest = case.graph_module is reduced.smallest.graph_module
    says_one_thing = not traits.dies and not (original.signature and original.signature.others)
    if shown and is_smallest and says_one_thing:
        outermost, _, rest = shown.partition(": ")  # each torch wraps it in another exception
        is_new = outermost.isidentifier() and not message.startswith(f"{outermost}:")
        plainer = shown.replace("; RMSE against float64", "\nRMSE against float64")
        message = plainer if traits.compares else rest if is_new and rest else shown
    notes = (*before.notes, *reduced.notes, note, ended_early)
    provenance = replace(
        before,
        message=message,
        captured_from=where or before.captured_from,
        # a graph that was read from a script knows its lines by their numbers alone
        line=line or (before.line if where in ("", before.captured_from) else ""),
        reduced=True,
        suspects=(),
        certified=certified,
        neighbour=what_is_missing(case, passing) if passing and certified else "",
        notes=tuple(text for text in notes if text and not text.startswith(LOST)),
    )
    return replace(case, provenance=provenance)


def with_failure(case: Case, outcome: Outcome) -> Case:
    """``case`` expecting the failure that ``outcome`` showed, and telling its message."""
    provenance = replace(case.provenance, message=outcome.message)
    return replace(case.with_spec(signature=outcome.signature), provenance=provenance)


def prove(case: Case, exactness: Exactness, folder: Path, session: Session) -> tuple[Outcome, Path | None]:
    """Write a draft of the case's script; run it by the installed judge, and alone as a user does.

    What the judge says; and the draft, to be published or discarded, where both show the failure,
    else None. Raises CannotWrite, and BudgetSpent where that comes first.

    - The judge runs in a fork, and where that shows nothing in a fresh interpreter: a fork may lack
      an accelerator. Once more where the search has met other failures.
    - Alone it runs in the interpreter that has waited for it, beside the judge where the machine
      has room for both; without the program's variables, with them if only that shows it.
    - Where the two disagree, or judgements do, further runs follow: a script that sometimes passes,
      or fails otherwise, is ``flaky``.
    - Where a few lines still do not show it, the script says why, only shows it, must end with 125.
    - A pickled backend is left out once all is shown, and the script must then end with 125.
    """
    draft, is_shown, context = repro.drafts(folder) / "draft.py", False, case.spec.context
    variables = [name for name in context.env if name not in OF_THE_MACHINE]

    def write(case: Case, why: str = "", remark: str = "") -> str:
        """A short script, or one that only shows the failure where there is a reason: this one."""
        write = partial(
            repro.write,
            case,
            draft,
            exactness=exactness,
            value_limit_bytes=session.limits.value_limit_bytes,
        )
        try:
            if not why:
                write(remark=remark)
        except repro.NoShortForm as refusal:
            why = str(refusal)
        if why:
            log.info("short_form_refused: %s", why)
            says = "A few lines cannot judge it, so it only shows it, and `minidbg check` judges it"
            write(form=repro.Form.SHOWS, remark=f"{remark}\n{says}: {why}.".lstrip("\n"))
        return why

    def limit() -> float:
        if session.deadline.is_over:
            raise BudgetSpent
        return session.deadline.left(VERIFY_SECONDS)

    def judged(fork: workers.Warmup | None = None) -> Outcome:
        until = Deadline.after(limit())
        outcome = oracle.unless_the_machine_failed(
            lambda: repro.run(draft, seconds=until.left(), fork=fork, submit=session.submit),
            expected=case.signature,
            deadline=until,
        )
        if session.was_cut_off(outcome, session.deadline):  # that is no answer, and no hang
            raise BudgetSpent
        return outcome

    def alone() -> workers.Ended:
        return repro.run_alone(draft, seconds=limit(), without=variables, submit=session.submit)

    standby = None
    try:
        why = write(case)
        standby = session.standby()
        start = partial(standby.start, [str(draft.absolute())]) if standby else None
        is_small = bytes_of(tensors_in(case.inputs)) <= MOST_BYTES_AHEAD
        has_room = place_of(case.inputs) == "cpu" and is_small
        begun = start(seconds=limit()) if start and has_room else None
        fork = oracle.forked_from(case)
        outcomes = [judged(fork)]
        if outcomes[0].verdict not in SHOWN and fork is not None:
            outcomes = [judged()]
        if outcomes[0].verdict not in SHOWN:
            return outcomes[0], None
        if session.others and not case.spec.traits.endless and session.remaining():
            outcomes.append(judged(fork))
        begun = begun or (start(seconds=limit()) if start else None)
        ended = (begun() if begun else None) or alone()
        if ended.exit_status in (0, 3) and variables:
            env = {name: context.env[name] for name in variables}
            for left_out in ("", *env):  # with all of them, then without one after the other
                fewer = {name: value for name, value in env.items() if name != left_out}
                if not fewer:  # it was asked without any
                    break
                same = case.with_spec(context=replace(context, env=fewer, env_matters=True))
                why = write(same)
                if (again := alone()).exit_status == 1:
                    case, ended, env = same, again, fewer
                elif not left_out:
                    break
            why = write(case)
        others_shown = any(one.verdict in (Verdict.CHANGED, Verdict.GONE) for one in outcomes[1:])
        if others_shown or ended.exit_status in (0, 3):
            outcomes += [judged() for _ in range(RUNS_IN_DOUBT)]
        outcome, shown = outcomes[0], sum(one.verdict in SHOWN for one in outcomes)
        if shown < len(outcomes):
            outcome = replace(outcome, verdict=Verdict.FLAKY, reproduced=shown, runs=len(outcomes))
        for _ in range(RUNS_IN_DOUBT if outcome.verdict is Verdict.FLAKY else 0):
            if ended.exit_status != 1:
                ended = alone()
        if ended.exit_status != 1 and not why:
            limit()  # what the deadline has cut off says nothing about the script
            saw = abridged(outcome.message, SAID_CHARACTERS) or outcome.in_words
            how = f"by a few lines of its own it ends with {how_it_ended(ended)}"
            why = write(case, f"{how}; minidbg's judge saw: {saw}")
            ended = alone()
        if shows_it(ended) and backends.is_pickled(case.backend):
            lacks = f"{case.backend.unfilled[0].upper()}{case.backend.unfilled[1:]}"
            write(repro.case_to_keep(case), why, f"{lacks}. {VERIFIED_PICKLED}")
            unfilled = alone()
            ended = ended if unfilled.exit_status == Verdict.SKIPPED.exit_status else unfilled
        is_shown = shows_it(ended)
        if is_shown:
            return outcome, draft
        limit()
        why = f"the judge says {outcome.verdict}, and the script by itself: {how_it_ended(ended)}"
        return replace(outcome, verdict=Verdict.INVALID, reason=why), None
    finally:
        if standby is not None:
            standby.cancel()  # where nobody has waited for it
        if not is_shown:
            repro.discard(draft)


VERIFIED_PICKLED = (
    "Verified in a fresh interpreter with the program's own, pickled; not with what is filled in."
)
OF_THE_MACHINE = ("CC", "CXX", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Variables without which a script finds another compiler or another card: they stay as they are,
and no script sets them."""


def shows_it(ended: workers.Ended) -> bool:
    """Whether a script alone said that it reproduces, or got to the end of just showing it."""
    return ended.exit_status == 1 or repro.NOT_JUDGED_HERE in ended.stderr_tail


def how_it_ended(ended: workers.Ended) -> str:
    if ended.timed_out:
        return f"no end within {ended.seconds:.0f} s"
    said = ended.stdout.strip().rpartition("\n")[2] or ended.stderr_tail.strip().rpartition("\n")[2]
    code, signal = ended.exit_status, ended.signal
    status = f"exit status {code}" if signal is None else signal_name(signal)
    return f"{status}: {said[:SAID_CHARACTERS]}" if said else status


def result_of(
    path: Path | None, case: Case, original: Case, last: Outcome, session: Session, ended_by: str = ""
) -> ReductionResult:
    """The result of a reduction that has published ``case`` at ``path``; None: nothing, since the
    ``last`` run did not show the failure."""
    notes = case.provenance.notes
    if path is None:
        said = last_line(last.message) or last_line(last.stderr)
        agrees = "there the backend agrees with eager; " if last.verdict is Verdict.GONE else ""
        printed = f"the last line printed was: {said[:200]}" if said else "nothing was printed"
        unlike = case.signature.unlike(last.signature) if case.signature and last.signature else ""
        notes = (*notes, last.reason or unlike or f"{agrees}{printed}")
    if last.verdict is Verdict.FLAKY and last.runs and last.reproduced != last.runs:
        flaky = f"flaky: its script fails in {last.reproduced} of {last.runs} fresh interpreters"
        notes = (*notes, flaky)
    return ReductionResult(
        path=path,
        lacking=case.backend.missing_backend if path else "",
        nodes_before=call_nodes(original.graph_module),
        nodes_after=call_nodes(case.graph_module),
        oracle_calls=session.oracle_calls,
        seconds=session.elapsed(),
        certified=case.provenance.certified,
        verdict=last.verdict,
        notes=notes,
        also_found=len(session.others),
        ended_by=ended_by,
    )


def what_is_missing(smallest: Case, neighbour: Case) -> str:
    """What ``neighbour``, which passes, is without: ``passes without torch.relu``, or how many
    inputs; empty where it has them all."""
    before, after = (Counter(targets_of_calls(case.graph_module)) for case in (smallest, neighbour))
    if gone := before - after:
        return f"passes without {' and '.join(gone)}"
    if len(neighbour.inputs) < len(smallest.inputs):
        return f"passes with {len(neighbour.inputs)} of the {len(smallest.inputs)} inputs"
    return ""
