"""Prints what a program ended with, so that two runs of it can be compared bit by bit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch


def tensors(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.nn.Module):
        yield from tensors(value.state_dict(), name)
    elif isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from tensors(one, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for index, one in enumerate(value):
            yield from tensors(one, f"{name}.{index}")
    else:
        yield name, torch.tensor(value)


def show(**values: Any) -> None:
    """One line for each tensor, and one for the RNG state."""
    values["rng"] = torch.get_rng_state()
    for key, value in values.items():
        for name, tensor in tensors(value, key):
            plain = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
            bits = plain.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            print(f"RESULT {name} {plain.dtype} {tuple(plain.shape)} {hashlib.sha256(bits).hexdigest()[:16]}")
