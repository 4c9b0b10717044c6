"""Backends that end their process, or never come back, on relu: one for each way and each step.

``dies("segfault", "run")`` is a ``functools.partial``, so that a repro names it by an import.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from planted_backends import has_relu
from torch import fx
from torch._dynamo.backends.common import aot_autograd

CompiledFn = Callable[..., Any]


def segfault() -> None:
    import ctypes

    ctypes.string_at(0)


def abort() -> None:
    os.abort()


def terminate() -> None:
    """What C++ does with an exception that nobody catches."""
    import ctypes

    ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev()


def exit_() -> None:
    os._exit(7)


def memory() -> None:
    """Takes memory without end, and touches it."""
    held = []
    while True:
        held.append(bytearray(os.urandom(1) * (16 << 20)))
        time.sleep(0.01)


def hang() -> None:
    while True:
        time.sleep(0.01)


def hang_in_c() -> None:
    """Holds the GIL: (a+)+b is exponential in the regex engine."""
    __import__("re").match(r"(a+)+b", "a" * 64)


WAYS: dict[str, Callable[[], None]] = {
    "segfault": segfault,
    "abort": abort,
    "terminate": terminate,
    "exit": exit_,
    "memory": memory,
    "hang": hang,
    "hang_in_c": hang_in_c,
}
STEPS = ("compile", "run", "backward compile", "backward run")


def dies(way: str, step: str) -> functools.partial[CompiledFn]:
    return functools.partial(dying, way=way, step=step)


def dying(gm: fx.GraphModule, example_inputs: Sequence[Any], *, way: str, step: str) -> CompiledFn:
    """Ends the process in that way, in that step of a graph with relu; any other graph runs in eager."""
    if step.startswith("backward"):
        backward = functools.partial(dying_here, way=way, step=step.split()[1], is_bad=has_backward_of_relu)
        compiled: CompiledFn = aot_autograd(fw_compiler=works, bw_compiler=backward)(gm, example_inputs)
        return compiled
    return dying_here(gm, example_inputs, way=way, step=step, is_bad=has_relu)


def dying_here(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    way: str,
    step: str,
    is_bad: Callable[[fx.GraphModule], bool],
) -> CompiledFn:
    bad = is_bad(gm)
    if bad and step == "compile":
        WAYS[way]()

    def compiled_fn(*args: Any) -> Any:
        if bad:
            sys.stderr.write("the kernel of relu begins\n")
            WAYS[way]()
        return gm(*args)

    return compiled_fn


def works(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    return gm.forward


def has_backward_of_relu(gm: fx.GraphModule) -> bool:
    return any("threshold_backward" in str(node.target) for node in gm.graph.nodes)
