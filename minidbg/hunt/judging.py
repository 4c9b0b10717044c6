"""In a child of the zygote: a batch of candidates is run one after the other, and each result is on disk before the next begins.

A candidate that kills the child, or does not end, leaves its name in the file ``doing``; the parent has it rebuilt, in
another child, to keep it as a capture.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import logging
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from minidbg import _torch, isolation, repro
from minidbg._torch.dynamo import CONTROL_FLOW
from minidbg.backend.capture import current_context
from minidbg.case import Case
from minidbg.errors import MinidbgError
from minidbg.failure import Kind, Outcome, Verdict
from minidbg.hunt import programs, samples
from minidbg.hunt.states import State
from minidbg.intake.asking import UsedBackend, backend_named, case_of
from minidbg.isolation.oracle_calls import outcome_of
from minidbg.oracle import execute
from minidbg.processes import ChildResult
from minidbg.reduction import reducing
from minidbg.reduction.publishing import with_failure

Note = Callable[[str], object]
Candidate = Mapping[str, Any]
"""``{"op", "dtype", "device", "number"}`` of a sample, or ``{"program"}``: plain values."""
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
    backend = used_backend(argument["backend"])
    known: set[str] = set(argument["known"])
    doing, results = Path(argument["doing"]), Path(argument["results"])
    for done, item in enumerate(argument["batch"]):
        if time.monotonic() > ends:
            return {"done": done}
        note("eager")  # a death before the backend is called is not the backend's
        replace_quickly(doing, json.dumps(item))
        for candidate in [item] if "graphs" not in item else untried_graphs(item, set(argument["tried"])):
            if time.monotonic() > ends and candidate is not item:
                return {"done": done}
            note("eager")
            replace_quickly(doing, json.dumps(candidate))
            with time_limit(argument["call_seconds"]):
                record = judged(candidate, backend, argument, known, note)
            append(results, record)
            torch.compiler.reset()
        if "graphs" in item:
            append(results, {"candidate": item, "id": f"graphs {item['graphs']}", "state": State.NONE})
    return {"done": len(argument["batch"])}


def untried_graphs(item: Candidate, tried: set[str]) -> list[Candidate]:
    """The random graphs of a batch that no earlier child has come to."""
    drawn = ({"program": one} for one in programs.drawn(item["graphs"], item["count"]))
    return [one for one in drawn if name_of(one) not in tried]


def judged(
    candidate: Candidate, backend: UsedBackend, argument: Mapping[str, Any], known: set[str], note: Note
) -> dict[str, Any]:
    """The record of one candidate. A failure of a key that is not in ``known`` is kept as a capture."""
    began = time.perf_counter()
    record: dict[str, Any] = {"candidate": candidate, "id": name_of(candidate)}
    try:
        case = built_case(candidate, backend, argument["seed"], by_dynamo=False)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a sample that torch or dynamo refuses says nothing about the backend
        said = f"no graph: {type(error).__name__}: {error}".partition("\n")[0][:200]
        return record | {"state": State.SKIPPED, "reason": said, "seconds": since(began)}
    if case is None:
        return record | {"state": State.NONE, "seconds": since(began)}
    built = case  # mypy forgets in a lambda that it is there
    outcome = isolation.unless_the_machine_failed(lambda: execute(built, note=note), expected=None)
    if outcome.verdict is Verdict.REPRODUCES and "program" in candidate:
        outcome = programs.unless_unsteady(case, outcome)
    if outcome.signature is not None and key_of(outcome, candidate, []) not in known and "op" in candidate:
        case, outcome = as_dynamo_has_it(case, outcome, candidate, backend, argument["seed"])
    return record | told(case, outcome, candidate, argument, known) | {"seconds": since(began)}


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


def told(
    case: Case, outcome: Outcome, candidate: Candidate, argument: Mapping[str, Any], known: set[str]
) -> dict[str, Any]:
    """The part of the record that says what became of the case."""
    state = state_of(outcome)
    record: dict[str, Any] = {"state": state}
    if outcome.reason:
        record["reason"] = outcome.reason[:300]
    if not state.is_failure and state is not State.UNSUPPORTED:
        return record
    record["message"] = outcome.message[:600]
    if state is State.UNSUPPORTED:
        return record
    assert outcome.signature is not None
    targets = sorted(set(_torch.call_targets(case.graph_module)))
    record |= {"key": key_of(outcome, candidate, targets), "family": family_of(outcome), "targets": targets}
    if record["key"] in known:
        return record
    known.add(record["key"])
    try:
        capture = repro.keep_capture(
            with_failure(case, outcome), argument["folder"], exactness=repro.Exactness.EXACT
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
        record |= {"state": State.SKIPPED, "reason": f"{how} before the backend is called"}
    else:
        outcome = outcome_of(case, done, None)
        record |= told(case, outcome, candidate, argument, set(argument["known"]))
    append(Path(argument["results"]), record)
    return record


def reduced(argument: Mapping[str, Any], note: Note) -> dict[str, Any]:
    """Reduce the capture, as ``wrap`` has it reduced; with the targets of the repro's calls, to know it in larger graphs."""
    answer = reducing.reduce_elsewhere(argument, note)
    if answer.get("path"):
        case = repro.load(answer["path"])
        answer["targets"] = sorted(set(_torch.call_targets(case.graph_module)))
    return answer


# ---- candidates


def built_case(
    candidate: Candidate, backend: UsedBackend, seed: int, *, by_dynamo: bool = True
) -> Case | None:
    """The candidate as a case of which no failure is known; None past an operator's last sample."""
    if "program" in candidate:
        graph_module, inputs, dynamic = programs.built(candidate["program"])
        backward = any(isinstance(one, torch.Tensor) and one.requires_grad for one in inputs)
        note = f"a random graph of minidbg hunt, seed {seed}"
    else:
        found = samples.built(samples.Sample(**candidate), seed, by_dynamo=by_dynamo)
        if found is None:
            return None
        graph_module, inputs, backward = found
        dynamic, note = False, f"torch's own operator sample {name_of(candidate)}, found by minidbg hunt"
    case = case_of(graph_module, inputs, backend, context=current_context(inputs), notes=(note,))
    return replace(case, backward=backward, dynamic=dynamic)


def name_of(candidate: Candidate) -> str:
    """The candidate's id in the state on disk."""
    if "program" in candidate:
        text = json.dumps(candidate["program"], sort_keys=True)
        return f"graph {hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:12]}"
    return samples.Sample(**candidate).id


def used_backend(given: Mapping[str, Any]) -> UsedBackend:
    """The backend under its name, with its options and mode. Raises UnknownBackend or BackendUnreachable."""
    used = backend_named(given["name"])
    return replace(used, ref=replace(used.ref, options=given["options"], mode=given["mode"]))


# ---- what an outcome says


def state_of(outcome: Outcome) -> State:
    """The state of the table that the outcome of a case without expectations means."""
    if outcome.verdict is Verdict.GONE:
        if "fallback: " in outcome.reason:
            return State.HANDED_BACK
        return State.SKIPPED if "eager differs from itself" in outcome.reason else State.OK
    if outcome.signature is None:
        # a graph that reached the backend in another form has run and agreed all the same
        agreed = "dynamo handed another graph" in outcome.reason
        return State.OK if agreed else State.SKIPPED
    kind = outcome.signature.kind
    if any(name.rpartition(".")[2] in CONTROL_FLOW for name in outcome.signature.types):
        return State.HANDED_BACK  # in a program dynamo goes on in eager there, as wrap lets it
    if kind in (Kind.COMPILE, Kind.RUNTIME):
        return State.UNSUPPORTED if says_unsupported(outcome) else State.FAILS
    return {Kind.ACCURACY: State.WRONG, Kind.CRASH: State.CRASHED, Kind.HANG: State.HANGS}[kind]


def says_unsupported(outcome: Outcome) -> bool:
    """Whether the backend says by a clear error that it does not do this."""
    assert outcome.signature is not None
    types = [name.rpartition(".")[2] for name in outcome.signature.types]
    if any("NotImplemented" in name or "Unsupported" in name or "NotSupported" in name for name in types):
        return True
    return bool(SAYS_UNSUPPORTED.search(outcome.message.partition("\n")[0]))


def family_of(outcome: Outcome) -> str:
    """What two failures have in common whatever op they are of: a text of the signature's fields that compare."""
    signature = outcome.signature
    assert signature is not None
    dies = signature.kind in (Kind.CRASH, Kind.HANG)
    parts = [signature.kind, signature.direction, *([] if dies else signature.types), *signature.frames[:1]]
    return "\0".join([*map(str, parts), signature.message])


def key_of(outcome: Outcome, candidate: Candidate, targets: list[str]) -> str:
    """Ten hexadecimal digits that failures share which are one. The text of an exception tells the bug; a wrong number does not."""
    assert outcome.signature is not None
    parts = [family_of(outcome)]
    if outcome.signature.kind not in (Kind.COMPILE, Kind.RUNTIME):
        parts += [candidate["op"]] if "op" in candidate else targets
    return hashlib.sha1(
        "\0".join(parts).encode("utf-8", "backslashreplace"), usedforsecurity=False
    ).hexdigest()[:10]


# ---- the child itself


def quiet() -> None:
    """Samples and backends warn a lot, and nobody reads it here."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


class time_limit:
    """A block that ends the process by SIGALRM, with its stack on stderr, when it takes longer than so many seconds.

    The signal's own action, not a handler in Python: what hangs in C would never come back to run one.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __enter__(self) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        faulthandler.register(signal.SIGALRM, file=sys.stderr, all_threads=True, chain=True)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.unregister(signal.SIGALRM)


def append(path: Path, record: Mapping[str, Any]) -> None:
    """One line at the end of the file, in one write: several children write to it, and any may be killed."""
    line = json.dumps(record, default=str).encode() + b"\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o664)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def replace_quickly(path: Path, text: str) -> None:
    """The text in the file; a reader may see it only after this process has died, so nothing is flushed to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o664)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def since(began: float) -> float:
    return round(time.perf_counter() - began, 3)
