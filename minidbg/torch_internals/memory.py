"""Which tensors have plain memory, where to read the others, and copies that lie in memory as the original does."""

from __future__ import annotations

from typing import Any

import torch


def has_plain_memory(value: Any) -> bool:
    """Whether the elements of ``value`` lie in a storage as they are, so that bits, strides and storage say something.

    Not those of a ZeroTensor (forward-mode differentiation makes them; a look at their bits ends the process), of a storage that
    was freed (likewise), of a lazily conjugated or negated view, a wrapper of functorch or of functionalization, a fake, meta, sparse,
    nested or quantized tensor, or one of a subclass.
    """
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
        return False
    if value.is_nested or value.is_quantized or value.device.type == "meta" or is_wrapped(value):
        return False
    if value.is_conj() or value.is_neg() or is_zero_tensor(value) or is_freed(value):
        return False
    try:
        value.untyped_storage()
    except (RuntimeError, NotImplementedError):  # a device that shows none
        return False
    return True


def is_zero_tensor(value: torch.Tensor) -> bool:
    return bool(value._is_zerotensor())


def is_freed(value: torch.Tensor) -> bool:
    """Whether the elements of ``value`` are gone: sharded training frees storages and keeps the tensors."""
    if value.layout is not torch.strided or value.device.type == "meta" or not value.numel():
        return False
    if is_wrapped(value) or is_zero_tensor(value):
        return False
    try:
        return value.untyped_storage().nbytes() == 0
    except (RuntimeError, NotImplementedError):
        return False


def is_wrapped(value: torch.Tensor) -> bool:
    """Whether ``value`` exists only inside a level of vmap, grad or jvp, or of functionalization."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(value) or torch._is_functional_tensor(value))


def in_memory(value: Any) -> Any:
    """``value`` where it has plain memory; its elements in a new one where it is lazy or a ZeroTensor; else None."""
    if has_plain_memory(value):
        return value
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or is_wrapped(value):
        return None
    if is_zero_tensor(value):
        return torch.zeros(value.shape, dtype=value.dtype, device=value.device)
    if value.layout is not torch.strided or value.is_nested:
        return None
    made = value.detach().resolve_conj().resolve_neg()
    return made if has_plain_memory(made) else None
