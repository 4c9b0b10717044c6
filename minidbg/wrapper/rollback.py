"""Save what a graph may write to, so a failed call can be undone: tensors, and the RNG streams.

A graph that fails half-way has applied some of its mutations. Running eager, or the next backend of
a chain, on what it left would apply them twice.

Beside what a call changes, torch makes much of its state once, when something first runs, and a run
of ours may be that first one. What a program can notice of it, and who leaves it to the program:

- **The compiled backward**, and what is donated to it: ``torch_internals.lazy_backward``. What
  compiling it warns of and counts comes when the program's own backward runs; AOTAutograd's entry
  on disk is written then, too. DDPOptimizer's count of compiled buckets does not see ours.
- **Inductor's cache of graphs**: its key does not say what is donated, so an entry of ours has a
  tag. A graph that is compiled once more, to find out what is wrong with it, is stored as any
  other, under the same key as the program's.
- **Counters** (``torch._dynamo.utils.counters``): ``torch_internals.restoring_counters``, around
  each compile of ours. Not put back: inductor's ``metrics``, the times that dynamo adds up, and
  AOTAutograd's number of the next graph, all of which only logs show.
- **Stacks of compiles**, which torch's metrics keep for good:
  ``torch_internals.dropping_compile_stacks``, around the same and each comparison.
- **Random numbers**, a seed that waits for an accelerator's first use, and imports that draw:
  ``torch_internals.devices``.
- **Warnings given once**: ``torch_internals.without_warnings``. Torch's C++ ones come again for the
  program; those of a cache in Python code of torch do not, where only a run of ours meets them.
- **AOTAutograd's check of custom operators**, in the first call of a compiled function:
  ``torch_internals.deferring_first_call``.
- **Compiled autograd, saved-tensor hooks and modes** do not see runs of ours:
  ``torch_internals.outside_tracing``. Autocast keeps no cast of ours: ``verify.quiet``.
- **Guards**: dynamo builds them from the state after the backend has returned. What a backend has
  done to that is said (``torch_internals.guards_to_come``), and not undone: no link follows it.
- **Autotuning** (Triton, cuDNN), the warm-up of CUDA graphs, loading of kernels: done by
  the first run on an accelerator, ours, on copies of the same form: the same choice, sooner.
- Not left to the program, since nobody was seen to notice: callbacks of ``torch._dynamo.callback``
  hear of the backward twice; a profiler shows runs of ours; on CUDA, AOTAutograd's generators for a
  backward that draws anew (``_AutogradRngStateTracker``) have been used once by us; config that is
  patched around the program's backward alone does not reach the code compiled for us.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from minidbg import torch_internals
from minidbg.fx import effects
from minidbg.torch_internals.devices import generator_states, set_generator_state


@dataclass(frozen=True, slots=True)
class Kept:
    """The state before a call. ``restore`` may be called any number of times."""

    tensors: tuple[tuple[torch.Tensor, object, torch.Tensor, torch.Tensor], ...]
    """Each with its ``grad_fn``, its elements outside autograd (expanded dimensions narrowed to
    one), and a copy of these."""
    generators: tuple[tuple[str, torch.Tensor], ...]
    complete: bool = True
    """Whether all that the call may change is here; else a new run builds on changed values."""

    def restore(self) -> bool:
        """Put everything back; whether all is as before, so that the graph may run again: not where
        the autograd history of a tensor changed and stays so."""
        restored = self.complete
        memories = [memory for _, _, memory, _ in self.tensors]
        with torch.no_grad(), torch_internals.same_versions(memories):
            for tensor, grad_fn, memory, copy in self.tensors:
                memory.copy_(copy)
                if tensor.grad_fn is not grad_fn:
                    if grad_fn is None and not tensor._is_view():
                        tensor.detach_()
                    else:
                        restored = False
        for device, state in self.generators:
            set_generator_state(device, state)
        return restored


NOTHING = Kept((), ())
UNKNOWN = Kept((), (), complete=False)


def keep(
    values: Sequence[Any], mutated: Iterable[int], held: Sequence[torch.Tensor], *, limit_bytes: int
) -> Kept:
    """What a graph may change writing to ``values[index]``, ``index`` in ``mutated``, and ``held``.

    Above ``limit_bytes`` of tensor memory, while a device graph is being captured (copies would
    become part of it), or where a tensor cannot be copied, nothing is kept and the result says so.
    """
    tensors = [*tensors_among(values[index] for index in sorted(mutated)), *held]
    written = [(tensor, memory_of(tensor)) for tensor in tensors]
    try:
        if capturing_device_graph() or sum(memory.nbytes for _, memory in written) > limit_bytes:
            return UNKNOWN
        with torch.no_grad():
            copies = tuple(
                (tensor, tensor.grad_fn, memory, memory.clone())
                for tensor, memory in written
                if not (torch_internals.is_freed(memory) or torch_internals.is_zero_tensor(memory))
            )
        return Kept(copies, generator_states(values))
    except (RuntimeError, MemoryError):  # no memory, device in error, a type without clone or size
        return UNKNOWN


def tensors_among(values: Iterable[Any]) -> list[torch.Tensor]:
    return [one for one in effects.tensors_in(list(values)) if not torch_internals.is_fake(one)]


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` with expanded dimensions cut to one element: no copy can overwrite an overlap."""
    plain = tensor.detach()
    if plain.layout is not torch.strided:
        return plain
    for dimension, (size, stride) in enumerate(zip(plain.shape, plain.stride(), strict=True)):
        if stride == 0 and size > 1:
            plain = plain.narrow(dimension, 0, 1)
    return plain


def capturing_device_graph() -> bool:
    """Whether the current CUDA stream records, not runs. Raises RuntimeError on a device error."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
