"""torch's own operator samples (``op_db``): which there are, and how one becomes a graph with its inputs."""

from __future__ import annotations

import fnmatch
import functools
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import fx

from minidbg import _torch
from minidbg.errors import BadSetting, MinidbgError, nearest
from minidbg.graphs.capture import capture_by_dynamo

DTYPES = (
    "float32", "int64", "bfloat16", "float16", "bool", "complex64", "int32", "float64", "uint8", "int8", "int16",
    "complex128", "complex32",
)  # fmt: skip
"""In the order in which they are tried: what programs use most comes first."""


class NoSamples(MinidbgError):
    """torch's operator samples cannot be imported here."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of an operator: ``number`` counts what ``op_db`` has for the dtype and device."""

    op: str
    dtype: str
    device: str
    number: int

    @property
    def id(self) -> str:
        """``add float32 cpu 3``: its name in the state on disk."""
        return f"{self.op} {self.dtype} {self.device} {self.number}"


@functools.cache
def operators() -> Mapping[str, Any]:
    """``OpInfo`` by name, that of a variant included: ``linalg.norm.subgradients_at_zero``. Raises NoSamples."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = _torch.op_samples()
    except ImportError as error:
        raise NoSamples(
            f"torch's operator samples cannot be imported ({error}); install what they need: pip install 'minidbg[hunt]'"
        ) from error
    return {".".join(filter(None, (op.name, op.variant_test_name))): op for op in found}


def plan(ops: Sequence[str], dtypes: Sequence[str], devices: Sequence[str]) -> list[tuple[str, str, str]]:
    """Operator, dtype and device of each cell of the table, in the order to try them: all operators in one dtype first.

    ``ops`` are names or patterns, all where there are none; likewise ``dtypes``. Raises BadSetting.
    """
    known = operators()
    names = matching(ops, known, "operator") if ops else list(known)
    wanted = matching(dtypes, DTYPES, "dtype") if dtypes else list(DTYPES)
    supported = {
        (name, device): {str(one).removeprefix("torch.") for one in known[name].supported_dtypes(device)}
        for name in names
        for device in {str(torch.device(device).type) for device in devices}
    }
    return [
        (name, dtype, device)
        for dtype in wanted
        for device in devices
        for name in names
        if dtype in supported[name, torch.device(device).type]
    ]


def matching(patterns: Iterable[str], known: Iterable[str], what: str) -> list[str]:
    """The known names that a pattern matches, or whose part before a dot does, in their own order. Raises BadSetting where none does."""
    names, found = list(known), set()
    for pattern in patterns:
        pattern = pattern.removeprefix("torch.")
        matched = fnmatch.filter(names, pattern) or fnmatch.filter(names, f"{pattern}.*")  # its variants
        if not matched:
            raise BadSetting(f"no {what} {pattern!r} among torch's samples{nearest(pattern, names)}")
        found.update(matched)
    return [name for name in names if name in found]


def built(
    sample: Sample, seed: int, *, by_dynamo: bool = True
) -> tuple[fx.GraphModule, tuple[Any, ...], bool] | None:
    """The graph that dynamo makes of the sample, its inputs, and whether it has a backward; None past the last sample.

    Without ``by_dynamo`` a function of torch's C++ is one call, which dynamo will mostly leave as it is: half of the time.
    Samples of even number that can train do. Raises whatever the operator's own sample function or dynamo raises.
    """
    op, dtype = operators()[sample.op], getattr(torch, sample.dtype)
    differentiable = dtype in op.supported_backward_dtypes(torch.device(sample.device).type)
    trains = sample.number % 2 == 0 and op.supports_autograd and differentiable
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = op.sample_inputs(sample.device, dtype, requires_grad=trains)
        given = next(islice(iter(samples), sample.number, None), None)
    if given is None:
        return None
    arguments = ((given.input, *given.args), dict(given.kwargs))
    tensors = list(tensors_in(arguments))
    function = op.op

    def call(*values: torch.Tensor) -> Any:
        remaining = iter(values)
        args, kwargs = with_tensors(arguments, remaining)
        return function(*args, **kwargs)

    graph_module: fx.GraphModule
    inputs: tuple[Any, ...]
    if not by_dynamo and isinstance(function, types.BuiltinFunctionType):
        graph_module, inputs = one_call(function, arguments, len(tensors)), tuple(tensors)
    else:
        graph_module, inputs = capture_by_dynamo(call, tensors)
    wants = any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)
    return graph_module, inputs, trains and wants


def one_call(function: Any, arguments: Any, tensors: int) -> fx.GraphModule:
    """The graph of one call, whose placeholders are the tensors in ``arguments``, in order."""
    graph = fx.Graph()
    placeholders = [graph.placeholder(f"input_{number}") for number in range(tensors)]
    args, kwargs = with_tensors(arguments, iter(placeholders))
    graph.output((graph.call_function(function, args, kwargs),))
    return fx.GraphModule(torch.nn.Module(), graph)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested tuples, lists and dicts, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def with_tensors(value: Any, tensors: Iterator[Any]) -> Any:
    """``value`` with each of its tensors replaced by the next of ``tensors``."""
    if isinstance(value, torch.Tensor):
        return next(tensors)
    if isinstance(value, dict):
        return {name: with_tensors(item, tensors) for name, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)([with_tensors(item, tensors) for item in value])
    return value
