"""What a call may change, kept so that it can be put back: the tensors a graph writes to, and the RNG streams.

A graph that fails half-way has applied some of its mutations. Running eager, or the next backend of a chain, on what
it left would apply them twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from minidbg import _torch
from minidbg.devices import generator_states, set_generator_state


@dataclass(frozen=True, slots=True)
class KeptTensor:
    """One tensor that the graph may write to."""

    tensor: torch.Tensor
    grad_fn: object
    """Of the tensor before the call."""
    memory: torch.Tensor
    """Its elements, expanded dimensions narrowed to one, outside autograd."""
    copy: torch.Tensor

    def restore(self) -> bool:
        """Put the elements back; False when autograd's history of the tensor has changed and stays so."""
        self.memory.copy_(self.copy)
        if self.tensor.grad_fn is self.grad_fn:
            return True
        if self.grad_fn is None and not self.tensor._is_view():
            self.tensor.detach_()
            return True
        return False


@dataclass(frozen=True, slots=True)
class Kept:
    """The state before a call. ``restore`` may be called any number of times."""

    tensors: tuple[KeptTensor, ...]
    generators: tuple[tuple[str, torch.Tensor], ...]
    """Device and RNG state."""
    complete: bool = True
    """Whether all that the call may change is here; else running again would build on changed values."""

    def restore(self) -> bool:
        """Put everything back; whether all is as before, so that the graph may run again.

        Autograd counts no write: the values are those that it knows.
        """
        with torch.no_grad(), _torch.same_versions([kept.memory for kept in self.tensors]):
            restored = [kept.restore() for kept in self.tensors]
        for device, state in self.generators:
            set_generator_state(device, state)
        return self.complete and all(restored)


NOTHING = Kept((), ())
UNKNOWN = Kept((), (), complete=False)


def keep(
    values: Sequence[Any], mutated: Iterable[int], held: Sequence[torch.Tensor], *, limit_bytes: int
) -> Kept:
    """What a graph may change that writes to ``values[index]`` for each ``index`` in ``mutated``, and to ``held``.

    Above ``limit_bytes`` of tensor memory, while a device graph is being captured (copies would become part of it),
    or where a tensor cannot be copied, nothing is kept and the result says so.
    """
    if capturing_device_graph():
        return UNKNOWN
    tensors = [*tensors_in(values[index] for index in sorted(mutated)), *held]
    written = [(tensor, memory_of(tensor)) for tensor in tensors]
    if sum(memory.nbytes for _, memory in written) > limit_bytes:
        return UNKNOWN
    try:
        with torch.no_grad():
            copies = tuple(
                KeptTensor(tensor, tensor.grad_fn, memory, memory.clone())
                for tensor, memory in written
                if has_memory(memory)
            )
        return Kept(copies, generator_states(values))
    except (RuntimeError, MemoryError):  # no memory left, or a tensor type without clone
        return UNKNOWN


def tensors_in(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors with data among ``values``, those in lists and tuples included."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            if not _torch.is_fake(value):
                found.append(value)
        elif isinstance(value, list | tuple):
            found.extend(tensors_in(value))
    return found


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` with expanded dimensions narrowed to one element, since no copy can be written over an overlap."""
    plain = tensor.detach()
    if plain.layout is not torch.strided:
        return plain
    for dimension, (size, stride) in enumerate(zip(plain.shape, plain.stride(), strict=True)):
        if stride == 0 and size > 1:
            plain = plain.narrow(dimension, 0, 1)
    return plain


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether the elements of ``tensor`` are there; sharded training frees storages and keeps the tensors."""
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return True
    return tensor.untyped_storage().nbytes() > 0


def capturing_device_graph() -> bool:
    """Whether the current CUDA stream records instead of running."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
