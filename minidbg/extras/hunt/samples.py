"""torch's own operator samples (``op_db``): which there are, and how one becomes a case."""

from __future__ import annotations

import fnmatch
import functools
import itertools
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from minidbg import torch_internals
from minidbg.core.errors import BadSetting, MinidbgError, nearest
from minidbg.fx.case import Case
from minidbg.fx.context import current_context
from minidbg.fx.copying import capture_by_dynamo
from minidbg.repro.cases import ChosenBackend, case_of, need_grad

DTYPES = (
    "float32", "int64", "bfloat16", "float16", "bool", "complex64", "int32", "float64", "uint8",
    "int8", "int16", "complex128", "complex32",
)  # fmt: skip
"""In the order in which they are tried: what programs use most comes first."""

FIXED_POINT = ("nn.functional.interpolate", "nn.functional.upsample")
UNINITIALISED = ("empty", "new_empty", "resize_")


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
    """The cells of the table, in the order to try them: all operators in one dtype first.

    ``ops`` are names or patterns, all where there are none; likewise ``dtypes``. Raises BadSetting.
    """
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
    """The known names that a pattern matches, or whose part before a dot does, in their own order.
    Raises BadSetting where none does."""
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
    """The graph that dynamo makes of the sample, as a case of which no failure is known; None past
    the cell's last sample.

    Samples of even number that can train do. Raises what the op's function, eager or dynamo does.
    """
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
