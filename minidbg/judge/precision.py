"""Eager once more in another precision, to measure a compiled result by: in float64, and with other
rounding errors, which shows what hangs on them. And eager on the CPU, for a device in doubt.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from minidbg.fx.copying import clone_values
from minidbg.judge.undefined import PerturbedEager, within
from minidbg.torch_internals import devices
from minidbg.torch_internals.operators import EXACT, IN_PARTS, MULTIPLYING, ROUNDING, SUMMING, run_in_parts
from minidbg.torch_internals.tensors import has_plain_memory, in_memory

# Methods that name a float dtype by their own name, and what they are called in float64.
CASTS = {"float": "double", "half": "double", "bfloat16": "double", "cfloat": "cdouble", "chalf": "cdouble"}


class NoFloat64(TypeError):
    """The program cannot be run in float64, or would be another program there."""


def to_float64(value: Any) -> Any:
    """A copy for a run in float64: of a module, of a function, or of a tuple of inputs.

    Floats in inputs, parameters, buffers and tensor attributes become float64 and complex numbers
    complex128; dtypes that the program names are replaced while it runs. Inputs keep their strides,
    their aliasing among themselves and requires_grad. The run raises NoFloat64 where float64 would
    be another program (the bits of a float are read), and what torch raises where an op has no
    float64. What is cast to a float of eight bits has its values there too: no backend may leave
    that step out.
    """

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if (elements := in_memory(tensor)) is None:
            name = type(tensor).__name__
            raise NoFloat64(f"an input is a {name} of {tensor.dtype}, {tensor.layout}")
        wide: torch.Tensor = elements.to(_wide_dtype(tensor.dtype))
        return wide

    return changed_copy(value, change, Float64)


def changed_copy(value: Any, change: Callable[..., torch.Tensor], mode: Callable[[], Any]) -> Any:
    """A copy of a module or function that runs in ``mode()``, or of a tuple of inputs; the elements
    of the tensors are those that ``change`` makes."""
    if isinstance(value, (tuple, list)):
        return tuple(clone_values(value, change))
    if not isinstance(value, torch.nn.Module):
        return within(mode, value)
    model = copy.deepcopy(value)
    own, copies = ([*tensors_of_module(module)] for module in (value, model))
    changed = clone_values([tensor.detach() for tensor in own], change)
    for tensor, clone in zip(copies, changed, strict=True):  # a copied parameter lost its strides
        tensor.data = clone
    modes = vars(model)["modes_of_copy"] = (*vars(value).get("modes_of_copy", ()), mode)
    forward = type(model).forward.__get__(model)  # a copy's own would run the model it is of
    for entered in modes:
        forward = within(entered, forward)
    model.forward = forward
    return model


def to_cpu(value: Any) -> Any:
    """A copy for a run on the CPU: of a module, or of a tuple of inputs. Devices that the program
    names are the CPU while it runs, and an autocast of theirs is one of the CPU."""
    return changed_copy(value, torch.Tensor.cpu, OnCpu)


class OnCpu(TorchFunctionMode):
    """While active, the CPU is what is named wherever an accelerator is."""

    def __enter__(self) -> Any:
        self.autocast = contextlib.ExitStack()
        for kind in devices.kinds_here():
            if torch.is_autocast_enabled(kind):
                self.autocast.enter_context(torch.autocast("cpu", torch.get_autocast_dtype(kind)))
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.autocast.close()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kinds, name = (*devices.kinds_here(),), getattr(func, "__name__", "")
        if name in kinds:  # x.cuda()
            return args[0]

        def on_cpu(argument: Any) -> Any:
            if not isinstance(argument, torch.device | str):  # an autocast can be called too
                return argument if "autocast" in name else within(OnCpu, argument)
            return type(argument)("cpu") if str(argument).partition(":")[0] in kinds else argument

        named = {key: on_cpu(value) for key, value in (kwargs or {}).items()}
        return func(*map(on_cpu, args), **named)


def tensors_of_module(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield from (*module.parameters(), *module.buffers())
    for part in module.modules():
        yield from (value for value in vars(part).values() if isinstance(value, torch.Tensor))


class Float64(TorchFunctionMode):
    """While active, what names a float dtype, or has the default dtype, gets float64 instead.

    The default dtype itself is the process's: other threads may be compiling, and dynamo guards it.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        named = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.dtype)]
        if name.partition(".")[0] in ("view", "view_copy") and named and named != [args[0].dtype]:
            raise NoFloat64("the program reads the bits of a number as another dtype")
        if name.startswith("nextafter"):
            raise NoFloat64("the program asks for the next number of a dtype")
        if any(dtype.is_floating_point and dtype.itemsize == 1 for dtype in named):
            quantized = func(*args, **kwargs)
            return quantized.to(torch.float64) if isinstance(quantized, torch.Tensor) else quantized
        if "autocast" in name:  # leaves float64 alone, and knows no other dtypes than its own
            return func(*args, **kwargs)
        if func is getattr(torch.Tensor, name, None) and name in CASTS:
            func = getattr(torch.Tensor, CASTS[name])
        args = tuple(map(_in_float64, args))
        kwargs = {key: _in_float64(value) for key, value in kwargs.items()}
        result = func(*args, **kwargs)
        if type(result) is not torch.Tensor or result.dtype not in NARROW:
            return result
        # integers have given the default dtype
        wide = [one.double() if is_whole(one) else one for one in args]
        again = func(*wide, **kwargs) if any(map(is_whole, args)) else result
        return again.to(_wide_dtype(again.dtype))


NARROW = (torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex32)


def is_whole(value: Any) -> bool:
    """Whether ``value`` is a tensor of integers."""
    return isinstance(value, torch.Tensor) and not (
        value.is_floating_point() or value.is_complex() or value.dtype is torch.bool
    )


def _in_float64(argument: Any) -> Any:
    """An argument as in float64; the mode is off in handlers: higher-order ops' bodies bring it."""
    if isinstance(argument, torch.dtype):
        return _wide_dtype(argument)
    return within(Float64, argument)


def _wide_dtype(dtype: torch.dtype) -> torch.dtype:
    real = torch.float64 if dtype.is_floating_point else dtype
    return torch.complex128 if dtype.is_complex else real


class RoundingNoise(PerturbedEager):
    """While active, rounds last bits at random (Monte Carlo arithmetic), as another compiler does.

    What moves much more than that was decided by rounding: which of two nearly equal values is the
    largest, on which side of a threshold one lies. Zeros and inputs stay exact, what is only moved
    or chosen too (``EXACT``), and so do small integers, except where an op may have rounded to one:
    ``log2`` of 8 is 2.9999998 elsewhere. Sums and products of matrices are as far off as adding
    terms one by one in float32, or float64, makes them, or more; a fused kernel rounds its
    parts (``IN_PARTS``).
    """

    def __init__(self, number: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator = torch.Generator().manual_seed(number)
        self.has_begun = False

    def begun_with_inputs(self, value: Any) -> Any:
        """A change that changes nothing: what comes after the inputs have been made is rounded."""
        self.has_begun |= isinstance(value, (tuple, list))
        return value

    def called(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        if not self.has_begun:
            return super().called(func, name, args, kwargs)
        has_parts = name == "euclidean_dist" or name.startswith("foreach_")
        made = run_in_parts(self, func, args, kwargs, explicit=has_parts)
        if made is not NotImplemented:
            return made
        if name in IN_PARTS and "out" not in kwargs and (kwargs or len(args) > 2):
            with self:
                parts = IN_PARTS[name](*args, **kwargs)
            return args[0].copy_(parts) if func._schema.is_mutable else parts
        if name == "upsample_bilinear2d" and args[0].dtype is torch.uint8:  # in fixed point
            wide = func(args[0].double(), *args[1:], **kwargs)
            ties = (torch.rand(wide.shape, generator=self.generator) - 0.5) / 50
            return (wide + ties.to(wide)).round().clamp(0, 255).to(torch.uint8)
        is_product = name == "pow" and isinstance(args[1], int | float) and args[1] % 1 == 0
        is_exact = (is_product or name not in ROUNDING.split()) and all(map(has_few_bits, args))
        by = args[1] if name in ("mul", "div") else 0.0
        if isinstance(by, int | float) and abs(math.frexp(by)[0]) == 0.5:  # a power of two
            return func(*args, **kwargs)
        terms = args[TERMS[name]] if name in TERMS and len(args) > TERMS[name] else None
        result = func(*args, **kwargs)
        schema = func._schema
        returns = [one.alias_info for one in schema.returns]
        if any(alias and not alias.is_write for alias in returns):
            return result  # a view of what is off already
        results = result if isinstance(result, (tuple, list)) else (result,)
        plain = [x for x in args if isinstance(x, str | float)]
        is_whole = all(isinstance(x, str) or x.is_integer() for x in plain)  # the steps of arange
        moves = name in EXACT.split() and (is_whole or name != "arange")
        if moves or any(x in OF_EXTREMES for x in plain):
            return result
        tensors = [x for x in args if isinstance(x, torch.Tensor)]  # the last one is what is cast
        if name in CASTS_OF_ATEN and not (tensors and result.itemsize < tensors[-1].itemsize):
            return result
        for index, one in enumerate(results):
            if not (has_plain_memory(one) and one.numel() and numbers_of(one).dtype in LAST_BITS):
                continue
            if isinstance(terms, torch.Tensor) and not (schema.is_mutable or has_few_bits(terms)):
                # batch norm writes to its running statistics, which its schema does not tell
                writes = torch.Tensor if "batch_norm" in name else ()
                shaken = [arg.clone() if isinstance(arg, writes) else arg for arg in args]
                is_relative = name in OF_EXPONENTIALS and not terms.is_complex()
                base = terms.amax(args[1], keepdim=True) if is_relative else torch.zeros_like(terms)
                shaken[TERMS[name]] = self.shaken(terms, base, terms_of_each(name, args, one))
                again = func(*shaken, **kwargs)
                one.copy_(again[index] if isinstance(again, (tuple, list)) else again)
            numbers_of(one).copy_(self.rounded(numbers_of(one), is_exact=is_exact))
        return result

    def rounded(self, tensor: torch.Tensor, *, is_exact: bool) -> torch.Tensor:
        """``tensor``, off in its last bits if finite; where the op may be exact, what uses them."""
        whole, step = LAST_BITS[tensor.dtype]
        old = tensor.detach().view(whole)
        by = torch.randint(1, step + 1, tensor.shape, generator=self.generator)
        sign = torch.randint(2, tensor.shape, generator=self.generator) * 2 - 1
        moves = (old & max(step - 1, 1)) != 0 if is_exact else tensor != 0
        offset = (by * sign).to(tensor.device, whole)
        moved = torch.where(moves, old + offset, old).view(tensor.dtype)
        is_near = (moved - tensor).isfinite() & (moved.sign() == tensor.sign())
        return torch.where(is_near, moved, tensor)

    def shaken(self, terms: torch.Tensor, base: torch.Tensor, number: float) -> torch.Tensor:
        """``terms``, each off by the mean error of adding ``number`` of them, less ``base``."""
        up = torch.randint(2, terms.shape, generator=self.generator)
        up = up.to(terms.device, terms.real.dtype)
        eps = min(torch.finfo(dtype).eps for dtype in (terms.dtype, torch.float32))
        moved = base + (terms - base) * (1 + (2 * up - 1) * (eps * math.sqrt(number)))
        # a mask holds infinities, or the least of all numbers
        return torch.where(moved.isfinite(), moved, terms)


def terms_of_each(name: str, args: Any, result: torch.Tensor) -> float:
    """How many terms of ``args`` are added for each element of ``result``, about."""
    terms, factor = args[TERMS[name]], None
    if name.startswith("cum"):
        return float(terms.shape[args[1]]) if terms.dim() else 1.0
    if name in MULTIPLYING.split():
        factor = next((x for x in args[TERMS[name] + 1 :] if isinstance(x, torch.Tensor)), None)
    if factor is not None:
        return max(1.0, math.sqrt(int(terms.numel()) * factor.numel() / result.numel()))
    return max(1.0, int(terms.numel()) / result.numel())


def numbers_of(value: torch.Tensor) -> torch.Tensor:
    """``value``, or the real and imaginary parts that it consists of, in the same memory."""
    return torch.view_as_real(value) if value.is_complex() and not value.is_conj() else value


TERMS = {
    **dict.fromkeys(SUMMING.split(), 0),
    **{name: 1 if name.startswith(("add", "badd")) else 0 for name in MULTIPLYING.split()},
}
"""Ops that add, and the argument that has the terms."""
OF_EXPONENTIALS = ("softmax", "log_softmax", "logsumexp", "logcumsumexp")
"""Those that add powers of what their terms are less than the largest."""
LAST_BITS = {
    torch.float64: (torch.int64, 8),
    torch.float32: (torch.int32, 8),
    torch.bfloat16: (torch.int16, 1),
    torch.float16: (torch.int16, 1),
}
"""The integer in which last bits are seen, and by how many of them a rounded value may be off."""

OF_EXTREMES = ("amax", "amin", math.inf, -math.inf)
"""Arguments by which an op chooses: the ``reduce`` of a scatter, the order of a norm."""
CASTS_OF_ATEN = ("to_copy", "copy", "convert_element_type")


def has_few_bits(argument: Any) -> bool:
    """Whether numbers use at most half of the mantissa: products and short sums are exact."""
    if isinstance(argument, float):
        argument = torch.tensor(argument)
    plain = in_memory(argument) if isinstance(argument, torch.Tensor) else None
    if plain is None:
        return True
    numbers = numbers_of(plain.detach().resolve_conj())
    if numbers.dtype not in LAST_BITS:
        return True
    half = (1 << (1 - int(math.log2(torch.finfo(numbers.dtype).eps))) // 2) - 1
    return not (numbers.view(LAST_BITS[numbers.dtype][0]) & half).any()
