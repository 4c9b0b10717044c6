"""The modes and settings that are in force in this thread: read, and entered for a run of ours."""

from __future__ import annotations

import ast
import contextlib
import importlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from minidbg import torch_internals
from minidbg.core.run_spec import Context
from minidbg.torch_internals.thread_state import without_autocast

CONFIG_MODULES = ("torch._dynamo.config", "torch._inductor.config", "torch._functorch.config")


NOT_OF_THE_CASE = frozenset(
    {"assume_static_by_default", "automatic_dynamic_shapes", *torch_internals.OVERRIDES}
)
"""Options that ``torch.compile(dynamic=...)`` sets for the time of a call: the case has ``dynamic``
instead; and those that give some graphs of a program, by their number in it, another backend or
other options: the case has what its graph got."""


ENVIRONMENT = (
    "CC", "CI", "CUBLAS_WORKSPACE_CONFIG", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "CXX",
    "HIP_VISIBLE_DEVICES", "KMP_AFFINITY", "KMP_BLOCKTIME", "MKL_CBWR", "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS", "OMP_SCHEDULE", "OPENVINO_TORCH_BACKEND_DEVICE",
    "PT_HPU_LAZY_MODE", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_TRACING_MODE", "TORCHDYNAMO_DYNAMIC_SHAPES",
    "TORCHINDUCTOR_COMPILE_THREADS", "TORCHINDUCTOR_CPP_WRAPPER",
    "TORCHINDUCTOR_ERROR_ON_CUSTOM_OP_ALIASING", "TORCHINDUCTOR_FREEZING",
    "TORCHINDUCTOR_MAX_AUTOTUNE", "TORCHINDUCTOR_VEC_ISA_OK", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TVM_SCHEDULER",
)  # fmt: skip
"""Environment variables that change what a backend does and hold no secret. Nothing else is ever
read; the setting ``env`` adds names."""


def current_context(inputs: Iterable[Any] = (), *, further_env: Iterable[str] = ()) -> Context:
    """What holds in this thread now. An inference tensor in ``inputs`` counts as inference mode."""
    inference = (value.is_inference() for value in inputs if isinstance(value, torch.Tensor))
    return Context(
        grad=torch.is_grad_enabled(),
        inference=torch.is_inference_mode_enabled() or any(inference),
        autocast=enabled_autocasts(),
        deterministic=torch.are_deterministic_algorithms_enabled(),
        deterministic_warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
        default_dtype=str(torch.get_default_dtype()),
        default_device=None if (device := str(torch.get_default_device())) == "cpu" else device,
        matmul_precision=torch.get_float32_matmul_precision(),
        threads=torch.get_num_threads(),
        config={name: values for name in CONFIG_MODULES if (values := literal_config(name))},
        env=allowed_environment(os.environ, further_env),
    )


def enabled_autocasts() -> tuple[tuple[str, str, bool], ...]:
    """Device type, dtype and whether casts are cached, for each autocast that is on."""
    devices = ["cpu"]
    if (current := torch.accelerator.current_accelerator(check_available=True)) is not None:
        devices.append(current.type)
    cached = torch.is_autocast_cache_enabled()
    return tuple(
        (device, str(torch.get_autocast_dtype(device)), cached)
        for device in devices
        if torch.is_autocast_enabled(device)
    )


def literal_config(module_name: str) -> dict[str, Any]:
    """The module's options that differ from their defaults, as far as ``repr`` gives them back."""
    items = sorted(torch_internals.changed_config(module_name).items())
    return {key: value for key, value in items if key not in NOT_OF_THE_CASE and round_trips(value)}


def round_trips(value: Any) -> bool:
    """Whether ``repr(value)`` is a literal equal to ``value``, so that a script may hold it."""
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False


def allowed_environment(environ: Mapping[str, str], further: Iterable[str]) -> dict[str, str]:
    """The variables of the allow list, and those named in ``further``, that are set."""
    return {name: environ[name] for name in sorted({*ENVIRONMENT, *further}) if name in environ}


@contextlib.contextmanager
def without_modes() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        # a mode, under which dynamo writes other graphs: only where one is on
        if str(torch.get_default_device()) != "cpu":
            stack.enter_context(torch.device("cpu"))
        stack.enter_context(without_autocast())
        yield


@contextlib.contextmanager
def entered_modes(context: Context) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        deterministic = torch.are_deterministic_algorithms_enabled()
        stack.callback(torch.use_deterministic_algorithms, deterministic, warn_only=warn_only)
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.use_deterministic_algorithms(context.deterministic, warn_only=context.deterministic_warn_only)
        torch.set_default_dtype(dtype_named(context.default_dtype))
        torch.set_float32_matmul_precision(context.matmul_precision)
        if context.threads_matter and context.threads is not None:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(context.threads)
        if context.default_device is not None:
            stack.enter_context(torch.device(context.default_device))
        stack.enter_context(torch.set_grad_enabled(context.grad))
        if context.inference:
            stack.enter_context(torch.inference_mode())
        for device, dtype, caches in context.autocast:
            stack.enter_context(torch.autocast(device, dtype_named(dtype), cache_enabled=caches))
        yield


@contextlib.contextmanager
def patched_config(given: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Options of torch's config modules. Graph caches are off: they would hide compiler changes."""
    config: dict[str, dict[str, Any]] = {
        "torch._inductor.config": {"fx_graph_cache": False, "fx_graph_remote_cache": False},
        "torch._functorch.config": {"enable_autograd_cache": False, "enable_remote_autograd_cache": False},
        # whole tracebacks tell compile from runtime; and torch's own minifier must not start here
        "torch._dynamo.config": {"verbose": True, "repro_after": None},
    }
    with contextlib.ExitStack() as stack:
        for name in {**config, **given}:
            module = importlib.import_module(name)
            options = {**config.get(name, {}), **given.get(name, {})}
            changes = {key: options[key] for key in options if hasattr(module, key)}
            stack.enter_context(module.patch(changes))
        yield


def dtype_named(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name.removeprefix("torch."))
    return dtype
