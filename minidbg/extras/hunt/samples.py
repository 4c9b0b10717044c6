"""torch's own operator samples (``op_db``): which there are, and how one becomes a graph with its inputs.

What else is done to them are twists: other values, sizes, layouts and dtypes, and other ops around the operator.
"""

from __future__ import annotations

import fnmatch
import functools
import itertools
import operator
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from minidbg import torch_internals
from minidbg.fx.copying import capture_by_dynamo
from minidbg.fx.effects import tensors_in
from minidbg.reduction.importers import need_grad
from minidbg.words.errors import BadSetting, MinidbgError, nearest

DTYPES = (
    "float32", "int64", "bfloat16", "float16", "bool", "complex64", "int32", "float64", "uint8", "int8", "int16",
    "complex128", "complex32",
)  # fmt: skip
"""In the order in which they are tried: what programs use most comes first."""

FIXED_POINT = ("nn.functional.interpolate", "nn.functional.upsample")
UNINITIALISED = ("empty", "new_empty", "resize_")


class NoSamples(MinidbgError):
    """torch's operator samples cannot be imported here."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of an operator: ``number`` counts what ``op_db`` has for the dtype and device."""

    op: str
    dtype: str
    device: str
    number: int
    twist: str = ""
    """What was done to it: the words of ROUNDS with ``+`` between them."""

    @property
    def id(self) -> str:
        """``add float32 cpu 3``, maybe with a twist: its name in the state on disk."""
        return f"{self.op} {self.dtype} {self.device} {self.number} {self.twist}".rstrip()

    @property
    def twists(self) -> Sequence[str]:
        return self.twist.split("+") if self.twist else ()


@functools.cache
def operators() -> Mapping[str, Any]:
    """``OpInfo`` by name, that of a variant included: ``linalg.norm.subgradients_at_zero``. Raises NoSamples."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = torch_internals.op_samples()
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
    names = matching(ops, known, "operator") if ops else sorted(known, key=lambda name: not is_core(name))
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


def is_core(name: str) -> bool:
    """Whether the operator is among the core ones that all others are made of: what most programs use, so tried first."""
    packet = getattr(torch.ops.aten, name.removeprefix("nn.functional."), None)
    return packet is not None and any(
        torch.Tag.core in getattr(packet, overload).tags for overload in packet.overloads()
    )


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

    Without ``by_dynamo`` a function of torch is one call, which dynamo will mostly leave as it is: half of the time.
    Samples of even number that can train do. Raises whatever the operator's own sample function, eager or dynamo raises.
    """
    if sample.op.startswith(UNINITIALISED):
        raise NoSamples("its result is memory that nobody has written to")
    op, dtype = operators()[sample.op], getattr(torch, sample.dtype)
    if sample.op.startswith(FIXED_POINT) and not dtype.is_floating_point:
        raise NoSamples("eager computes it in fixed point, and torch's own tests allow a difference of one")
    differentiable = dtype in op.supported_backward_dtypes(torch.device(sample.device).type)
    trains = (
        sample.number % 2 == 0 and op.supports_autograd and differentiable and "special" not in sample.twists
    )
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = op.sample_inputs(sample.device, dtype, requires_grad=trains)
        given = next(itertools.islice(iter(samples), sample.number, None), None)
    if given is None:
        return None
    call = SampleCall(op.op, ((given.input, *given.args), dict(given.kwargs)), sample.twists, dtype)
    inputs: tuple[Any, ...] = tuple(call.inputs)
    if not by_dynamo and is_named(op.op):
        graph_module = call.as_graph()
    else:
        graph_module, inputs = capture_by_dynamo(call.run, inputs)
    return graph_module, inputs, trains and need_grad(inputs)


def is_named(function: Any) -> bool:
    """Whether a script can name the function: one of torch's C++, or of torch.nn.functional."""
    if isinstance(function, types.BuiltinFunctionType):
        return True
    name = getattr(function, "__name__", "")
    return isinstance(function, types.FunctionType) and getattr(torch.nn.functional, name, None) is function


Do = Callable[..., Any]
"""Calls its first argument with the others, or writes that call down."""


class SampleCall:
    """A call of an operator with a sample's arguments, and what its twists put around it."""

    def __init__(
        self, function: Callable[..., Any], arguments: Any, twists: Sequence[str], dtype: torch.dtype
    ) -> None:
        """Raises what eager raises where a twist leaves no program."""
        for twist in twists:
            if twist.startswith("into_"):  # reductions and casts know it; eager refuses it elsewhere
                arguments[1]["dtype"] = getattr(torch, twist.removeprefix("into_"))
        self.function, self.arguments = function, arguments
        self.fused = "fused" in twists
        tensors = [twisted(one, place, twists, dtype) for place, one in enumerate(tensors_in(arguments))]
        self.constant = tensors[0] if "constant" in twists and tensors else None
        """The first tensor, which the program makes itself: all its elements are that of the first."""
        self.inputs = tensors[self.constant is not None :]
        if self.fused:
            self.inputs = [undone(one) for one in self.inputs]
        self.expected: Any = None
        if twists:
            self.expected = self.run(*[one.detach().clone() for one in self.inputs])

    def run(self, *values: torch.Tensor) -> Any:
        return self.done(values, lambda function, *args, **kwargs: function(*args, **kwargs))

    def as_graph(self) -> fx.GraphModule:
        """The call as a graph whose placeholders are ``inputs``, in order."""
        graph = fx.Graph()
        placeholders = [graph.placeholder(f"input_{number}") for number in range(len(self.inputs))]
        result = self.done(
            placeholders, lambda function, *args, **kwargs: graph.call_function(function, args, kwargs)
        )
        graph.output(tuple(result) if isinstance(result, tuple | list) else (result,))
        return fx.GraphModule(torch.nn.Module(), graph)

    def done(self, values: Sequence[Any], do: Do) -> Any:
        """What the call and the ops around it give."""
        if self.fused:
            values = [
                do(inverse_of(one.dtype), value) for one, value in zip(self.inputs, values, strict=True)
            ]
        if self.constant is not None:
            element = self.constant.flatten()[0].item() if self.constant.numel() else 1
            made = {"dtype": self.constant.dtype, "device": self.constant.device}
            values = [do(torch.full, list(self.constant.shape), element, **made), *values]
        args, kwargs = with_tensors(self.arguments, iter(values))
        result = do(self.function, *args, **kwargs)
        if not self.fused:
            return result
        like = result if self.expected is None else self.expected
        if isinstance(like, tuple | list):
            parts = [do(operator.getitem, result, place) for place in range(len(like))]
            return tuple(
                do(inverse_of(one.dtype), part) if isinstance(one, torch.Tensor) else part
                for one, part in zip(like, parts, strict=True)
            )
        return do(inverse_of(like.dtype), result) if isinstance(like, torch.Tensor) else result


def with_tensors(value: Any, tensors: Iterator[Any]) -> Any:
    """``value`` with each of its tensors replaced by the next of ``tensors``."""
    if isinstance(value, torch.Tensor):
        return next(tensors)
    if isinstance(value, dict):
        return {name: with_tensors(item, tensors) for name, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)([with_tensors(item, tensors) for item in value])
    return value


# --- twists ---

ROUNDS: Sequence[tuple[str, int, int]] = (
    ("", 0, 1),
    ("wide+fused+special", 0, 2),
    ("wide+fused+into_bool", 0, 2),
    ("empty", 0, 1),
    ("wide+transposed+special", 1, 2),
    ("wide+fused+mixed", 0, 1),
    ("constant", 0, 1),
    ("", 1, 2),
    ("wide+fused+symbolic", 0, 1),
    ("one+fused", 1, 2),
    ("wide+fused+into_float16", 0, 2),
    ("expanded+fused", 0, 1),
    ("empty+fused", 1, 3),
    ("", 2, 6),
    ("wide+sliced+special", 2, 4),
    ("wide+into_int64", 0, 3),
    ("symbolic+transposed", 1, 3),
    ("fused+constant", 1, 2),
    ("wide+fused+special", 2, 8),
    ("", 6, 16),
    ("", 16, 1000),
)
"""Twists, joined by ``+``, and the samples of each cell that a round takes: first a little of everything."""

OTHER_DTYPE = {
    torch.float32: torch.bfloat16, torch.bfloat16: torch.float32, torch.float16: torch.float32, torch.float64: torch.float32,
    torch.int64: torch.float32, torch.int32: torch.int64, torch.uint8: torch.int8, torch.int8: torch.uint8,
    torch.int16: torch.bool, torch.bool: torch.int64, torch.complex64: torch.float32, torch.complex128: torch.complex64,
}  # fmt: skip
SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0)
WIDER = 8
"""Times the last size: torch's samples are too small for vectorised loops."""
TESTED_BY_TORCH = ("float32", "int64", "float16", "float64", "int32")


def order_for(
    backend: str, dtypes: Sequence[str], most: int | None = None
) -> Sequence[tuple[tuple[str, int, int], str]]:
    """Each round in each dtype, breadth first: a further twist in one dtype takes its turn with the twist before in the one after next.

    ``most`` is the number of samples that an operator has in one dtype at most. Without it, what torch tests inductor with
    (plain samples in few dtypes, ``test_torchinductor_opinfo.py``) comes last there.
    """
    rounds = list(ROUNDS)
    if most is not None:
        rounds = list(limited(rounds, most))
    elif backend == "inductor":
        rounds.sort(key=lambda one: not one[0])
        dtypes = sorted(dtypes, key=TESTED_BY_TORCH.__contains__)
    places = itertools.product(range(len(rounds)), range(len(dtypes)))
    order = sorted(places, key=lambda one: 2 * one[0] + one[1])
    return [(rounds[place], dtypes[dtype]) for place, dtype in order]


def limited(rounds: Iterable[tuple[str, int, int]], most: int) -> Iterator[tuple[str, int, int]]:
    """The rounds as far as they have ``most`` samples together."""
    for twist, first, last in rounds:
        taken = min(last - first, most)
        most -= taken
        if taken:
            yield twist, first, first + taken


def inverse_of(dtype: torch.dtype) -> Any:
    """A function that is its own inverse, for a backend to fuse with its neighbours."""
    if dtype is torch.bool:
        return torch.logical_not
    return torch.neg if dtype.is_floating_point or dtype.is_complex else torch.bitwise_not


def undone(value: torch.Tensor) -> torch.Tensor:
    """What the inverse makes ``value`` of, in its layout."""
    inverse, expanded = inverse_of(value.dtype), value.numel() and 0 in value.stride()
    result: torch.Tensor = inverse(value.detach()[:1] if expanded else value.detach())
    return (result.expand(value.shape) if expanded else result).requires_grad_(value.requires_grad)


def twisted(value: torch.Tensor, place: int, twists: Sequence[str], dtype: torch.dtype) -> torch.Tensor:
    """The ``place``-th tensor of a sample in ``dtype``, twisted; the same tensor where nothing of it changes.

    Special values stay out of indices, which eager does not always check, and out of samples with a backward: what the
    derivative at NaN is differs between eager's own kernels.
    """
    if value.layout is not torch.strided or not twists:
        return value
    result = value.detach()
    rank = result.dim()
    if "wide" in twists and rank and result.shape[-1] > 1:
        result = result.repeat([*[1] * (rank - 1), WIDER])
    if "special" in twists and value.dtype is dtype and not value.requires_grad:
        result = with_special_values(result, place)
    if "mixed" in twists and place:
        result = result.to(OTHER_DTYPE.get(result.dtype, result.dtype))
    if "empty" in twists and rank:
        result = result[:0]
    if "one" in twists and rank:
        result = result[..., :1]
    if "transposed" in twists:
        backwards = list(range(rank - 1, -1, -1))
        result = result.permute(backwards).contiguous().permute(backwards)
    if "sliced" in twists:
        result = torch.stack([result, result], -1)[..., 0]
    if "expanded" in twists and rank:
        result = result[:1].expand(result.shape)
    return result.requires_grad_(value.requires_grad and result.is_floating_point() | result.is_complex())


def with_special_values(value: torch.Tensor, first: int) -> torch.Tensor:
    """A copy of which every second element from ``first`` on is inf, NaN or a zero, or the least or largest integer."""
    result = value.clone(memory_format=torch.contiguous_format)
    specials: Sequence[Any] = SPECIAL
    if value.dtype is torch.bool:
        return result
    if not (value.dtype.is_floating_point or value.dtype.is_complex):
        specials = (torch.iinfo(value.dtype).min, torch.iinfo(value.dtype).max, 0)
    flat = result.view(-1)
    for place, special in enumerate(specials):
        flat[2 * place + first :: 2 * len(specials)] = special
    return result
