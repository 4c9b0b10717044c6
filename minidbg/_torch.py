"""The only importer of torch's private names. Each function says in which versions its names were seen."""

from __future__ import annotations

import contextlib
import enum
import functools
import importlib
import inspect
import io
import logging
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeGuard

import torch


def autocast_functions() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The calls by which a graph enters and leaves ``torch.autocast``. Seen in 2.13."""
    from torch.amp.autocast_mode import _enter_autocast, _exit_autocast

    return _enter_autocast, _exit_autocast


def inference_mode_functions() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The calls by which a graph enters and leaves ``torch.inference_mode``. Seen in 2.13."""
    from torch.autograd.grad_mode import _enter_inference_mode, _exit_inference_mode

    return _enter_inference_mode, _exit_inference_mode


def grad_mode_function() -> Callable[..., Any]:
    """The call by which a graph sets grad mode. Seen in 2.13."""
    function: Callable[..., Any] = torch._C._set_grad_enabled
    return function


def get_data_function() -> Callable[..., Any] | None:
    """The call that dynamo puts into a graph for ``x.data``; None where it is a plain getattr. Seen in 2.13."""
    function: Callable[..., Any] | None = getattr(torch._C._autograd, "_get_data_attr", None)
    return function


def lazy_graph_module(
    root: Any, graph: torch.fx.Graph, class_name: str = "GraphModule"
) -> torch.fx.GraphModule:
    """A GraphModule that writes its forward only when it is called or printed. Seen in 2.13."""
    from torch.fx._lazy_graph_module import _LazyGraphModule

    return _LazyGraphModule(root, graph, class_name)


# ---- backends ------------------------------------------------------------------------------------


def known_backends() -> list[str]:
    """Every name that torch.compile knows, debugging ones and entry points included. Seen in 2.13."""
    from torch._dynamo.backends.registry import list_backends

    return sorted(list_backends(exclude_tags=()))


def configured_backend(
    backend: str | Callable[..., Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """``backend`` as ``torch.compile(backend=, options=, mode=)`` would call it: ``(gm, example_inputs)``.

    Inductor by name takes them as config patches, every other backend as keyword arguments and only when given.
    Raises RuntimeError for an option or mode that inductor does not know. ``_TorchCompileInductorWrapper`` and
    ``lookup_backend`` were seen in 2.13.
    """
    if backend == "inductor":
        # dynamic only ever selected among modes in versions before those supported
        wrapper: Any = torch._TorchCompileInductorWrapper
        compiler: Callable[..., Any] = wrapper(mode, dict(options or {}), None)
        return compiler
    from torch._dynamo.backends.registry import lookup_backend

    keywords: dict[str, Any] = {}
    if mode and mode != "default":
        keywords["mode"] = mode
    if options:
        keywords["options"] = dict(options)
    found = lookup_backend(backend)
    return functools.partial(found, **keywords) if keywords else found


def inductor_option_names() -> list[str]:
    """What ``torch.compile(options=)`` may hold for inductor. ``get_config_copy`` was seen in 2.13."""
    from torch._inductor import config

    return sorted(config.get_config_copy())


def inductor_modes() -> list[str]:
    """What ``torch.compile(mode=)`` may be for inductor. Seen in 2.13."""
    from torch._inductor import list_mode_options

    return sorted(list_mode_options())


def replace_backends(eval_frame: Any, replaced: Callable[[Any], Any]) -> None:
    """Have ``replaced(backend)`` used for each backend that a program asks for, in whatever way it asks.

    ``eval_frame`` is ``torch._dynamo.eval_frame``. ``torch.compile``, ``Module.compile`` and ``torch._dynamo.optimize``
    all call its ``get_compiler_fn``. Seen in 2.13.
    """
    original = eval_frame.get_compiler_fn

    @functools.wraps(original)
    def get_compiler_fn(compiler_fn: Any) -> Any:
        return original(replaced(compiler_fn))

    eval_frame.get_compiler_fn = get_compiler_fn


def is_backend_of_a_program(backend: object) -> bool:
    """Whether a program asked for this backend, and not torch itself: export captures graphs by one of its own.

    Seen in 2.13.
    """
    given, _, _ = as_given_to_compile(backend)
    if isinstance(given, str) or given is not backend:
        return True
    owner = getattr(backend, "__module__", None) or type(backend).__module__
    return backend is not None and not str(owner).startswith("torch")


def as_torch_compile_has_it(backend: Callable[..., Any]) -> Any:
    """``backend`` as ``torch.compile(backend=backend)`` hands it on, with its name for messages. Seen in 2.13."""
    wrapper: Any = torch._TorchCompileWrapper
    return wrapper(backend, None, None, None)


# ---- what dynamo does with a backend's answer ------------------------------------------------------


def is_control_flow(error: BaseException) -> bool:
    """Whether dynamo takes this exception of a backend as a message to itself, not as a failure.

    Restart of the analysis, skipping of the frame, and the FakeTensor exceptions that become a graph break.
    ``InductorError``, ``BackendCompilerFailed`` and ``IndexError`` are none of these. Seen in 2.13.
    """
    from torch._dynamo import exc

    messages = (exc.TensorifyScalarRestartAnalysis, exc.SkipFrame, *exc.exceptions_allowed_to_be_fallback)
    return isinstance(error, messages)


def dynamo_keeps_type(error: BaseException) -> bool:
    """Whether dynamo lets this exception of a backend through as it is; others it wraps. Seen in 2.13."""
    from torch._dynamo.exc import ShortenTraceback

    return isinstance(error, ShortenTraceback | IndexError)


def backend_compiler_failed(backend: object, error: Exception, first_useful_frame: FrameType) -> Exception:
    """The exception in which dynamo would wrap ``error``, with its traceback; dynamo does not wrap it again.

    ``first_useful_frame`` must be a frame of the traceback that the exception will have. Seen in 2.13.
    """
    from torch._dynamo.exc import BackendCompilerFailed

    return BackendCompilerFailed(backend, error, first_useful_frame).with_traceback(error.__traceback__)


def is_called_by_torch(frame: FrameType | None) -> bool:
    """Whether the caller is torch.compile's machinery, so that exceptions are dynamo's to wrap. Seen in 2.13."""
    name = frame.f_globals.get("__name__", "") if frame is not None else ""
    return name == "torch" or name.startswith("torch._dynamo.")


def settled_forward(compiled_fn: Any) -> Any:
    """``compiled_fn``, or the compiled forward behind it when it is a lazily compiled GraphModule's.

    Dynamo does the same to what a backend returns, and cannot once it is wrapped. Seen in 2.13.
    """
    from torch.fx._lazy_graph_module import _LazyGraphModule

    if isinstance(compiled_fn, _LazyGraphModule):
        _LazyGraphModule.force_recompile(compiled_fn)
        return compiled_fn
    module = getattr(compiled_fn, "__self__", None)
    if isinstance(module, _LazyGraphModule) and compiled_fn.__name__ == "_lazy_forward":
        _LazyGraphModule.force_recompile(module)
        return module.forward
    return compiled_fn


def is_serializable_callable(compiled_fn: Any) -> bool:
    """Whether dynamo may store this compiled function for another process, by its type. Seen in 2.13."""
    module = sys.modules.get("torch._dynamo.aot_compile_types")
    return module is not None and isinstance(compiled_fn, module.SerializableCallable)


def with_inner_compiler(compiler: Any, wrapped: Callable[[Any, bool], Any]) -> Any:
    """``wrapped(compiler, stored)``; of a compiler whose results AOTAutograd stores, one of that kind around it.

    ``SerializableAOTDispatchCompiler`` was seen in 2.13.
    """
    from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler

    if isinstance(compiler, SerializableAOTDispatchCompiler):
        return SerializableAOTDispatchCompiler(compiler.output_code_ty, wrapped(compiler.compiler_fn, True))
    return wrapped(compiler, False)


def aot_graph_part() -> str | None:
    """``forward``, ``backward`` or ``inference``: the graph that AOTAutograd is having compiled; None outside of it.

    ``graph_being_compiled`` (``["0_forward"]``) was seen in 2.13.
    """
    from torch._functorch._aot_autograd import logging_utils

    found = [name.rpartition("_")[2] for name in logging_utils.graph_being_compiled]
    return found[0] if found and found[0] in ("forward", "backward", "inference") else None


def in_backward() -> bool:
    """Whether autograd's engine is running in this thread. ``_current_graph_task_id`` was seen in 2.13."""
    return torch._C._current_graph_task_id() != -1


def tries_backward_early() -> bool:
    """Whether AOTAutograd goes on when a backward that it compiles ahead of time fails to. Seen in 2.13."""
    from torch._functorch import config

    return not config.force_non_lazy_backward_lowering


def in_a_backend() -> bool:
    """Whether dynamo is having a graph compiled in this thread. Seen in 2.13."""
    return torch._guards.TracingContext.try_get() is not None and not in_backward()


def next_aot_id() -> int:
    """The number that AOTAutograd gives to the next graph it is asked for; 0 before it is loaded.

    ``AOT_COUNTER``, an ``itertools.count``, was seen in 2.13.
    """
    module = sys.modules.get("torch._functorch.aot_autograd")
    # its repr: looking at it must not count, and Python 3.14 copies no iterator
    return int(repr(module.AOT_COUNTER).removeprefix("count(").removesuffix(")")) if module is not None else 0


NEAR = 4
"""Autograd nodes between an output and the graph that made it: views and writes that AOTAutograd repeats outside."""


def aot_backward_classes(tensors: Sequence[torch.Tensor], since: int) -> list[Any]:
    """The autograd.Functions that AOTAutograd made for the graphs that ``tensors`` came out of, numbered from ``since``.

    ``_forward_cls``, ``_backward_impl`` and ``_aot_id`` were seen in 2.13.
    """
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


def guard_backward(
    function_class: Any,
    on_error: Callable[[Exception], None],
    around: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
) -> None:
    """Let ``on_error`` hear what the compiled backward of this one graph raises; it is raised all the same.

    Each run is inside of ``around()``.

    The backward is compiled when it first runs, inside ``loss.backward()``, where no wrapper of the forward sees
    it. ``_backward_impl`` is looked up on the class at each call. Seen in 2.13.
    """
    implementation = function_class._backward_impl

    def guarded(*args: Any) -> Any:
        try:
            with around():
                return implementation(*args)
        except Exception as error:
            on_error(error)
            raise

    function_class._backward_impl = staticmethod(guarded)


def backward_phase(error: Exception) -> str | None:
    """``compile`` or ``runtime`` for what a compiled backward raised, by its stack; None for AOTAutograd's own checks.

    A second backward without ``retain_graph``, or one that donated buffers forbid, is the program's error.
    Seen in 2.13.
    """
    phases = {"get_or_compile": "compile", "call_func_at_runtime_with_args": "runtime"}
    traceback = error.__traceback__
    while traceback is not None:
        phase = phases.get(traceback.tb_frame.f_code.co_name)
        if phase is not None:
            return phase
        traceback = traceback.tb_next
    return None


# ---- tensors and modes -----------------------------------------------------------------------------


def is_fake(value: object) -> bool:
    """Whether ``value`` is a tensor without data: a FakeTensor, or a functional wrapper. Seen in 2.13."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(value, FakeTensor) or (
        isinstance(value, torch.Tensor) and torch._is_functional_tensor(value)
    )


def hint_of(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> Any:
    """The number a symbolic value stands for in this run, without a guard on it; None when there is none.

    The ragged size of a nested tensor has none. ``node.hint`` was seen in 2.13.
    """
    return None if value.node.is_nested_int() or not value.node.has_hint() else value.node.hint


@contextlib.contextmanager
def outside_tracing() -> Iterator[None]:
    """A block in which no tracing context and no dispatch mode is active.

    Work of ours inside a backend's call would overwrite dynamo's live context. Seen in 2.13.
    """
    from torch.utils._python_dispatch import _disable_current_modes

    with torch._guards.tracing(None), _disable_current_modes():
        yield


@contextlib.contextmanager
def same_versions(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """A block whose writes to ``tensors`` autograd does not count: for putting back what was there before.

    ``_unsafe_preserve_version_counter`` was seen in 2.13. Inference tensors have no version.
    """
    counted = tuple(tensor for tensor in tensors if not tensor.is_inference())
    with torch.autograd.grad_mode._unsafe_preserve_version_counter(counted):
        yield


def changed_config(module_name: str) -> dict[str, Any]:
    """Options of an already imported torch config module that differ from their defaults. Seen in 2.13."""
    module = sys.modules.get(module_name)
    if module is None:
        return {}
    # Deprecated options warn when they are read as attributes; this way of reading does not. It also gives options
    # that were patched for a while and are back at their default.
    changed = module._get_dict(skip_default=True)
    return {name: value for name, value in changed.items() if value != module._config[name].default}


def config_default(module_name: str, name: str) -> Any:
    """The default of an option of a torch config module. ``_config`` was seen in 2.13."""
    return importlib.import_module(module_name)._config[name].default


# ---- where a backend comes from --------------------------------------------------------------------


def registered_backend(name: str) -> Callable[..., Any]:
    """The function behind a name that torch.compile knows; loads an entry point. Seen in 2.13."""
    from torch._dynamo.backends.registry import lookup_backend

    return lookup_backend(name)


def names_of_backend(compiler_fn: object) -> list[str]:
    """The names under which exactly this object is registered. ``_COMPILER_FNS`` was seen in 2.13."""
    from torch._dynamo.backends.registry import _COMPILER_FNS

    return sorted(name for name, known in _COMPILER_FNS.items() if known is compiler_fn)


def as_given_to_compile(backend: object) -> tuple[Any, dict[str, Any] | None, str | None]:
    """Backend, options and mode inside an object of the kinds that torch.compile makes; else ``backend`` itself.

    Both wrapper classes were seen in 2.13.
    """
    if type(backend) is torch._TorchCompileInductorWrapper:
        return "inductor", dict(backend.config) or None, None
    if type(backend) is torch._TorchCompileWrapper:
        return backend.compiler_fn, backend.kwargs.get("options"), backend.kwargs.get("mode")
    return backend, None, None


def aot_autograd_arguments(backend: object) -> dict[str, Any] | None:
    """What ``aot_autograd(...)`` was called with to give ``backend``, or None when it was not made that way.

    Its first call wraps the backward compiler and fills in the inference one: both are undone here.
    ``AotAutograd.kwargs`` and ``_is_wrapped_bw_compiler`` were seen in 2.13.
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


def is_overload(value: object) -> TypeGuard[torch._ops.OpOverload[..., Any]]:
    """Whether ``value`` is one overload of an operator: ``torch.ops.aten.add.Tensor``. Seen in 2.13."""
    return isinstance(value, torch._ops.OpOverload)


def operator_path(value: Any) -> str | None:
    """``torch.ops.aten.add.Tensor`` for a torch operator of any kind, None for other values. Seen in 2.13."""
    from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

    if isinstance(value, HigherOrderOperator):
        return f"torch.ops.higher_order.{value.__name__}"
    if not isinstance(value, OpOverload | OpOverloadPacket):
        return None
    packet, overload = (
        (value.overloadpacket, f".{value._overloadname}") if isinstance(value, OpOverload) else (value, "")
    )
    return f"torch.ops.{packet._qualified_op_name.replace('::', '.')}{overload}"


def operator_schemas(path: str) -> tuple[Any, ...]:
    """The schemas of ``torch.ops.aten.add.Tensor``, or of all overloads of ``torch.ops.aten.add``; empty when
    there is no such operator. ``_schema`` was seen in 2.13.
    """
    from torch._ops import OpOverload, OpOverloadPacket

    found: Any = torch
    for part in path.split(".")[1:]:
        found = getattr(found, part, None)
    if isinstance(found, OpOverload):
        return (found._schema,)
    if not isinstance(found, OpOverloadPacket):
        return ()
    return tuple(getattr(found, overload)._schema for overload in found.overloads())  # type: ignore[no-untyped-call]  # torch has no types there


# ---- what a tensor really is ----------------------------------------------------------------------


def hint(value: object) -> Any:
    """``hint_of`` a symbolic number; anything else as it is. Seen in 2.13."""
    return hint_of(value) if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) else value


def storage_identity(value: torch.Tensor) -> int:
    """A number that tensors share exactly when they share their storage. ``_cdata`` was seen in 2.13."""
    return int(value.untyped_storage()._cdata)


def is_inside_functorch(value: torch.Tensor) -> bool:
    """Whether ``value`` lives inside a level of vmap, grad or jvp and exists nowhere else. Seen in 2.13."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(value))


@contextlib.contextmanager
def functional_state_kept() -> Iterator[None]:
    """A block after which no level of vmap or grad that it opened is open, and the states around them are as before.

    Also of attention's kernels. ``_functorch`` and ``_sdpa_kernel`` as here were seen in 2.11 to 2.13.
    """
    from torch.nn import attention

    levels, hooks = torch._C._functorch, torch._C._autograd
    depth = levels.get_dynamic_layer_stack_depth()
    inplace = levels.get_inplace_requires_grad_allowed()
    disabled = hooks._saved_tensors_hooks_get_disabled_error_message()
    kernels = attention._cur_sdpa_kernel_backends(with_priority=True)
    try:
        yield
    finally:
        if levels.get_dynamic_layer_stack_depth() > depth:
            levels.pop_dynamic_layer_stack_and_undo_to_depth(depth)
        if levels.get_inplace_requires_grad_allowed() != inplace:
            levels.set_inplace_requires_grad_allowed(inplace)
        if hooks._saved_tensors_hooks_get_disabled_error_message() != disabled:
            if disabled is None:
                hooks._saved_tensors_hooks_enable()
            else:
                hooks._saved_tensors_hooks_disable(disabled)
        if attention._cur_sdpa_kernel_backends(with_priority=True) != kernels:
            attention._sdpa_kernel(kernels, set_priority=True)


def symbol_of(value: object) -> str | None:
    """The name of the symbol that ``value`` is: ``s0`` of a plain SymInt, None of anything else. Seen in 2.13."""
    if not isinstance(value, torch.SymInt | torch.SymFloat):
        return None
    expression = value.node.expr
    return str(expression) if expression.is_Symbol else None


def symbols_in(value: object) -> set[str]:
    """Names of the symbols in the shape and strides of a fake tensor, or in a symbolic number. Seen in 2.13."""
    if isinstance(value, torch.Tensor):
        found: set[str] = set()
        for size in (*value.shape, *(value.stride() if value.layout is torch.strided else ())):
            found |= symbols_in(size)
        return found
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return {str(symbol) for symbol in value.node.expr.free_symbols}
    return set()


def append_node(
    graph: torch.fx.Graph, like: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.fx.Node:
    """A node like ``like`` at the end of ``graph``: its op, target, type, meta, and its name where that is free.

    ``Graph.create_node`` without its walk over the arguments in Python, which takes most of its time, and without
    asking whether a name that a graph has is one: on dynamo's long names that takes most of the rest. The names of
    the namespace and of the look-up table were seen in 2.13.
    """
    name, used = like.name, graph._graph_namespace._used_names
    if name in used:
        name = graph._graph_namespace.create_name(name, None)
    used.add(name)
    node = torch.fx.Node(graph, name, like.op, like.target, args, kwargs, like.type)
    graph._graph_namespace.associate_name_with_obj(name, node)
    graph._insert(node)
    graph._find_nodes_lookup_table.insert(node)
    graph._len += 1
    node.meta.update(like.meta)
    return node


def without_modes() -> contextlib.AbstractContextManager[Any]:
    """Inside, no fake, functional or proxy mode touches what is called. Seen in 2.13."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def marked_dynamic(value: torch.Tensor) -> tuple[int, ...]:
    """The dimensions that ``torch._dynamo.mark_dynamic`` has marked, in order. The attribute was seen in 2.13."""
    return tuple(sorted(getattr(value, "_dynamo_dynamic_indices", ())))


def cuda_in_use() -> bool:
    """Whether this process has begun to use CUDA; asking does not begin it. Seen in 2.13."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def negated_view(value: torch.Tensor) -> torch.Tensor:
    """``value`` seen with its lazy negation bit flipped. Seen in 2.13."""
    return torch._neg_view(value)


def many_recompiles() -> contextlib.AbstractContextManager[None]:
    """While it is open, one piece of code may be compiled any number of times. Seen in 2.13."""
    patch: contextlib.AbstractContextManager[None] = torch._dynamo.config.patch(
        recompile_limit=1 << 20, accumulated_recompile_limit=1 << 20
    )
    return patch


def has_effects(target: object) -> bool:
    """Whether calling ``target`` does something outside the graph: prints, or calls into a torchbind object.

    ``_get_effect`` was seen in 2.13, with operators and higher-order operators.
    """
    from torch._higher_order_ops.effects import _get_effect
    from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

    if isinstance(target, OpOverloadPacket):
        return any(has_effects(getattr(target, name)) for name in target.overloads())  # type: ignore[no-untyped-call]
    return isinstance(target, HigherOrderOperator | OpOverload) and _get_effect(target) is not None


# ---- a process that children are forked from -------------------------------------------------------


def warm_up_compiling(*, inductor: bool) -> None:
    """Compile a little here, so that processes forked from this one have every import and lazy table already.

    One thread only: a child hangs where its parent had more. Whatever a broken backend raises is left for the
    children to meet. Seen in 2.13.
    """
    torch.set_num_threads(1)
    hub: Any = torch.hub
    hub.tqdm.monitor_interval = 0  # dynamo's progress bar would start a thread, which no child would have
    for backend in ("aot_eager", *(("inductor",) if inductor else ())):
        with contextlib.suppress(Exception):
            compiled = torch.compile(lambda value: torch.relu(value) + 1, backend=backend, fullgraph=True)
            result: Any = compiled(torch.ones(4, requires_grad=True))
            result.sum().backward()
            with torch.no_grad():
                compiled(torch.ones(4))
    torch._dynamo.reset()
    leave_out_measurements()


def leave_out_measurements() -> None:
    """Have dynamo in this process leave out what only its logs want: a third of a small graph's compile in a forked child.

    Each compile otherwise flushes the processor's caches to time its guards, and tokenizes the whole file of the traced
    function for the name in a log line. Both were seen in 2.13; where torch does not have them, nothing happens.
    """
    guards, names = (sys.modules.get(f"torch._dynamo.{name}") for name in ("guards", "funcname_cache"))
    if hasattr(guards, "profile_guard_manager"):
        vars(guards)["profile_guard_manager"] = lambda *_: 0.0
    if hasattr(names, "_add_file"):
        vars(names)["_add_file"] = lambda path: vars(names)["cache"].setdefault(path, {})


# ---- child processes -------------------------------------------------------------------------------


def forget_compiled_code() -> None:
    """Dynamo as in a fresh process. ``_dynamo.reset`` was seen in 2.13."""
    import torch._dynamo

    torch._dynamo.reset()


def one_thread_after_fork() -> None:
    """The first act of a forked child: OpenMP's and inductor's worker threads stayed with the parent.

    A child that asks for a second thread waits for ever at its first matmul. ``compile_threads`` was seen in 2.11 to 2.13.
    """
    torch.set_num_threads(1)
    config = sys.modules.get("torch._inductor.config")
    if config is None:
        from torch._inductor import config
    config.compile_threads = 1  # type: ignore[union-attr]  # a config module takes its options as attributes


def accelerator_in_use() -> str | None:
    """The kind of accelerator that this process has initialised, which a forked child could not use. Seen in 2.13."""
    for kind in ("cuda", "xpu", "hpu", "npu"):
        module = getattr(torch, kind, None)
        if module is not None and getattr(module, "is_initialized", bool)():
            return kind
    return None


@dataclass(frozen=True, slots=True)
class GivenCall:
    """A call node of a graph as dynamo gave it to a backend, which may since have changed it."""

    name: str
    target: object
    stack_trace: str | None
    text: str
    """The same for equal targets."""

    @classmethod
    def of(cls, node: torch.fx.Node) -> GivenCall:
        """What ``node`` is now."""
        text = f"{node.op} {getattr(node.target, '__module__', '')} {node.target}"
        return cls(node.name, node.target, node.stack_trace, text)


@contextlib.contextmanager
def graphs_given_to_backends() -> Iterator[list[list[GivenCall]]]:
    """A list that receives, for each graph that dynamo hands to a backend in this thread, its calls.

    ``OutputGraph.call_user_compiler(self, gm, example_inputs)`` was seen in 2.11 to 2.13.
    """
    from torch._dynamo.output_graph import OutputGraph

    graphs: list[list[GivenCall]] = []
    original = OutputGraph.call_user_compiler
    thread = threading.get_ident()

    def call_user_compiler(self: Any, gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        if threading.get_ident() == thread:
            graphs.append([GivenCall.of(node) for node in calls_that_count(gm)])
        return original(self, gm, example_inputs)

    OutputGraph.call_user_compiler = call_user_compiler  # type: ignore[method-assign]
    try:
        yield graphs
    finally:
        OutputGraph.call_user_compiler = original  # type: ignore[method-assign]


def call_targets(gm: torch.fx.GraphModule) -> list[str]:
    """What each call node of the outermost graph calls, in order, as text that is equal for equal targets."""
    return [GivenCall.of(node).text for node in calls_that_count(gm)]


def calls_that_count(gm: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """The calls without settings of grad mode under which nothing runs: dynamo leaves those out."""
    state, pending = True, None
    for node in gm.graph.nodes:
        if node.target is grad_mode_function():
            pending = node
        elif node.op.startswith("call"):
            if pending is not None and pending.args[0] is not state:
                state = bool(pending.args[0])
                yield pending
            pending = None
            yield node


def decompositions_expression(table: object) -> tuple[str, str] | None:
    """The import and the expression that make an equal table of decompositions, or None.

    The functions that make such tables were seen in 2.13.
    """
    if not isinstance(table, dict) or not table:
        return None
    for module, function in (
        ("torch._decomp", "core_aten_decompositions"),
        ("torch._inductor.decomposition", "select_decomp_table"),
    ):
        make = getattr(sys.modules.get(module), function, None)
        if make is not None and _same_table(make(), table):
            return f"import {module}", f"{module}.{function}()"
    from torch._decomp import get_decompositions

    operators = list(table)
    if not all(isinstance(one, torch._ops.OpOverload) for one in operators):
        return None
    if not _same_table(get_decompositions(operators), table):
        return None
    listed = ", ".join(f"torch.ops.{one}" for one in operators)
    return "import torch._decomp", f"torch._decomp.get_decompositions([{listed}])"


def _same_table(known: Any, table: Any) -> bool:
    """Whether two tables agree; what torch derives for composite operators is a new partial each time."""
    if type(known) is not type(table) or known.keys() != table.keys():
        return False
    return all(
        known[one] is table[one]
        or (isinstance(known[one], functools.partial) and isinstance(table[one], functools.partial))
        for one in known
    )


# ---- where an operator comes from ------------------------------------------------------------------


def operator_name(target: object) -> str | None:
    """``ns::name.overload`` of an operator in a graph, without ``.default``; None for other callables. Seen in 2.13.

    A packet of several overloads is named by its first: they have one definition.
    """
    if isinstance(target, torch._ops.OpOverload):
        return str(target.name())  # type: ignore[no-untyped-call]
    if isinstance(target, torch._ops.OpOverloadPacket):
        first = target.overloads()[:1]  # type: ignore[no-untyped-call]
        return str(target._qualified_op_name) + ("" if first in ([], ["default"]) else f".{first[0]}")
    return None


def load_exported(path: os.PathLike[str]) -> torch.export.ExportedProgram:
    """``torch.export.load(path)``, which may not fall back to a pickle that runs code.

    ``TORCH_FORCE_WEIGHTS_ONLY_LOAD`` of ``torch.load`` was seen in 2.13. Raises whatever torch's reader raises.
    """
    variable = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(variable)
    os.environ[variable] = "1"
    try:
        return torch.export.load(path)
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before


def unflattened(values: Sequence[Any], spec: Any) -> Any:
    """The structure that ``spec`` describes, with ``values`` as its leaves. Seen in 2.13."""
    from torch.utils._pytree import tree_unflatten

    return tree_unflatten(values, spec)


def input_reader(save_dir: str | None) -> Any:
    """What ``load_args`` of a repro by torch's minifier reads its inputs with: stored ones, without it random ones.

    ``InputReader`` and its logger were seen in 2.13.
    """
    from torch._dynamo import debug_utils

    level = debug_utils.log.level
    debug_utils.log.setLevel(logging.ERROR)  # that there is nothing to read is said in our own words
    try:
        return debug_utils.InputReader(save_dir=save_dir)
    finally:
        debug_utils.log.setLevel(level)


def option_default(module: str, option: str) -> Any:
    """The default of an option of a torch config module. Raises KeyError for one that is not there. Seen in 2.13."""
    return importlib.import_module(module)._config[option].default


def bisect_inductor(fails: Callable[[], bool]) -> tuple[str, str | None, int | None, str] | None:
    """Backend, subsystem, number and detail that torch's CompilerBisector names; None when it finds nothing at fault.

    ``fails()`` runs a program with ``torch.compile`` once, in a fork of this process: the bisector keeps its state in
    files, here of a temporary folder. It is known to fail with inductor and to pass in the stages before. Raises RuntimeError when the answers contradict each other. Seen in 2.13.
    """
    from torch._inductor.compiler_bisector import CompilerBisector

    known: Any = CompilerBisector
    folder = tempfile.mkdtemp(prefix="minidbg-bisect-")
    known.in_process_cache = folder  # else it would delete a bisection that the user has begun
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints each step
            # the stages before inductor have passed already
            found = known.do_bisect(lambda: known.get_backend() != "inductor" or not fails())
    finally:
        known.in_process_cache = None
        known.bisection_enabled = False
        shutil.rmtree(folder, ignore_errors=True)
    if found is None:
        return None
    number = found.bisect_number if found.debug_info != found.subsystem else None  # an option is on or off
    detail = str(found.debug_info or "") if number is not None else ""
    return found.backend, found.subsystem, number, detail


def operator_functions(name: str) -> list[Callable[..., Any]]:
    """The Python functions of operator ``ns::name`` that ``torch.library.custom_op`` and its methods were given.

    None for operators that were defined otherwise. ``OPDEFS`` and the fields of ``CustomOpDef`` were seen in 2.13.
    """
    from torch._library.custom_ops import OPDEFS

    found = OPDEFS.get(name)
    if found is None:
        return []
    fields = (
        found._init_fn,
        *found._backend_fns.values(),
        found._abstract_fn,
        found._setup_context_fn,
        found._backward_fn,
    )
    return [function for function in fields if function is not None]


def operator_definition(name: str) -> object | None:
    """The ``CustomOpDef`` of operator ``ns::name``, what ``@torch.library.custom_op`` gives. Seen in 2.13."""
    from torch._library.custom_ops import OPDEFS

    return OPDEFS.get(name)


def operator_files(name: str) -> list[str]:
    """Source files, Python or C++, that registered the schema, the kernels or the fake kernel of ``ns::name``.

    The schema's comes first. ``_dispatch_dump`` and the registry of fake kernels were seen in 2.13.
    """
    from torch._library.simple_registry import singleton

    found = []
    dump = torch._C._dispatch_dump(name)
    for line in dump.splitlines():
        before, _, place = line.partition("registered at ")
        if place and not before.startswith("alias analysis"):
            found.append(place.partition(" :: ")[0].rpartition(":")[0])
    entry = singleton.get(name)
    kernel = entry.fake_impl.kernel if entry is not None else None
    if kernel is not None:
        found.append(kernel.source.rpartition(":")[0])
    return list(dict.fromkeys(found))


class InductorStage(enum.Enum):
    """A stage of inductor, with the methods of ``GraphLowering`` that begin the next one. Seen in 2.11 to 2.14."""

    LOWERING = ("codegen", "codegen_with_cpp_wrapper")
    CODEGEN = ("_compile_to_module_lines",)
    """Scheduling and code generation; the kernels are compiled after it."""


class StoppedAfterStage(Exception):
    """Inductor has come as far as it was wanted to."""


@contextlib.contextmanager
def inductor_stopped_after(stage: InductorStage) -> Iterator[list[str]]:
    """A block in which inductor stops after ``stage``; the list gets an item when it has."""
    from torch._inductor.graph import GraphLowering

    stopped: list[str] = []

    def stop(self: Any, *args: Any, **kwargs: Any) -> Any:
        stopped.append(stage.name)
        raise StoppedAfterStage(f"minidbg needs no more of this graph than {stage.name.lower()}")

    kept = {name: getattr(GraphLowering, name) for name in stage.value if hasattr(GraphLowering, name)}
    for name in kept:
        setattr(GraphLowering, name, stop)
    try:
        yield stopped
    finally:
        for name, function in kept.items():
            setattr(GraphLowering, name, function)


def fx_nodes_behind(value: object) -> Iterator[torch.fx.Node]:
    """The fx nodes that an object in a frame of a compiler stands for, none for most objects.

    A node stands for itself, inductor's IR for its ``origins``, its scheduler nodes and buffers for those of their IR, a match
    of its pattern matcher for ``nodes``. Seen in 2.11 to 2.14.
    """
    if isinstance(value, torch.fx.Node):
        yield value
    elif _is_of_inductor(value, "scheduler", "BaseSchedulerNode"):
        for inner in value.get_nodes():  # type: ignore[attr-defined]
            yield from getattr(getattr(inner, "node", None), "origins", None) or ()
    elif _is_of_inductor(value, "scheduler", "SchedulerBuffer"):
        yield from getattr(getattr(value, "node", None), "origins", None) or ()
    elif _is_of_inductor(value, "ir", "IRNode"):
        yield from getattr(value, "origins", None) or ()
    elif _is_of_inductor(value, "pattern_matcher", "Match"):
        yield from value.nodes  # type: ignore[attr-defined]


def _is_of_inductor(value: object, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(f"torch._inductor.{module}"), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def names_of_sources(node: torch.fx.Node) -> list[str]:
    """Names of the nodes that a compiler's ``node`` was made from, the first maker last; none where it does not say.

    ``meta["from_node"]``, a list of ``NodeSource`` that may hold further ones, was seen in 2.11 to 2.14.
    """
    names, sources = [], list(node.meta.get("from_node") or ())
    while sources:
        source = sources.pop(0)
        names.append(str(getattr(source, "name", "")))
        sources += list(getattr(source, "from_node", None) or ())
    return names
