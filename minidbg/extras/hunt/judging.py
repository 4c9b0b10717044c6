"""torch's own operator samples (``op_db``): which there are, how one becomes a case, and what comes
of it in a child of the forkserver.

There samples are judged one after the other, and each outcome is on disk before the next begins. A
sample that kills the child, or does not end, has no line there. It is asked again by itself, where
it may end in any way.
"""

from __future__ import annotations

import enum
import fnmatch
import functools
import itertools
import json
import logging
import re
import signal
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from minidbg import oracle, torch_internals
from minidbg.core.errors import BadSetting, MinidbgError, nearest
from minidbg.core.foreign import first_line_of
from minidbg.core.outcome import Outcome, Signature, Verdict
from minidbg.fx.case import Case
from minidbg.fx.context import current_context
from minidbg.fx.copying import capture_by_dynamo
from minidbg.judge.run import HANDED_BACK
from minidbg.oracle.execute import ANOTHER_GRAPH, execute
from minidbg.reduction import reducing
from minidbg.reduction.publishing import with_failure
from minidbg.repro.cases import ChosenBackend, backend_named, case_of, need_grad

DTYPES = (
    "float32", "int64", "bfloat16", "float16", "bool", "complex64", "int32", "float64", "uint8",
    "int8", "int16", "complex128", "complex32",
)  # fmt: skip
"""In the order in which they are tried: what programs use most comes first."""

FIXED_POINT = ("nn.functional.interpolate", "nn.functional.upsample")
UNINITIALISED = ("empty", "new_empty", "resize_")

CONTROL_FLOW = (
    "TensorifyScalarRestartAnalysis", "SkipFrame", "DataDependentOutputException",
    "DynamicOutputShapeException", "UnsupportedFakeTensorException", "UnsupportedOperatorException",
)  # fmt: skip
"""Types that dynamo takes as messages."""
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


class SampleCell(NamedTuple):
    """An operator in a dtype on a device: a letter of the table."""

    op: str
    dtype: str
    device: str


class Sample(NamedTuple):
    op: str
    dtype: str
    device: str
    number: int
    """Of those that ``op_db`` has for the cell."""

    def __str__(self) -> str:
        return " ".join(map(str, self))


@functools.cache
def operators() -> Mapping[str, Any]:
    """``OpInfo`` by name and variant: ``linalg.norm.subgradients_at_zero``. Raises MinidbgError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            every = torch_internals.op_samples()
    except ImportError as error:
        raise MinidbgError(
            f"torch's operator samples cannot be imported ({error}); install what they need: "
            "pip install 'minidbg[hunt]'"
        ) from error
    return {".".join(filter(None, (op.name, op.variant_test_name))): op for op in every}


def plan(ops: Sequence[str], dtypes: Sequence[str], devices: Sequence[str]) -> list[SampleCell]:
    """The cells of the table, in the order to try them. ``ops`` and ``dtypes`` are names or
    patterns; none mean all. Raises BadSetting."""
    every = operators()
    names = matching(ops, every, "operator") if ops else sorted(every)
    supported = {
        (name, device): every[name].supported_dtypes(device)
        for name in names
        for device in {torch.device(device).type for device in devices}
    }
    return [
        SampleCell(name, dtype, device)
        for dtype in (matching(dtypes, DTYPES, "dtype") if dtypes else DTYPES)
        for device in devices
        for name in names
        if getattr(torch, dtype) in supported[name, torch.device(device).type]
    ]


def matching(patterns: Iterable[str], known: Iterable[str], what: str) -> list[str]:
    """Known names that a pattern matches, whole or before a dot, in order. Raises BadSetting."""
    names, wanted = list(known), set()
    for pattern in patterns:
        pattern = pattern.removeprefix("torch.")
        matched = fnmatch.filter(names, pattern) or fnmatch.filter(names, f"{pattern}.*")
        if not matched:
            hint = nearest(pattern, names)
            raise BadSetting(f"no {what} {pattern!r} among torch's samples{hint}")
        wanted.update(matched)
    return [name for name in names if name in wanted]


def case_of_sample(sample: Sample, backend: ChosenBackend) -> Case | None:
    """The graph that dynamo makes of the sample; None past the cell's last one. Samples of even
    number that can train do. Raises what the op's function, eager or dynamo does."""
    op, dtype = operators()[sample.op], getattr(torch, sample.dtype)
    if sample.op.startswith(UNINITIALISED):
        raise MinidbgError("its result is memory that nobody has written to")
    if sample.op.startswith(FIXED_POINT) and not dtype.is_floating_point:
        raise MinidbgError(
            "eager computes it in fixed point, and torch's own tests allow a difference of one"
        )
    differentiable = dtype in op.supported_backward_dtypes(torch.device(sample.device).type)
    trains = sample.number % 2 == 0 and op.supports_autograd and differentiable
    torch.manual_seed(0)
    samples = op.sample_inputs(sample.device, dtype, requires_grad=trains)
    drawn = next(itertools.islice(iter(samples), sample.number, None), None)
    if drawn is None:
        return None
    function = op.op
    values = (drawn.input, drawn.args, drawn.kwargs)
    graph_module, inputs = capture_by_dynamo(
        lambda first, args, kwargs: function(first, *args, **kwargs), values
    )
    for node in graph_module.graph.nodes:
        node.meta.pop("stack_trace", None)  # the call above is no line of the user's
    note = f"torch's own operator sample {sample}, found by minidbg hunt"
    case = case_of(graph_module, inputs, backend, context=current_context(inputs), notes=(note,))
    return case.with_spec(backward=trains and need_grad(inputs), dynamic=False)


# ---- judged in a child


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
        return Outcome(Verdict.INVALID, reason=f"no graph: {first_line_of(error)}").to_json()
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
