"""AOTAutograd: the graphs it has compiled, and the backward that it compiles late."""

from __future__ import annotations

import contextlib
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch

from minidbg.torch_internals.private_names import private, private_or


@private
def aot_graph_part() -> str | None:
    """``forward``, ``backward`` or ``inference``: what AOTAutograd is having compiled; or None."""
    from torch._functorch._aot_autograd import logging_utils

    found = [name.rpartition("_")[2] for name in logging_utils.graph_being_compiled]
    return found[0] if found and found[0] in ("forward", "backward", "inference") else None


@private
def in_backward() -> bool:
    """Whether autograd's engine is running in this thread."""
    return torch._C._current_graph_task_id() != -1


@private
def compiles_backward_early() -> bool:
    """Whether AOTAutograd swallows a failure to compile now: of a backward that may never be
    needed, and is compiled once more when it is."""
    from torch._functorch import config

    is_early = aot_graph_part() == "backward" and not in_backward()
    return is_early and not config.force_non_lazy_backward_lowering


@private_or(lambda: 0)
def next_aot_id() -> int:
    """The number that AOTAutograd gives to the next graph it gets; 0 before it is loaded."""
    module = sys.modules.get("torch._functorch.aot_autograd")
    # its repr: looking at it must not count, and Python 3.14 copies no iterator
    counter = repr(module.AOT_COUNTER) if module is not None else "0"
    return int(counter.removeprefix("count(").removesuffix(")"))


NEAR = 4
"""Autograd nodes between an output and its graph: views and writes AOTAutograd repeats outside."""


@private_or(lambda *_: [])
def aot_backward_classes(tensors: Sequence[torch.Tensor], since: int) -> list[Any]:
    """The autograd.Functions that AOTAutograd made for the graphs that ``tensors`` came out of,
    numbered from ``since``."""
    found: dict[int, Any] = {}
    level = [tensor.grad_fn for tensor in tensors]
    for _ in range(NEAR):
        beyond: list[Any] = []
        for node in filter(None, level):
            made: Any = getattr(node, "_forward_cls", None)
            if hasattr(made, "_backward_impl") and hasattr(made, "_aot_id"):
                if made._aot_id >= since:
                    found[id(made)] = made
            else:
                beyond += [function for function, _ in node.next_functions]
        level = list(dict.fromkeys(beyond))
    return list(found.values())


@private_or(lambda *_: None)
def guard_backward(
    function_class: Any,
    on_error: Callable[[Exception], None],
    around: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
) -> None:
    """Tell ``on_error`` what this one graph's compiled backward raises; it is raised all the same.

    Each run is inside of ``around()``. The backward is compiled when it first runs, inside
    ``loss.backward()``, where no wrapper of the forward sees it. ``_backward_impl`` is looked up on
    the class at each call. Dynamo would trace ours where a compiled frame asks for gradients.
    """
    implementation = function_class._backward_impl

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch leaves it untyped
    def guarded(*args: Any) -> Any:
        try:
            with around():
                return implementation(*args)
        except Exception as error:
            on_error(error)
            raise

    guarded.__wrapped__ = implementation
    function_class._backward_impl = staticmethod(guarded)


@private
def backward_phase(error: Exception) -> str | None:
    """``compile`` or ``runtime``, by a backward error's stack; None for AOTAutograd's own checks.

    A second backward without ``retain_graph``, or one that donated buffers forbid, is the program's
    error. torch 2.11 has no ``get_or_compile``: ``_backward_impl`` itself compiles once it has a
    ``metrics_context``.
    """
    phases = {"get_or_compile": "compile", "call_func_at_runtime_with_args": "runtime"}
    for frame, _ in traceback.walk_tb(error.__traceback__):
        phase = phases.get(frame.f_code.co_name)
        if phase is not None:
            return phase
        if frame.f_code.co_name == "_backward_impl" and "metrics_context" in frame.f_locals:
            made = frame.f_locals.get("CompiledFunction")
            if made is not None and made.compiled_bw is None:
                return "compile"
    return None


@private
def is_a_check_of_aot_autograd(error: Exception) -> bool:
    """Whether AOTAutograd refused before its backward ran: what it saved was written to or gone."""
    frames = traceback.extract_tb(error.__traceback__)
    in_wrapper = bool(frames) and frames[-1].filename.endswith("runtime_wrappers.py")
    return in_wrapper and backward_phase(error) is None


@private
def aot_autograd_arguments(backend: object) -> dict[str, Any] | None:
    """What ``aot_autograd(...)`` was called with to give ``backend``; None when made another way.

    Its first call wraps the backward compiler and fills in the inference one: both are undone here.
    """
    from torch._dynamo.backends.common import AotAutograd

    if type(backend) is not AotAutograd:
        return None
    arguments = dict(backend.kwargs)
    backward: Any = arguments.get("bw_compiler")
    if getattr(backward, "_is_wrapped_bw_compiler", False):
        arguments["bw_compiler"] = inspect.getclosurevars(backward).nonlocals["bw_compiler_fn"]
    for name in ("bw_compiler", "inference_compiler"):
        if arguments.get(name) is arguments.get("fw_compiler"):
            arguments.pop(name, None)
    return arguments
