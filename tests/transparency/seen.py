"""Everything about an interpreter that a program, or the one who runs it, could notice; as plain values that JSON can hold."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import hashlib
import inspect
import locale
import logging
import multiprocessing
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
import torch
import torch._dynamo.config
import torch._functorch.config
from torch._subclasses.fake_tensor import FakeTensor

OWN = "minidbg"
"""Loggers of this name are not the program's."""
AUTOGRAD = "pt_autograd"
"""Threads that a CUDA build of torch starts for devices that are not there, unless autograd ran before dynamo (``forks_survive_autograd``)."""


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def plain(value: Any) -> Any:
    """``value`` for JSON: of a tensor its bits and all that it says of itself, of an exception its type and text."""
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    if isinstance(value, torch.nn.Module):
        return plain(dict(value.state_dict()))
    if isinstance(value, BaseException):
        return of_exception(value)
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    return value if isinstance(value, str | int | bool | type(None)) else named(value)


def named(value: Any) -> str:
    """A function by its name, another object by its text, without addresses."""
    if inspect.isroutine(value) or inspect.isclass(value):
        return f"{value.__module__}.{value.__qualname__}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def of_tensor(value: torch.Tensor) -> dict[str, Any]:
    said = {
        "type": type(value).__name__, "dtype": str(value.dtype), "shape": str(tuple(value.shape)), "layout": str(value.layout),
        "requires grad": value.requires_grad, "leaf": value.is_leaf, "made by": type(value.grad_fn).__name__,
        "inference": value.is_inference(), "version": None if value.is_inference() else value._version,
    }  # fmt: skip
    if value.is_nested:
        return {**said, "parts": [bits(part) for part in value.detach().unbind()]}
    if value.layout is torch.strided:
        said.update(stride=value.stride(), conj=value.is_conj(), neg=value.is_neg())
    if value.is_leaf and value.grad is not None:
        said["gradient"] = of_tensor(value.grad)
    return {**said, "bits": bits(value.detach())}


def bits(value: torch.Tensor) -> str:
    dense = value.to_dense() if value.layout is not torch.strided else value
    dense = dense.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return digest(dense.view(torch.uint8).numpy().tobytes() if dense.numel() else b"")


def of_exception(error: BaseException) -> dict[str, Any]:
    """Type and text, down its causes; notes are not compared."""
    above = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return {
        "type": f"{type(error).__module__}.{type(error).__qualname__}",
        "text": re.sub(r"0x[0-9a-f]+", "0x", str(error)),
        "after": plain(above),
    }


# ---- the interpreter


def random_numbers() -> dict[str, Any]:
    kind, keys, *rest = numpy.random.get_state()
    return {
        "python": digest(repr(random.getstate()).encode()),
        "numpy": digest(repr((kind, keys.tolist(), rest)).encode()),
        "torch": digest(torch.get_rng_state().numpy().tobytes()),
    }


def open_files() -> list[str]:
    """What each descriptor leads to; pipes and sockets without their numbers."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(re.sub(r":\[\d+\]", "", os.readlink(f"/proc/self/fd/{name}")))
        except OSError:
            continue  # the descriptor of the listing itself
    return sorted(found)


def children() -> list[str]:
    """The commands of this process's children, ended ones included."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        found += [Path(f"/proc/{pid}/comm").read_text() for pid in (task / "children").read_text().split()]
    return sorted(found)


def of_python() -> dict[str, Any]:
    return {
        "path": sys.path, "argv": sys.argv, "flags": repr(sys.flags), "hooks": [plain(sys.excepthook), plain(sys.displayhook), plain(sys.unraisablehook)],
        "finders": [type(one).__name__ if not inspect.isclass(one) else one.__name__ for one in sys.meta_path],
        "path hooks": plain(sys.path_hooks), "trace": plain(sys.gettrace()), "profile": plain(sys.getprofile()),
        "recursion": sys.getrecursionlimit(), "switch": str(sys.getswitchinterval()), "digits": sys.get_int_max_str_digits(),
        "streams": [plain(sys.stdout is sys.__stdout__), plain(sys.stderr is sys.__stderr__)],
        "collector": [gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.get_freeze_count(), plain(gc.callbacks)],
        "warnings": [plain(warnings.filters), plain(warnings.showwarning)], "locale": locale.setlocale(locale.LC_ALL),
        "faults": faulthandler.is_enabled(), "bytecode": [sys.dont_write_bytecode, sys.pycache_prefix], "temporary": tempfile.tempdir,
        "processes": multiprocessing.get_start_method(allow_none=True),
    }  # fmt: skip


def names_of_threads() -> Iterator[str]:
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended since it was listed
            yield (task / "comm").read_text().strip()


def of_threads() -> dict[str, Any]:
    for one in threading.enumerate():
        if one.name == "QueueFeederThread":
            one.join(1.0)  # of a DataLoader's queue that is closed: it ends by itself, soon
    time.sleep(0.3)  # one that has been joined is a task of the system for a moment
    return {
        "python": sorted(f"{one.name} {one.daemon}" for one in threading.enumerate()),
        "system": sorted(name for name in names_of_threads() if not name.startswith(AUTOGRAD)),
        "hooks": [plain(threading.excepthook), plain(threading.gettrace()), plain(threading.getprofile())],
        "stack": threading.stack_size(),
    }


def of_logging() -> dict[str, Any]:
    loggers = [
        logging.root,
        *(one for one in logging.root.manager.loggerDict.values() if isinstance(one, logging.Logger)),
    ]
    said = {
        one.name: [one.level, one.propagate, one.disabled, [type(each).__name__ for each in one.handlers], len(one.filters)]
        for one in loggers
        if one.name.partition(".")[0] != OWN
    }  # fmt: skip
    # a logger that somebody has asked for and nobody has touched says nothing
    said = {name: one for name, one in said.items() if one != [0, True, False, [], 0]}
    return {**said, "disabled": logging.root.manager.disable, "class": plain(logging.getLoggerClass())}


def of_signals() -> dict[str, Any]:
    return {
        **{one.name: plain(signal.getsignal(one)) for one in signal.valid_signals() if isinstance(one, signal.Signals)},
        "blocked": plain(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "timer": str(signal.getitimer(signal.ITIMER_REAL)),
    }  # fmt: skip


# ---- torch


def of_torch() -> dict[str, Any]:
    return {
        "dtype": str(torch.get_default_dtype()), "device": str(torch.get_default_device()),
        "grad": torch.is_grad_enabled(), "inference": torch.is_inference_mode_enabled(),
        "deterministic": [torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(), torch.utils.deterministic.fill_uninitialized_memory],
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "autocast": [torch.is_autocast_enabled("cpu"), str(torch.get_autocast_dtype("cpu")), torch.is_autocast_cache_enabled()],
        "anomaly": [torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()],
        "matmul": [torch.get_float32_matmul_precision(), torch.backends.mkldnn.enabled, torch.backends.mkldnn.deterministic],
        "printing": repr(torch._tensor_str.PRINT_OPTS),
        "levels": plain(torch._C._functorch.peek_interpreter_stack()),
        "modes": [torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()],
        "saved tensors": plain(torch._C._autograd._top_saved_tensors_default_hooks(True)),
        "module hooks": [len(getattr(torch.nn.modules.module, f"_global_{kind}_hooks")) for kind in ("forward", "forward_pre", "backward", "backward_pre")],
        "dynamo": plain(torch._dynamo.config.get_config_copy()), "functorch": plain(torch._functorch.config.get_config_copy()),
        "stance": str(torch._dynamo.eval_frame._stance.stance), "callback": plain(torch._C._dynamo.eval_frame.get_eval_frame_callback()) if hasattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback") else None,
    }  # fmt: skip


def of_compiler() -> dict[str, Any]:
    """What torch counted: frames, graphs, breaks, what was compiled and how often."""
    from torch._dynamo.utils import counters

    return {str(kind): {re.sub("0x[0-9a-f]+", "0x", str(key)): count for key, count in table.items() if count} for kind, table in counters.items() if any(table.values())}  # fmt: skip


def live_tensors() -> list[str]:
    """Tensors with data that something holds on to."""
    gc.collect()
    alive = (
        one
        for one in gc.get_objects()
        if issubclass(type(one), torch.Tensor) and not isinstance(one, FakeTensor)
    )
    return sorted(f"{type(one).__name__} {one.dtype} {tuple(one.shape)}" for one in alive)


def files_in(folder: str | Path) -> list[str]:
    """All files but byte code, and the one by which ``minidbg run`` hears of the program."""
    files = (path.relative_to(folder) for path in Path(folder).rglob("*"))
    found = (Path(folder, path) for path in files if not path.parts[0].startswith("minidbg-run-"))
    return sorted(str(path.relative_to(folder)) for path in found if "__pycache__" not in path.parts)


def everything(folders: Iterable[str]) -> dict[str, Any]:
    """The state of this process now. Random numbers first: to look at the rest may draw some."""
    return {
        "random numbers": random_numbers(), "threads": of_threads(), "open files": open_files(), "children": children(),
        "environment": dict(os.environ), "working directory": os.getcwd(), "umask": umask(), "python": of_python(),
        "logging": of_logging(), "signals": of_signals(), "torch": of_torch(), "compiler": of_compiler(),
        "tensors": live_tensors(), "files": {folder: files_in(folder) for folder in folders},
    }  # fmt: skip


def umask() -> int:
    os.umask(before := os.umask(0))
    return before
