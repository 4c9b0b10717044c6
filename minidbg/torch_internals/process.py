"""A process that children are forked from: threads, devices, and a compiler that is warm."""

from __future__ import annotations

import contextlib
import glob
import importlib
import os
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from minidbg.torch_internals import devices
from minidbg.torch_internals.backends import InductorStop, inductor_stopped_after
from minidbg.torch_internals.operators import preserving_kernels
from minidbg.torch_internals.private_names import private
from minidbg.torch_internals.tensors import without_modes

DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd", "/dev/dri", "/dev/accel")
"""Device files of accelerators that autograd's engine may find: NVIDIA, WSL, AMD, Intel, others."""

IMPORTED_LATE = ("torch._dynamo", "torch._functorch.aot_autograd", "torch._dynamo.backends.debugging")
IMPORTED_LATE_BY_INDUCTOR = (
    "torch._inductor.compile_fx", "torch._inductor.codegen.cpp", "torch._inductor.codegen.triton",
    "torch._inductor.codegen.cuda_combined_scheduling", "torch._inductor.runtime.triton_heuristics",
    "torch._inductor.fx_passes.joint_graph", "torch._inductor.fx_passes.post_grad",
    "torch._inductor.kernel.mm", "triton.compiler",
)  # fmt: skip
"""What torch imports when it first compiles: all that can be made ready where an accelerator is."""

INDUCTORS_TABLES = (
    "torch._inductor.compile_fx", "torch._dynamo.backends.registry:_lazy_import",
    "torch._inductor.codegen.common:init_backend_registration", "torch.utils.cpp_extension",
    "torch._inductor.fx_passes.joint_graph:lazy_init",
    "torch._inductor.fx_passes.post_grad:lazy_init", "sympy.physics.units",
)  # fmt: skip
"""Modules, and functions that import others and fill inductor's tables when it first compiles."""

silence = contextlib.ExitStack()
"""What puts the process's warnings and anomaly detection back."""
silent_blocks = 0
silence_lock = threading.Lock()
# another thread may hold it
os.register_at_fork(after_in_child=silence_lock._at_fork_reinit)  # type: ignore[attr-defined]


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """A block with no warnings or anomaly detection. What torch warns of once it can warn of later.

    All are the process's, and threads may be in such blocks at once: the first in changes them, the
    last out puts them back.
    """
    global silent_blocks
    with silence_lock:
        if not silent_blocks:
            silence.enter_context(warnings.catch_warnings(action="ignore"))
            silence.enter_context(torch.autograd.set_detect_anomaly(False))
            silence.callback(torch.set_warn_always, torch.is_warn_always_enabled())
            torch.set_warn_always(True)
        silent_blocks += 1
    try:
        yield
    finally:
        with silence_lock:
            silent_blocks -= 1
            if not silent_blocks:
                silence.close()


def forks_survive_autograd(drivers: Iterable[str] = DRIVERS) -> bool:
    """Whether children that are forked after autograd has run in this process can use it too.

    Autograd's engine starts a thread for each device when it first runs, and no child forked after
    that may run it. A CUDA build on a machine without a GPU has eight devices as soon as dynamo has
    made its first FakeTensorMode (``_ensureCUDADeviceGuardSet``), none before: so the engine is
    started here, before, where there is no device. A backend that registers a device of its own has
    it from its import on.
    """
    if torch._C._get_privateuse1_backend_name() != "privateuseone":
        return False
    if any(map(os.path.exists, drivers)):
        for_cpu = torch.version.cuda is None and torch.version.hip is None
        return for_cpu and not autograd_has_threads()
    with contextlib.suppress(Exception), without_modes(), torch.inference_mode(False), torch.enable_grad():
        torch.autograd.backward(torch.ones(1, device="cpu", requires_grad=True).sum())
    return not autograd_has_threads()


def autograd_has_threads() -> bool:
    """Whether autograd's engine has started threads for devices in this process (Linux)."""
    for task in glob.glob("/proc/self/task/*/comm"):
        with contextlib.suppress(OSError), open(task) as name:
            if name.read().startswith("pt_autograd"):
                return True
    return False


def warm_up_compiling(depth: str) -> None:
    """Compile a little here, by aot_eager (``aot``) or inductor, to its end, to ``lowering`` or to
    ``codegen``: forks of this process have each import and lazy table that they need so far.

    One thread only: a child hangs where its parent had more. No autograd where children could not
    use it after that. No graph cache: a graph found there warms nothing up.

    Imports alone with an accelerator: dynamo reads its generator's state; no child can use it then.
    """
    if devices.present():
        import_for_compiling(inductor=depth != "aot")
        return
    with_autograd = forks_survive_autograd()
    torch.set_num_threads(1)
    hub: Any = torch.hub
    hub.tqdm.monitor_interval = 0  # dynamo's progress bar would start a thread: no child has it
    backend = "aot_eager" if depth == "aot" else "inductor"
    for gradients in (*([True] if with_autograd else []), False):
        with (
            contextlib.suppress(Exception),  # a broken backend: the children will meet it
            importlib.import_module("torch._inductor.config").patch(fx_graph_cache=False),
            importlib.import_module("torch._functorch.config").patch(enable_autograd_cache=False),
            inductor_stopped_after(InductorStop.__members__.get(depth.upper())),
            torch.set_grad_enabled(gradients),
        ):
            if depth in ("codegen", "inductor"):  # sympy's simplify will
                importlib.import_module("sympy.physics.units")
            compiled = torch.compile(lambda value: torch.relu(value) + 1, backend=backend, fullgraph=True)
            result: Any = compiled(torch.ones(4, requires_grad=gradients))
            if gradients:
                result.sum().backward()
    with preserving_kernels():
        torch._dynamo.reset()
    leave_out_measurements()


def import_for_compiling(*, inductor: bool) -> None:
    """Import what the first compile imports, so that processes forked from this one need not."""
    for name in (*IMPORTED_LATE, *(IMPORTED_LATE_BY_INDUCTOR if inductor else ())):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    leave_out_measurements()


@private
def leave_out_measurements() -> None:
    """Have dynamo in this process leave out what only its logs want: a third of a small graph's
    compile in a forked child. Where torch does not have these names, nothing happens.

    Each compile otherwise flushes the processor's caches to time its guards, and tokenizes the
    whole file of the traced function for the name in a log line.
    """
    guards = sys.modules.get("torch._dynamo.guards")
    names = sys.modules.get("torch._dynamo.funcname_cache")
    if hasattr(guards, "profile_guard_manager"):
        vars(guards)["profile_guard_manager"] = lambda *_: 0.0
    if hasattr(names, "_add_file"):
        vars(names)["_add_file"] = lambda path: vars(names)["cache"].setdefault(path, {})


@private
def one_thread_after_fork() -> None:
    """A forked child's first act: OpenMP's and inductor's worker threads stayed with the parent.

    A child that asks for a second thread waits for ever at its first matmul, and at its first
    compile where a thread of the parent was compiling: that thread holds dynamo's lock.
    """
    torch.set_num_threads(1)
    if "torch._dynamo.convert_frame" in sys.modules:
        from torch._dynamo.convert_frame import compile_lock

        compile_lock._at_fork_reinit()  # type: ignore[attr-defined]
    from torch._inductor import config

    config.compile_threads = 1
