"""``torch.acme``: what torch and minidbg ask of the module of a device type."""

import os

import torch

from acme import NAME

everything, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
for name in ("mm", "linear", "matmul", "addmm"):

    def cast_first(*args, name=name):
        key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
        dtype = torch.get_autocast_dtype(NAME)
        with torch._C._ExcludeDispatchKeyGuard(key):
            return getattr(torch.ops.aten, name)(*(one if one is None else one.to(dtype) for one in args))

    aten.impl(name, cast_first, "AutocastPrivateUse1")

runtime = torch.ops.acme_runtime
STARTED_IN = []
"""The process that first used the device: as with CUDA, no fork of it can."""


def is_available():
    return device_count() > 0


def is_initialized():
    return bool(STARTED_IN)


def _lazy_init():
    if not STARTED_IN:
        STARTED_IN.append(os.getpid())


def _is_in_bad_fork():
    return bool(STARTED_IN) and STARTED_IN[0] != os.getpid()


def device_count():
    """2, or what ACME_DEVICES says; ACME_GONE names a file whose presence takes them all away."""
    if os.path.exists(os.environ.get("ACME_GONE") or "/nonexistent"):
        return 0
    return int(os.environ.get("ACME_DEVICES", "2"))


def current_device():
    return runtime.current_device()


def set_device(device):
    runtime.set_device(index_of(device))


def index_of(device):
    if device is None:
        return current_device()
    index = torch.device(device).index if isinstance(device, str | torch.device) else device
    return current_device() if index is None else index


def synchronize(device=None):
    runtime.synchronize(index_of(device))


def get_device_name(device=None):
    return f"Acme {index_of(device)}"


def get_device_properties(device=None):
    return type(
        "Properties", (), {"name": get_device_name(device), "total_memory": runtime.limit(index_of(device))}
    )()


def get_amp_supported_dtype():
    return [torch.bfloat16, torch.float16]


def mem_get_info(device=None):
    index = index_of(device)
    return runtime.limit(index) - runtime.allocated(index), runtime.limit(index)


def memory_allocated(device=None):
    return runtime.allocated(index_of(device))


memory_reserved = memory_allocated


def empty_cache():
    pass


def generator(device=None):
    return runtime.generator(index_of(device))


def get_rng_state(device=NAME):
    return generator(device).get_state()


def set_rng_state(state, device=NAME):
    generator(device).set_state(state)


def manual_seed(seed):
    generator().manual_seed(seed)


def manual_seed_all(seed):
    for index in range(device_count()):
        generator(index).manual_seed(seed)
