"""In a child of the forkserver: samples are judged one after the other, and each result is on disk before the next begins.

A sample that kills the child, or does not end, has no line there; the parent has it rebuilt, in another child, to keep it as a
capture.
"""

from __future__ import annotations

import contextlib
import enum
import faulthandler
import hashlib
import json
import logging
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from minidbg import asking, repro
from minidbg.asking.execute import ANOTHER_GRAPH, execute
from minidbg.extras.hunt.samples import Cell, Sample, case_of_sample, plan
from minidbg.fx.case import Case
from minidbg.judge.harness import HANDED_BACK
from minidbg.reduction import reducing
from minidbg.reduction.publishing import with_failure
from minidbg.repro.cases import UsedBackend, backend_named
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


class State(enum.StrEnum):
    """What became of a sample, the worst last; in a cell of the table the worst of its samples stands."""

    SKIPPED = "skipped"
    OK = "ok"
    HANDED_BACK = "handed back"
    UNSUPPORTED = "unsupported"
    FAILS = "fails"
    WRONG = "wrong"
    HANGS = "hangs"
    CRASHED = "crashed"

    @property
    def rank(self) -> int:
        return list(State).index(self)

    @property
    def is_failure(self) -> bool:
        return self.rank >= State.FAILS.rank


def cells(argument: Mapping[str, Any], note: Note) -> list[Cell]:
    return plan(argument["ops"], argument["dtypes"], argument["devices"])


def run_batch(argument: Mapping[str, Any], note: Note) -> None:
    """Judge the samples of the batch; a line of ``results`` for each."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    backend, known = used_backend(argument), set(argument["known"])
    with open(argument["results"], "a", buffering=1, encoding="utf-8") as results:
        for cell, number in argument["batch"]:
            note("eager")  # a death before the backend is called is not the backend's
            record = judged(Sample(Cell(*cell), number), backend, known, argument, note)
            results.write(json.dumps(record, default=str) + "\n")
            torch.compiler.reset()


def used_backend(argument: Mapping[str, Any]) -> UsedBackend:
    used = backend_named(argument["backend"])
    return replace(used, ref=replace(used.ref, options=argument["options"]))


def judged(
    sample: Sample, backend: UsedBackend, known: set[str], argument: Mapping[str, Any], note: Note
) -> dict[str, Any]:
    with time_limit(argument["call_seconds"]):
        try:
            case = case_of_sample(sample, backend)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - what torch or dynamo refuses says nothing about the backend
            said = f"no graph: {type(error).__name__}: {error}".partition("\n")[0][:200]
            return {"cell": sample.cell, "id": sample.id, "state": State.SKIPPED, "text": said}
        if case is None:
            return {"cell": sample.cell, "id": sample.id}
        outcome = asking.unless_the_machine_failed(lambda: execute(case, note=note), expected=None)
        return record_of(case, outcome, sample, known, argument)


def record_of(
    case: Case, outcome: Outcome, sample: Sample, known: set[str], argument: Mapping[str, Any]
) -> dict[str, Any]:
    """Cell, state and text; of a failure also its key, and the capture of the first with that key."""
    state = state_of(outcome)
    text = outcome.message if outcome.signature is not None else outcome.reason
    record: dict[str, Any] = {"cell": sample.cell, "id": sample.id, "state": state, "text": text[:600]}
    if not state.is_failure:
        return record
    record["key"] = key = key_of(outcome, sample.cell.op)
    if key in known:
        return record
    known.add(key)
    try:
        capture = repro.keep_capture(
            with_failure(case, outcome), argument["folder"], exactness=repro.Exactness.EXACT,
            value_limit_bytes=argument["value_limit_bytes"],
        )  # fmt: skip
    except (MinidbgError, OSError) as refusal:
        return record | {"refused": str(refusal)}
    return record | {"capture": str(capture)}


def keep_death(argument: Mapping[str, Any], note: Note) -> dict[str, Any]:
    """The record of a sample that ended a child, which is rebuilt and not run."""
    cell, number = argument["sample"]
    sample, done = Sample(Cell(*cell), number), ChildResult(**argument["done"])
    if done.note in ("", "eager"):
        how = "does not end" if done.timed_out else "ends the process"
        said = f"{how} before the backend is called"
        return {"cell": sample.cell, "id": sample.id, "state": State.SKIPPED, "text": said}
    case = case_of_sample(sample, used_backend(argument))
    assert case is not None
    return record_of(case, asking.outcome_of(case, done), sample, set(argument["known"]), argument)


def reduced(argument: Mapping[str, Any], note: Note) -> dict[str, Any]:
    return reducing.reduce_in_child(argument, note, lambda argument: repro.load(argument["path"]))


# ---- what an outcome says


def state_of(outcome: Outcome) -> State:
    if outcome.verdict is Verdict.GONE:
        if HANDED_BACK in outcome.reason:
            return State.HANDED_BACK
        return State.SKIPPED if "eager differs from itself" in outcome.reason else State.OK
    if outcome.signature is None:
        # a graph that reached the backend in another form has run and agreed all the same
        return State.OK if outcome.reason.startswith(ANOTHER_GRAPH) else State.SKIPPED
    kind = outcome.signature.kind
    if any(name.rpartition(".")[2] in CONTROL_FLOW for name in outcome.signature.types):
        return State.HANDED_BACK  # in a program dynamo goes on in eager there, as wrap lets it
    if kind.traits.raises:
        return State.UNSUPPORTED if says_unsupported(outcome) else State.FAILS
    return {Kind.ACCURACY: State.WRONG, Kind.CRASH: State.CRASHED, Kind.HANG: State.HANGS}[kind]


def says_unsupported(outcome: Outcome) -> bool:
    """Whether the backend says by a clear error that it does not do this."""
    assert outcome.signature is not None
    types = [name.rpartition(".")[2] for name in outcome.signature.types]
    if any("NotImplemented" in name or "Unsupported" in name or "NotSupported" in name for name in types):
        return True
    return bool(SAYS_UNSUPPORTED.search(outcome.message.partition("\n")[0]))


def key_of(outcome: Outcome, op: str) -> str:
    """Ten hexadecimal digits that failures share which are one. The text of an exception tells the bug; a wrong number does not."""
    signature = outcome.signature
    assert signature is not None
    parts = [str(signature.kind), signature.message, *signature.frames[:1]]
    parts += signature.types if signature.kind.traits.raises else [str(signature.direction), op]
    return hashlib.sha1(
        "\0".join(parts).encode("utf-8", "backslashreplace"), usedforsecurity=False
    ).hexdigest()[:10]


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
