"""Eager once more, to measure a compiled result by: in float64, and with other numbers where a value is copied.

This file stands alone: it is also part of repro scripts, as text.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

# --- embedded from here ---

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
        memories: dict[Any, torch.Tensor] = {}
        return tuple(
            _copied(item, memories, change) if isinstance(item, torch.Tensor) else item for item in value
        )
    if not isinstance(value, torch.nn.Module):
        return _within(mode, value)
    model = copy.deepcopy(value)
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data = change(tensor.data)
    for module in model.modules():
        for name, held in [*vars(module).items()]:
            if isinstance(held, torch.Tensor):
                setattr(module, name, change(held))
    model.forward = _within(mode, model.forward)
    return model


def _within(mode: Callable[[], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with mode():
            return function(*args, **kwargs)

    return run


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
    if callable(argument) and not isinstance(argument, (type, torch.Tensor)):
        return _within(Float64, argument)
    return argument


def _wide_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else dtype


def _copied(
    value: torch.Tensor, memories: dict[Any, torch.Tensor], change: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """A changed copy of ``value``, over one copy of all its memory, so that strides and aliasing stay."""
    plain = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided
    if not plain or value.is_quantized:
        raise NoFloat64(f"an input is a {type(value).__name__} of {value.dtype}, {value.layout}")
    if value.is_conj() or value.is_neg():
        made = change(value.detach().clone())
    else:
        memory = value.untyped_storage()
        if (key := (memory.data_ptr(), value.dtype)) not in memories:
            flat = torch.empty(0, dtype=value.dtype, device=value.device).set_(memory)
            memories[key] = change(flat.clone())
        made = memories[key].as_strided(value.shape, value.stride(), value.storage_offset())
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(made, value.requires_grad)
    made.requires_grad_(value.requires_grad)
    return made if value.is_leaf else made.clone()


def random_states() -> list[torch.Tensor]:
    """Where torch's generators stand, of the CPU and of an accelerator that is in use."""
    states = [torch.get_rng_state()]
    accelerator = torch.accelerator.current_accelerator()
    module = torch.get_device_module(accelerator) if accelerator else None
    return [*states, module.get_rng_state()] if module and module.is_initialized() else states
