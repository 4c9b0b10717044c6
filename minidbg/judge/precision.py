"""Eager once more in another precision, to measure a compiled result by.

In float64, and with other rounding errors, which shows what hangs on them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from minidbg.judge.undefined import PerturbedEager, within
from minidbg.torch_internals.tensors import has_plain_memory, in_memory

# Methods that name a float dtype by their own name, and what they are called in float64.
CASTS = {"float": "double", "half": "double", "bfloat16": "double", "cfloat": "cdouble", "chalf": "cdouble"}


class NoFloat64(TypeError):
    """The program cannot be run in float64, or would be another program there."""


def to_float64(value: Any) -> Any:
    """A copy for a run in float64: of a module, of a function, or of a tuple of inputs.

    Floats in inputs, parameters, buffers and tensor attributes become float64 and complex numbers complex128;
    dtypes that the program names are replaced while it runs. Inputs keep their strides, their aliasing among
    themselves and requires_grad. The run raises NoFloat64 where float64 would be another program (the bits of a
    float are read, random numbers are drawn), and what torch raises where an op has no float64.
    """
    return copied(value, lambda tensor: tensor.to(_wide_dtype(tensor.dtype)), Float64)


def copied(value: Any, change: Callable[[torch.Tensor], torch.Tensor], mode: Callable[[], Any]) -> Any:
    """A copy of a module, a function or a tuple of inputs, whose tensors are changed, and which runs in ``mode()``."""
    if isinstance(value, (tuple, list)):
        copies = Copies(change, value)
        return tuple(copies.of(item) if isinstance(item, torch.Tensor) else item for item in value)
    if not isinstance(value, torch.nn.Module):
        return within(mode, value)
    model, held = copy.deepcopy(value), Copies(change)
    tensors = ([*one.parameters(), *one.buffers()] for one in (value, model))
    for original, tensor in zip(*tensors, strict=True):  # a copied parameter has lost its strides
        tensor.data = held.over_its_memory(original.data)
    for before, module in zip(value.modules(), model.modules(), strict=True):
        for name, original in [*vars(before).items()]:
            if isinstance(original, torch.Tensor):
                setattr(module, name, held.over_its_memory(original))
    model.forward = within(mode, model.forward)
    return model


class Float64(TorchFunctionMode):
    """While active, a call that names a float dtype gets float64 instead, and float64 is the default dtype."""

    def __enter__(self) -> Any:
        self.default_dtype = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        self.random_states = random_states()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch.set_default_dtype(self.default_dtype)
        if error == (None, None, None) and not all(map(torch.equal, self.random_states, random_states())):
            raise NoFloat64("the program draws random numbers, which would be others in float64")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        named = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.dtype)]
        if name.partition(".")[0] in ("view", "view_copy") and named and named != [args[0].dtype]:
            raise NoFloat64("the program reads the bits of a number as another dtype")
        if name.startswith("nextafter"):
            raise NoFloat64("the program asks for the next number of a dtype")
        if "autocast" in name:  # leaves float64 alone, and knows no other dtypes than its own
            return func(*args, **kwargs)
        if func is getattr(torch.Tensor, name, None) and name in CASTS:
            func = getattr(torch.Tensor, CASTS[name])
        return func(*map(_in_float64, args), **{key: _in_float64(value) for key, value in kwargs.items()})


def _in_float64(argument: Any) -> Any:
    """An argument as float64 has it; the mode is off while a handler runs, so the bodies of higher-order ops bring it."""
    if isinstance(argument, torch.dtype):
        return _wide_dtype(argument)
    return within(Float64, argument)


def _wide_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else dtype


class Copies:
    """Changed copies of tensors, each over one copy of all its memory: size, stride, offset and what they share stay."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor], values: Any = ()) -> None:
        self.change = change
        self.memories: dict[Any, torch.Tensor] = {}
        plain = [self.key(value) for value in values if has_plain_memory(value)]
        self.shared = {key for key in plain if plain.count(key) > 1}

    @staticmethod
    def key(value: torch.Tensor) -> Any:
        return value.untyped_storage().data_ptr(), value.dtype

    def over_its_memory(self, value: torch.Tensor) -> torch.Tensor:
        if not has_plain_memory(value):
            if (elements := in_memory(value)) is None:
                raise NoFloat64(f"an input is a {type(value).__name__} of {value.dtype}, {value.layout}")
            return self.change(elements.detach().clone())
        if (key := self.key(value)) not in self.memories:
            flat = torch.empty(0, dtype=value.dtype, device=value.device).set_(value.untyped_storage())
            self.memories[key] = self.change(flat.clone())
        return self.memories[key].as_strided(value.shape, value.stride(), value.storage_offset())

    def of(self, value: torch.Tensor) -> torch.Tensor:
        """An input of a run: a parameter, a leaf, or with a history, as ``value`` is."""
        made = self.over_its_memory(value)
        if isinstance(value, torch.nn.Parameter):
            return torch.nn.Parameter(made, value.requires_grad)
        made.requires_grad_(value.requires_grad)
        if value.is_leaf:
            return made
        if has_plain_memory(value) and self.key(value) in self.shared:
            return made.view_as(made)
        copied = made.clone()
        if copied.stride() == made.stride():
            return copied
        own = (
            self.memories[self.key(value)]
            .clone()
            .as_strided(made.shape, made.stride(), made.storage_offset())
        )
        try:
            return own.copy_(made)
        except RuntimeError:  # elements that lie on each other, which eager writes to as little
            return made.view_as(made)


def random_states() -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    accelerator = torch.accelerator.current_accelerator()
    module = torch.get_device_module(accelerator) if accelerator else None
    return [*states, module.get_rng_state()] if module and module.is_initialized() else states


MULTIPLIED = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "convolution", "convolution_backward")
NO_ARITHMETIC = ("set", "resize", "requires_grad", "rename")


class RoundingNoise(PerturbedEager):
    """While active, last bits are rounded at random (Monte Carlo arithmetic), as those of another compiler are.

    What moves much more than that was decided by rounding: which of two nearly equal values is the largest, on which side of a
    threshold one lies. Zeros and inputs stay exact, and so do small integers, except where an op may have rounded to one:
    ``log2`` of 8 is 2.9999998 elsewhere. Attention runs by its parts, since a fused kernel would round at its end only. Long sums
    are as far off as float32, or float64, makes them when terms are added one by one: eager adds in double precision or in a tree.
    ``step`` is afterwards the largest error of one rounding, relative.
    """

    def __init__(self, number: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator = torch.Generator().manual_seed(number)
        self.step = 0.0
        self.exact = True

    def __enter__(self) -> Any:
        self.attention: Any = sdpa_kernel(SDPBackend.MATH)
        self.attention.__enter__()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.attention.__exit__(*error)

    def called(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        self.exact = name not in ROUNDING and (name not in ARITHMETIC or all(map(has_few_bits, args)))
        made = self.in_parts(func, args, kwargs)
        if made is not NotImplemented:
            return made
        result = func(*args, **kwargs)
        returns = [one.alias_info for one in func._schema.returns]
        if name in NO_ARITHMETIC or any(alias and not alias.is_write for alias in returns):
            return result  # a view of what is off already
        terms = args[0] if args and name in SUMMING else None
        for index, one in enumerate(result if isinstance(result, (tuple, list)) else (result,)):
            if not (has_plain_memory(one) and one.dtype in LAST_BITS and one.numel()):
                continue
            if isinstance(terms, torch.Tensor) and 2 * one.numel() <= terms.numel():
                again = func(self.shaken(terms, terms.numel() / one.numel()), *args[1:], **kwargs)
                one.copy_(again[index] if isinstance(again, (tuple, list)) else again)
            one.copy_(self.rounded(one))
        return result

    def rounded(self, tensor: torch.Tensor) -> torch.Tensor:
        whole, step = LAST_BITS[tensor.dtype]
        up = torch.randint(2, tensor.shape, generator=self.generator).to(tensor.device, whole)
        old = tensor.detach().view(whole)
        moved = (old + up * (step - 1)) & -step
        if not self.exact:
            moved = torch.where((moved == old) & (tensor != 0), old + (2 * up - 1) * step, moved)
        self.step = max(self.step, step * torch.finfo(tensor.dtype).eps)
        return torch.where(moved.view(tensor.dtype).isfinite(), moved.view(tensor.dtype), tensor)

    def shaken(self, terms: torch.Tensor, number: float) -> torch.Tensor:
        """``terms``, each off by what adding ``number`` of them leaves to each, on average."""
        up = torch.randint(2, terms.shape, generator=self.generator).to(terms.device, terms.dtype)
        dtype = torch.float64 if terms.dtype is torch.float64 else torch.float32
        return terms + terms * (2 * up - 1) * (torch.finfo(dtype).eps * math.sqrt(number))


SUMMING = (
    "sum", "mean", "var", "var_mean", "std", "std_mean", "native_batch_norm_backward", "batch_norm_backward",
    "cudnn_batch_norm_backward", "miopen_batch_norm_backward", "native_layer_norm_backward", "native_group_norm_backward",
)  # fmt: skip
LAST_BITS = {
    torch.float64: (torch.int64, 8),
    torch.float32: (torch.int32, 8),
    torch.bfloat16: (torch.int16, 2),
    torch.float16: (torch.int16, 2),
}
"""The integer in which the last bits are seen, which are rounded up or down to a multiple of so much."""

NAMED_ROUNDING = """
acos acosh asin asinh atan atan2 atanh cos cosh erf erfc erfinv exp exp2 expm1 gelu log log10 log1p log2 log_softmax logaddexp
logaddexp2 logsumexp rsqrt sigmoid silu sin sinh softmax softplus tan tanh
"""
ROUNDING = frozenset(NAMED_ROUNDING.split())
"""Ops that every library rounds in its own way."""
NAMED_ARITHMETIC = """
add addcdiv addcmul cumprod cumsum div dot index_add lerp linalg_vector_norm linear mean mul native_batch_norm native_group_norm
native_layer_norm norm pow prod reciprocal rsub scatter_add sqrt std sub sum var
"""
ARITHMETIC = frozenset(NAMED_ARITHMETIC.split()).union(MULTIPLIED)
"""Ops whose result depends on the order of the operations, unless their arguments have few bits."""


def has_few_bits(argument: Any) -> bool:
    """Whether the numbers in an argument use at most half of the mantissa, so that products and short sums of them are exact."""
    if isinstance(argument, float):
        argument = torch.tensor(argument)
    if not (isinstance(argument, torch.Tensor) and argument.dtype in LAST_BITS):
        return True
    half = (1 << (1 - int(math.log2(torch.finfo(argument.dtype).eps))) // 2) - 1
    plain = in_memory(argument)
    return plain is None or not (plain.detach().view(LAST_BITS[argument.dtype][0]) & half).any()
