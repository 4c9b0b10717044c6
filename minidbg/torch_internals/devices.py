"""Devices: which hold tensors, which no fork may use, what is waited for, measured, drawn there.

A kind is what ``torch.device("cuda", 1).type`` says. Its functions are those of its module,
``torch.cuda``, which is looked up when it is needed. ``torch.accelerator`` knows one kind alone, no
generators before 2.14, and memory only of allocators in C++.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from importlib.metadata import entry_points
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from minidbg.core import environment
from minidbg.torch_internals.private_names import nothing_around, private_or

HOST = ("cpu", "meta")
"""Every other kind is an accelerator, which no fork may use after its parent."""
ACCELERATORS = ("cuda", "xpu", "npu", "hpu", "mps")
"""Those that may be here beside the one that ``torch.accelerator`` tells, whatever that is."""
ONE_DEVICE = ("mps",)
"""Kinds of one device, whose functions take none."""
FREE_IS_ALL = ("hpu",)
"""Kinds whose free bytes hold already what their allocator keeps."""
EXCLUSIVE = {"spyre", "tpu", *os.environ.get(environment.EXCLUSIVE_KINDS, "").split()}
"""Kinds whose device one process at a time may open. Others have an entry point so named; a
kind is added once a child has heard that its device is in use."""
KEPT_ON_CPU: ContextVar[str] = ContextVar("minidbg_kept_on_cpu", default="")
"""The device whose tensors are on the CPU here, so that children may open it, one after another."""


def is_accelerator(device: torch.device | str) -> bool:
    return torch.device(device).type not in HOST


def devices_of(values: Iterable[Any]) -> list[torch.device]:
    """The accelerators that hold tensors among ``values``, each once, in order."""
    devices = dict.fromkeys(value.device for value in values if isinstance(value, Tensor))
    return list(filter(is_accelerator, devices))


def place_of(values: Iterable[Any]) -> str:
    """The accelerator that holds ``values``, the first of several, or runs them; else ``cpu``."""
    return next(map(str, devices_of(values)), KEPT_ON_CPU.get() or "cpu")


def place_here(device: str) -> str:
    """Where this process has what belongs on ``device``."""
    return "cpu" if KEPT_ON_CPU.get() else device


def is_exclusive(device: str) -> bool:
    kind = device.partition(":")[0]
    declared = () if kind in HOST else entry_points(group="minidbg_exclusive_devices", name=kind)
    return bool(declared) or kind in EXCLUSIVE


@contextlib.contextmanager
def kept_on_cpu(device: str) -> Iterator[None]:
    """A block in which values of ``device`` are on the CPU, if one process at a time may open it:
    scripts read their inputs there, and are written as if these were on ``device``."""
    with contextlib.ExitStack() as until_the_end:
        if is_exclusive(device):
            until_the_end.callback(KEPT_ON_CPU.reset, KEPT_ON_CPU.set(device))
            module = module_of(device.partition(":")[0])
            if hasattr(module, "_is_in_bad_fork"):
                # else ``torch.manual_seed`` seeds the device, which opens it
                seeds_nothing = mock.patch.object(module, "_is_in_bad_fork", return_value=True)
                until_the_end.enter_context(seeds_nothing)
        yield


def in_use() -> str | None:
    used = (name for name in kinds_here() if getattr(module_of(name), "is_initialized", bool)())
    return next(used, None)


def present() -> list[str]:
    """The kinds of accelerators that are here and that no fork survives; asking may be their first
    use (see ``workers.server``)."""
    return [name for name in kinds_here() if getattr(module_of(name), "is_available", bool)()]


def kinds_here() -> Iterator[str]:
    """Kinds whose modules are loaded, with torch's own accelerator's; asking begins nothing."""
    yield from (name for name in ACCELERATORS if module_of(name) is not None)
    current = torch.accelerator.current_accelerator()
    if current is not None and current.type not in ACCELERATORS:
        yield current.type


def module_of(kind: str) -> Any:
    return sys.modules.get(f"torch.{kind}") or getattr(torch, kind, None)


def call(device: torch.device | str, name: str, *arguments: Any) -> Any:
    """Call the module's ``name`` with ``device`` last; None where the kind has no such function."""
    device = torch.device(device)
    function = getattr(module_of(device.type), name, None)
    if function is None:
        return None
    return function(*arguments) if device.type in ONE_DEVICE else function(*arguments, device)


def has_wait(device: torch.device | str) -> bool:
    """Whether kernels of ``device`` may fail after their launch, and something waits for them."""
    return is_accelerator(device) and hasattr(module_of(torch.device(device).type), "synchronize")


def synchronize(values: Iterable[Any]) -> None:
    """Wait until the devices of ``values`` are at rest. Raises errors that came up meanwhile."""
    for device in devices_of(values):
        call(device, "synchronize")


BROKEN: set[torch.device] = set()
"""Devices of this process that refuse every call since an error; a new process may use them."""


def in_error(values: Iterable[Any]) -> bool:
    """Whether a device of ``values`` refuses every call, so nothing can be run or read there."""
    refused = [refuses_calls(device) for device in devices_of(values)]  # each is asked
    return any(refused)


def refuses_calls(device: torch.device) -> bool:
    try:
        call(device, "synchronize")
    except RuntimeError:
        BROKEN.add(device)
    return device in BROKEN


def free_bytes(device: torch.device) -> int | None:
    """Memory of ``device`` a tensor may take; None if its kind tells none (mps: the host's)."""
    free = call(device, "mem_get_info")  # free and total bytes, or the number of free ones
    if free is None:
        return None
    free = free[0] if isinstance(free, tuple) else free
    if device.type in FREE_IS_ALL:
        return int(free)
    reserved = call(device, "memory_reserved") or 0
    allocated = call(device, "memory_allocated") or 0
    return int(free) + int(reserved) - int(allocated)


def generator_states(values: Iterable[Any]) -> tuple[tuple[str, Tensor], ...]:
    """Device and state of the default generators: of the CPU, of the devices of ``values``, of all
    of the accelerator's kind in use; not of a device in error."""
    devices = {str(device) for device in devices_of(values)}
    if (kind := in_use()) is not None:  # ``torch.manual_seed`` seeds each of them
        devices |= {f"{kind}:{index}" for index in range(module_of(kind).device_count())}
    found = [("cpu", torch.get_rng_state())]
    for device in sorted(devices):
        try:
            state = call(device, "get_rng_state")
        except RuntimeError:
            if not refuses_calls(torch.device(device)):
                raise
            continue
        if state is not None:
            found.append((device, state))
    return tuple(found)


def set_generator_state(device: str, state: Tensor) -> None:
    if device == "cpu":
        torch.set_rng_state(state)
        return
    try:
        call(device, "set_rng_state", state)
    except RuntimeError:
        if not refuses_calls(torch.device(device)):
            raise


@contextlib.contextmanager
def restoring_random_numbers(values: Iterable[Any] = ()) -> Iterator[None]:
    """A block of ours that the program's random numbers do not show: those of Python, of NumPy, and
    of each device that is in use.

    Imports belong inside it too, since modules draw (rich does, while it is imported). A seed that
    waits for an accelerator's first use keeps waiting.
    """
    python = random.getstate()
    numpy: Any = sys.modules.get("numpy.random")
    legacy = numpy.get_state() if hasattr(numpy, "set_state") else None
    generators = generator_states(values)
    with seeds_keep_waiting():
        try:
            yield
        finally:
            for device, state in generators:
                set_generator_state(device, state)
            if legacy is not None:
                numpy.set_state(legacy)
            random.setstate(python)


@contextlib.contextmanager
@private_or(nothing_around, since="2.13")
def seeds_keep_waiting() -> Iterator[None]:
    """A block whose ``torch.manual_seed`` seeds no accelerator that the program uses only later."""
    modules = map(module_of, kinds_here())
    lazy = [module for module in modules if hasattr(module, "_lazy_seed_tracker")]
    waiting = [module._lazy_seed_tracker for module in lazy]
    before = [dict(vars(one)) for one in waiting]
    try:
        yield
    finally:
        for one, state in zip(waiting, before, strict=True):
            vars(one).update(state)
