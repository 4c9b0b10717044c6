"""In a child of the forkserver: samples are judged one after the other, and each outcome is on disk
before the next begins.

A sample that kills the child, or does not end, has no line there. It is asked again by itself,
where it may end in any way.
"""

from __future__ import annotations

import enum
import json
import logging
import re
import signal
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from minidbg import oracle
from minidbg.core.errors import BadSetting
from minidbg.core.outcome import Outcome, Signature, Verdict
from minidbg.extras.hunt.samples import Sample, case_of_sample
from minidbg.fx.case import Case
from minidbg.judge.run import HANDED_BACK
from minidbg.oracle.execute import ANOTHER_GRAPH, execute
from minidbg.reduction import reducing
from minidbg.reduction.publishing import with_failure
from minidbg.repro.cases import ChosenBackend, backend_named
from minidbg.torch_internals.dynamo import CONTROL_FLOW

SAYS_UNSUPPORTED = re.compile(
    r"(?i)not (yet |currently )?(supported|implemented)|unsupported|(do|does|did)(n't| not) support"
    r"|no (lowering|converter|conversion rule|decomposition)\b|missing operator|"
    r"cannot be converted|unimplemented"
)


class SampleResult(enum.StrEnum):
    """What became of a sample, the worst last; a table cell has the worst of its samples."""

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
        return list(SampleResult).index(self)


def backend_of(argument: Mapping[str, Any]) -> ChosenBackend:
    """The backend with options and mode. Raises MinidbgError, also if torch.compile refuses it."""
    name, options, mode = argument["backend"], argument["options"], argument["mode"]
    used = backend_named(name)
    try:
        torch.compile(lambda: None, backend=used.compiler, options=options or None, mode=mode)
    except RuntimeError as error:
        raise BadSetting(f"torch.compile refuses these options of {name}: {error}") from error
    return replace(used, ref=replace(used.ref, options=options, mode=mode))


def run_batch(argument: Mapping[str, Any], note: object) -> None:
    """A line of ``results`` for each sample of the batch."""
    logging.disable(logging.WARNING)
    backend = backend_of(argument)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # what hangs in C never comes back to a handler
    with open(argument["results"], "a", buffering=1, encoding="utf-8") as results:
        for sample in argument["batch"]:
            signal.setitimer(signal.ITIMER_REAL, argument["call_seconds"])
            outcome = sample_outcome(
                Sample(*sample), backend,
                lambda case: oracle.unless_the_machine_failed(lambda: execute(case), expected=None),
            )  # fmt: skip
            signal.setitimer(signal.ITIMER_REAL, 0)
            results.write(json.dumps(outcome, default=str) + "\n")
            torch.compiler.reset()


def run_sample_alone(argument: Mapping[str, Any], note: object) -> dict[str, Any]:
    """The outcome of a sample that ended a batch, in a child of this one."""
    return sample_outcome(
        Sample(*argument["sample"]), backend_of(argument),
        lambda case: oracle.ask(case, seconds=argument["call_seconds"]),
    )  # fmt: skip


def sample_outcome(
    sample: Sample, backend: ChosenBackend, judge: Callable[[Case], Outcome]
) -> dict[str, Any]:
    """The outcome as JSON values; empty past the cell's last sample."""
    warnings.simplefilter("ignore")
    try:
        case = case_of_sample(sample, backend)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - what torch or dynamo refuses is no backend bug
        said = f"no graph: {type(error).__name__}: {error}".partition("\n")[0][:200]
        return Outcome(Verdict.INVALID, reason=said).to_json()
    return judge(case).to_json() if case is not None else {}


def reduced_sample(argument: Mapping[str, Any], note: object) -> dict[str, Any]:
    return reducing.reduce_in_child(argument, note, failing_case)


def failing_case(argument: Mapping[str, Any]) -> Case:
    case = case_of_sample(Sample(*argument["sample"]), backend_of(argument))
    assert case is not None
    return with_failure(case, Outcome.from_json(argument["outcome"]))


# ---- what an outcome says


def sample_result(outcome: Outcome) -> SampleResult:
    if outcome.verdict is Verdict.GONE:
        if HANDED_BACK in outcome.reason:
            return SampleResult.HANDED_BACK
        differs = "eager differs from itself" in outcome.reason
        return SampleResult.SKIPPED if differs else SampleResult.OK
    if outcome.signature is None:
        # a graph that reached the backend in another form has run and agreed all the same
        return SampleResult.OK if outcome.reason.startswith(ANOTHER_GRAPH) else SampleResult.SKIPPED
    kind, types = outcome.signature.kind, [name.split(".")[-1] for name in outcome.signature.types]
    if any(name in CONTROL_FLOW for name in types):
        return SampleResult.HANDED_BACK  # in a program dynamo goes on in eager, as wrap lets it
    if kind.traits.compares:
        return SampleResult.WRONG
    if kind.traits.dies:
        return SampleResult.HANGS if kind.traits.endless else SampleResult.CRASHED
    by_type = re.search("NotImplemented|Unsupported|NotSupported", " ".join(types))
    by_text = SAYS_UNSUPPORTED.search(outcome.message.partition("\n")[0])
    return SampleResult.UNSUPPORTED if by_type or by_text else SampleResult.FAILS


def failure_key(signature: Signature, op: str) -> tuple[str, ...]:
    """What equal failures share. An exception's text tells the bug; a wrong number does not."""
    where = signature.types if signature.kind.traits.raises else (str(signature.direction), op)
    return (str(signature.kind), signature.message, *signature.frames[:1], *where)
