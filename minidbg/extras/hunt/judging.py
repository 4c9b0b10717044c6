"""In a child of the forkserver: a batch of candidates is run one after the other, and each result is on disk before the next begins.

A candidate that kills the child, or does not end, leaves its name in the file ``doing``; the parent has it rebuilt, in
another child, to keep it as a capture.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import itertools
import json
import logging
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from minidbg import asking, repro
from minidbg.asking.execute import ANOTHER_GRAPH, execute
from minidbg.asking.oracle_calls import outcome_of
from minidbg.extras.hunt import programs, samples
from minidbg.extras.hunt.candidates import Candidate, built_case, joined, may_join, name_of, used_backend
from minidbg.extras.hunt.states import CellState, append, write_at_once
from minidbg.fx.case import Case
from minidbg.judge.harness import HANDED_BACK
from minidbg.reduction import reducing
from minidbg.reduction.importers import UsedBackend
from minidbg.reduction.publishing import with_failure
from minidbg.source.size import call_targets
from minidbg.torch_internals.dynamo import CONTROL_FLOW
from minidbg.words.errors import MinidbgError
from minidbg.words.kinds import Kind
from minidbg.words.outcome import Outcome, Verdict
from minidbg.workers import ChildResult

Note = Callable[[str], object]
SAYS_UNSUPPORTED = re.compile(
    r"(?i)not (yet |currently )?(supported|implemented)|unsupported|(do|does|did)(n't| not) support|no (lowering|converter|"
    r"conversion rule|decomposition)\b|missing operator|cannot be converted|unimplemented"
)


def started(argument: Mapping[str, Any], note: Note) -> dict[str, Any]:
    """Import what batches need and name the cells of the table: ``{"cells": [[op, dtype, device], ...]}``."""
    cells = samples.plan(argument["ops"], argument["dtypes"], argument["devices"])
    return {"cells": [list(cell) for cell in cells]}


def run_batch(argument: Mapping[str, Any], note: Note) -> dict[str, Any]:
    """Judge the candidates of the batch, for at most ``seconds``; the answer says how many."""
    quiet()
    ends = time.monotonic() + argument["seconds"]
    batch, items = Batch(argument, note), argument["batch"]
    done = 0
    while done < len(items) and time.monotonic() <= ends:
        if "graphs" in items[done]:
            drawn = [{"program": one} for one in programs.drawn(items[done]["graphs"], items[done]["count"])]
            untried = [one for one in drawn if name_of(one) not in argument["tried"]]
            for first in range(0, len(untried), batch.most_together):
                if first and time.monotonic() > ends:
                    return {"done": done}
                batch.judge(untried[first : first + batch.most_together])
            batch.write(items[done], time.perf_counter(), state=CellState.NONE)
            done += 1
        else:
            samples_next = list(itertools.takewhile(lambda one: "graphs" not in one, items[done:]))
            samples_next = samples_next[: batch.most_together]
            batch.judge(samples_next)
            done += len(samples_next)
    return {"done": done}


Built = tuple[Candidate, Case, float]
"""A candidate, its case, and the seconds that building it took."""


class Batch:
    """Judges candidates, several in one graph where they can be: only what fails there is run alone."""

    def __init__(self, argument: Mapping[str, Any], note: Note) -> None:
        self.argument, self.note = argument, note
        self.backend = used_backend(argument["backend"])
        self.known: set[str] = set(argument["known"])
        self.most_together: int = argument["most_together"]
        self.doing, self.results = Path(argument["doing"]), Path(argument["results"])

    def write(self, candidate: Candidate, began: float, **more: Any) -> None:
        """A line of the results; ``began`` on the clock ``time.perf_counter``."""
        seconds = round(time.perf_counter() - began, 3)
        append(self.results, {"candidate": candidate, "id": name_of(candidate), **more, "seconds": seconds})

    def begin(self, candidate: Candidate) -> AbstractContextManager[None]:
        """The block in which the candidate runs; when it ends the process, the file ``doing`` names it."""
        self.note("eager")  # a death before the backend is called is not the backend's
        write_at_once(self.doing, json.dumps(candidate), os.O_TRUNC)
        return time_limit(self.argument["patience" if "together" in candidate else "call_seconds"])

    def judge(self, candidates: Sequence[Candidate]) -> None:
        """Write a record of each."""
        built = [one for candidate in candidates if (one := self.build(candidate)) is not None]
        for group in groups_of(built):
            self.judge_group(group)

    def judge_group(self, group: Sequence[Built]) -> bool:
        """Whether one of them fails, or all together where none does alone; each has a record then."""
        if len(group) == 1:
            return self.judge_alone(*group[0])
        if self.all_agree(group):
            return False
        middle = len(group) // 2
        halves = [self.judge_group(half) for half in (group[:middle], group[middle:])]
        return any(halves) or self.judge_alone(together(group), joined([case for _, case, _ in group]))

    def build(self, candidate: Candidate) -> Built | None:
        """The candidate with its case; None after a record that says why there is none."""
        began = time.perf_counter()
        why_none: dict[str, Any] = {"state": CellState.NONE}
        with self.begin(candidate):
            try:
                case = built_case(candidate, self.backend, self.argument["seed"], by_dynamo=False)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - what torch or dynamo refuses says nothing about the backend
                said = f"no graph: {type(error).__name__}: {error}".partition("\n")[0][:200]
                case, why_none = None, {"state": CellState.SKIPPED, "reason": said}
        if case is not None:
            return candidate, case, time.perf_counter() - began
        self.write(candidate, began, **why_none)
        return None

    def all_agree(self, group: Sequence[Built]) -> bool:
        """Whether the backend gives what eager gives for all of them at once; if so, each has a record."""
        began = time.perf_counter()
        with self.begin(together(group)):
            outcome = execute(joined([case for _, case, _ in group]), note=self.note)
        torch.compiler.reset()
        if state_of(outcome) is not CellState.OK:
            return False
        now = time.perf_counter()
        for candidate, _, building in group:
            self.write(candidate, now - (now - began) / len(group) - building, state=CellState.OK)
        return True

    def judge_alone(self, candidate: Candidate, case: Case, building: float = 0.0) -> bool:
        """Whether the candidate fails; its record is written. A failure of a key that is not known is kept as a capture."""
        began = time.perf_counter()
        with self.begin(candidate):
            outcome = asking.unless_the_machine_failed(lambda: execute(case, note=self.note), expected=None)
            if outcome.verdict is Verdict.REPRODUCES:
                outcome = programs.unless_unsteady(case, outcome)
            lazy = is_of_lazy_inputs(case, outcome)
            new = outcome.signature is not None and key_of(outcome, candidate, [], lazy) not in self.known
            if new and "op" in candidate:
                case, outcome = as_dynamo_has_it(
                    case, outcome, candidate, self.backend, self.argument["seed"]
                )
            said = record_of(case, outcome, candidate, self.argument, self.known, lazy)
        torch.compiler.reset()
        if "key" in said or "together" not in candidate:
            self.write(candidate, began - building, **said)
        return "key" in said


def together(group: Sequence[Built]) -> Candidate:
    return {"together": [candidate for candidate, _, _ in group]}


def groups_of(built: Sequence[Built]) -> list[list[Built]]:
    """What may run in one graph: all with or without backward, and with or without symbolic sizes."""
    groups: dict[object, list[Built]] = {}
    for place, one in enumerate(built):
        case = one[1]
        key: object = (
            (case.spec.backward, case.spec.dynamic, case.spec.context.inference) if may_join(case) else place
        )
        groups.setdefault(key, []).append(one)
    return list(groups.values())


def as_dynamo_has_it(
    case: Case, outcome: Outcome, candidate: Candidate, backend: UsedBackend, seed: int
) -> tuple[Case, Outcome]:
    """The failing sample in the form that a program's graph has, and its outcome; both as they were where that does not fail."""
    try:
        exact = built_case(candidate, backend, seed)
    except Exception:  # noqa: BLE001 - a sample that dynamo refuses as a function
        return case, outcome
    again = execute(exact) if exact is not None else outcome
    return (exact, again) if exact is not None and again.signature is not None else (case, outcome)


def is_of_lazy_inputs(case: Case, outcome: Outcome) -> bool:
    """Whether wrong results are due to a negation or conjugation of an input that is not carried out yet: one bug for all ops."""
    if outcome.signature is None or not outcome.signature.kind.traits.compares:
        return False
    plain = tuple(carried_out(one) if isinstance(one, torch.Tensor) else one for one in case.inputs)
    changed = any(one is not before for one, before in zip(plain, case.inputs, strict=True))
    return changed and execute(replace(case, inputs=plain)).verdict is Verdict.GONE


def carried_out(value: torch.Tensor) -> torch.Tensor:
    """``value``, or one of the same numbers and strides without those bits."""
    if not (value.is_neg() or value.is_conj()):
        return value
    return value.detach().resolve_neg().resolve_conj().requires_grad_(value.requires_grad)


def record_of(
    case: Case,
    outcome: Outcome,
    candidate: Candidate,
    argument: Mapping[str, Any],
    known: set[str],
    lazy: bool = False,
) -> dict[str, Any]:
    """The part of the record that says what became of the case."""
    state = state_of(outcome)
    record: dict[str, Any] = {"state": state}
    if outcome.reason:
        record["reason"] = outcome.reason[:300]
    if state.is_failure or state is CellState.UNSUPPORTED:
        record["message"] = outcome.message[:600]
    if not state.is_failure:
        return record
    assert outcome.signature is not None
    targets = sorted(set(call_targets(case.graph_module)))
    key = key_of(outcome, candidate, targets, lazy)
    record |= {"key": key, "family": family_of(outcome), "targets": targets}
    if key in known:
        return record
    known.add(key)
    try:
        capture = repro.keep_capture(
            with_failure(case, outcome),
            argument["folder"],
            exactness=repro.Exactness.EXACT,
            value_limit_bytes=argument["value_limit_bytes"],
        )
    except (MinidbgError, OSError) as refusal:
        return record | {"refused": str(refusal)}
    return record | {"capture": str(capture)}


def keep_death(argument: Mapping[str, Any], note: Note) -> dict[str, Any]:
    """Rebuild the candidate that ended a child, without running it, and write its record. The answer is the record."""
    quiet()
    candidate, done = argument["candidate"], ChildResult(**argument["done"])
    record: dict[str, Any] = {"candidate": candidate, "id": name_of(candidate), "seconds": done.seconds}
    phase = done.note
    case = None
    if phase not in ("", "eager"):
        case = built_case(candidate, used_backend(argument["backend"]), argument["seed"])
    if case is None:
        how = "does not end" if done.timed_out else "ends the process"
        record |= {"state": CellState.SKIPPED, "reason": f"{how} before the backend is called"}
    else:
        outcome = outcome_of(case, done)
        record |= record_of(case, outcome, candidate, argument, set(argument["known"]))
    append(Path(argument["results"]), record)
    return record


def reduced(argument: Mapping[str, Any], note: Note) -> dict[str, Any]:
    """Reduce the capture, as ``wrap`` has it reduced; with the targets of the repro's calls, to know it in larger graphs."""
    answer = reducing.reduce_in_child(argument, note, lambda argument: repro.load(argument["path"]))
    if answer.get("path"):
        case = repro.load(answer["path"])
        answer["targets"] = sorted(set(call_targets(case.graph_module)))
    return answer


# ---- what an outcome says


def state_of(outcome: Outcome) -> CellState:
    """The state of the table that the outcome of a case without expectations means."""
    if outcome.verdict is Verdict.GONE:
        if HANDED_BACK in outcome.reason:
            return CellState.HANDED_BACK
        return CellState.SKIPPED if "eager differs from itself" in outcome.reason else CellState.OK
    if outcome.signature is None:
        # a graph that reached the backend in another form has run and agreed all the same
        agreed = outcome.reason.startswith(ANOTHER_GRAPH)
        return CellState.OK if agreed else CellState.SKIPPED
    kind = outcome.signature.kind
    if any(name.rpartition(".")[2] in CONTROL_FLOW for name in outcome.signature.types):
        return CellState.HANDED_BACK  # in a program dynamo goes on in eager there, as wrap lets it
    if kind.traits.raises:
        return CellState.UNSUPPORTED if says_unsupported(outcome) else CellState.FAILS
    return {Kind.ACCURACY: CellState.WRONG, Kind.CRASH: CellState.CRASHED, Kind.HANG: CellState.HANGS}[kind]


def says_unsupported(outcome: Outcome) -> bool:
    """Whether the backend says by a clear error that it does not do this."""
    assert outcome.signature is not None
    types = [name.rpartition(".")[2] for name in outcome.signature.types]
    if any("NotImplemented" in name or "Unsupported" in name or "NotSupported" in name for name in types):
        return True
    return bool(SAYS_UNSUPPORTED.search(outcome.message.partition("\n")[0]))


def family_of(outcome: Outcome) -> str:
    """What two failures have in common whatever op they are of: a text of the signature's fields that compare.

    An exception is one failure in forward and backward: an op may be in the derivative of another.
    """
    signature = outcome.signature
    assert signature is not None
    traits = signature.kind.traits
    direction = [] if traits.raises else [signature.direction]
    parts = [signature.kind, *direction, *([] if traits.dies else signature.types), *signature.frames[:1]]
    return "\0".join([*map(str, parts), signature.message])


def key_of(outcome: Outcome, candidate: Candidate, targets: list[str], lazy: bool = False) -> str:
    """Ten hexadecimal digits that failures share which are one. The text of an exception tells the bug; a wrong number does not."""
    assert outcome.signature is not None
    parts = ["lazy inputs"] if lazy else [family_of(outcome)]
    if not lazy and not outcome.signature.kind.traits.raises:
        parts += [candidate["op"]] if "op" in candidate else targets
    return hashlib.sha1(
        "\0".join(parts).encode("utf-8", "backslashreplace"), usedforsecurity=False
    ).hexdigest()[:10]


# ---- the child itself


def quiet() -> None:
    """Samples and backends warn a lot, and nobody reads it here."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """A block that ends the process by SIGALRM, with its stack on stderr, when it takes longer than so many seconds.

    The signal's own action, not a handler in Python: what hangs in C would never come back to run one.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    faulthandler.register(signal.SIGALRM, file=sys.stderr, all_threads=True, chain=True)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.unregister(signal.SIGALRM)
