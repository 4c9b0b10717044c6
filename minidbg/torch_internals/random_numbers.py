"""Random numbers of the program: whatever minidbg does, Python's, NumPy's and every device's generator go on as if it had not been."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from minidbg.torch_internals import devices
from minidbg.torch_internals.private_names import nothing_around, private_or


@contextlib.contextmanager
def random_numbers_put_back(values: Iterable[Any] = ()) -> Iterator[None]:
    """A block of ours that the program's random numbers do not show: those of Python, of NumPy, and of each device that is in use.

    Imports belong inside it too, since modules draw (rich does, while it is imported). A seed that waits for an
    accelerator's first use keeps waiting.
    """
    python = random.getstate()
    numpy: Any = sys.modules.get("numpy.random")
    legacy = numpy.get_state() if hasattr(numpy, "set_state") else None
    generators = devices.generator_states(values)
    with seeds_keep_waiting():
        try:
            yield
        finally:
            for device, state in generators:
                devices.set_generator_state(device, state)
            if legacy is not None:
                numpy.set_state(legacy)
            random.setstate(python)


@contextlib.contextmanager
@private_or(nothing_around)  # of 2.13 and 2.14
def seeds_keep_waiting() -> Iterator[None]:
    """A block whose ``torch.manual_seed`` is not what an accelerator is seeded with that the program uses only later.

    ``torch.cuda._lazy_seed_tracker`` and its like are private.
    """
    modules = map(devices.module_of, devices.kinds_here())
    waiting = [module._lazy_seed_tracker for module in modules if hasattr(module, "_lazy_seed_tracker")]
    before = [dict(vars(one)) for one in waiting]
    try:
        yield
    finally:
        for one, state in zip(waiting, before, strict=True):
            vars(one).update(state)
