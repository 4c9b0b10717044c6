"""The only importer of torch's private names. ``seen`` says in which versions those of a function were there."""

from __future__ import annotations

import ast
import contextlib
import enum
import functools
import glob
import importlib
import inspect
import io
import logging
import os
import re
import shutil
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping, MutableSet, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, ParamSpec, TypeGuard, TypeVar, cast

import torch

from minidbg.errors import TorchNameMissing

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Needs:
    """What one function of this module needs of torch, beside what torch documents."""

    function: str
    purpose: str
    """The first line of its docstring."""
    names: tuple[str, ...]
    first: str
    """The oldest version of torch in which all names were there, and the newest."""
    last: str


NEEDS: dict[str, Callable[[], Needs]] = {}
"""By function, in the order of this module."""
TAKEN_AWAY: set[str] = set()
"""Names that are to count as missing: tests of what happens without them."""


def seen(
    first: str, last: str, *, otherwise: Callable[..., Any] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a function that needs private names of torch, which were there in versions ``first`` to ``last``.

    The names are looked up when it is called. Where torch does not have one, ``otherwise`` is called in its place, after a warning;
    without it the function raises TorchNameMissing.
    """

    def marked(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__name__
        needs = NEEDS[name] = functools.cache(lambda: needs_of(function, first, last))

        def missing(error: ImportError | AttributeError | None = None) -> str | None:
            if error is not None:
                return missing_name(error, function)
            return next(iter(TAKEN_AWAY.intersection(needs().names)), None) if TAKEN_AWAY else None

        def stand_in(name: str) -> Callable[..., Any]:
            refusal = TorchNameMissing(name, needs().purpose, torch.__version__)
            if otherwise is None:
                raise refusal
            warn_once(str(refusal))
            return otherwise

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if TAKEN_AWAY and (name := missing()):
                return cast(R, stand_in(name)(*args, **kwargs))
            try:
                return function(*args, **kwargs)
            except (ImportError, AttributeError) as error:
                if (name := missing(error)) is None:
                    raise
                return cast(R, stand_in(name)(*args, **kwargs))

        @functools.wraps(function)
        def generate(*args: P.args, **kwargs: P.kwargs) -> Any:
            if TAKEN_AWAY and (name := missing()):
                yield from stand_in(name)(*args, **kwargs)
                return
            try:
                yield from cast(Any, function(*args, **kwargs))
                return
            except (ImportError, AttributeError) as error:
                if (name := missing(error)) is None:
                    raise
            yield from stand_in(name)(*args, **kwargs)

        return cast(Callable[P, R], generate) if inspect.isgeneratorfunction(function) else call

    return marked


@functools.cache
def warn_once(text: str) -> None:
    """Warn of ``text``, once in this process."""
    logging.getLogger("minidbg").warning("minidbg: %s", text)


def nothing_around(*_: object) -> Iterator[None]:
    """What a block does that does nothing."""
    yield


def missing_name(error: ImportError | AttributeError, function: Callable[..., Any]) -> str | None:
    """The private name of torch that ``function`` itself looked up in vain; None for any other error."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code is not function.__code__:
        traceback = traceback.tb_next
    if traceback is None:
        return None
    deeper = traceback.tb_next.tb_frame.f_code.co_name if traceback.tb_next is not None else ""
    if deeper not in ("", "__getattr__", "_find_and_load"):
        return None
    if isinstance(error, ImportError):
        said = re.match(r"cannot import name '(\w+)'", str(error))  # Python 3.12 has it as ``name_from``
        name = f"{error.name}.{said[1]}" if said else str(error.name)
        return name if name.startswith("torch") else None
    owner = (
        getattr(error.obj, "__name__", "") or f"{type(error.obj).__module__}.{type(error.obj).__qualname__}"
    )
    return f"{owner}.{error.name}" if owner.startswith("torch") else None


def needs_of(function: Callable[..., Any], first: str, last: str) -> Needs:
    """What ``function`` needs, read off its source."""
    names: dict[str, None] = {}
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if isinstance(node, ast.ImportFrom):
            names |= dict.fromkeys(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            names |= dict.fromkeys(alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            names[ast.unparse(node)] = None
    private = [name for name in names if name.startswith("torch.") and ("._" in name)]
    whole = [name for name in private if not any(other.startswith(f"{name}.") for other in private)]
    doc = (inspect.getdoc(function) or "").partition("\n")[0]
    return Needs(function.__name__, doc, tuple(whole), first, last)


def internals() -> list[Needs]:
    """What each function here needs of torch. Imports nothing."""
    return [needs() for needs in NEEDS.values()]


def is_here(name: str) -> bool:
    """Whether this torch has what ``name`` says; imports the modules on the way."""
    found: Any = torch
    path = "torch"
    for part in name.split(".")[1:]:
        path = f"{path}.{part}"
        if not hasattr(found, part):
            try:
                importlib.import_module(path)
            except ImportError:
                return False
        found = getattr(found, part)
    return name not in TAKEN_AWAY


@seen("2.13", "2.14")
def autocast_functions() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The calls by which a graph enters and leaves ``torch.autocast``."""
    from torch.amp.autocast_mode import _enter_autocast, _exit_autocast

    return _enter_autocast, _exit_autocast


@seen("2.13", "2.14")
def inference_mode_functions() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The calls by which a graph enters and leaves ``torch.inference_mode``."""
    from torch.autograd.grad_mode import _enter_inference_mode, _exit_inference_mode

    return _enter_inference_mode, _exit_inference_mode


@seen("2.13", "2.14")
def grad_mode_function() -> Callable[..., Any]:
    """The call by which a graph sets grad mode."""
    function: Callable[..., Any] = torch._C._set_grad_enabled
    return function


@seen("2.13", "2.14")
def attention_with_weights() -> Callable[..., Any]:
    """Attention that returns its result and its weights; the arguments are those of the public one. Seen in 2.13."""
    function: Callable[..., Any] = torch.ops.aten._scaled_dot_product_attention_math.default
    return function


def get_data_function() -> Callable[..., Any] | None:
    """The call that dynamo puts into a graph for ``x.data``; None where it is a plain getattr."""
    function: Callable[..., Any] | None = getattr(torch._C._autograd, "_get_data_attr", None)
    return function


@seen("2.13", "2.14")
def lazy_graph_module(
    root: Any, graph: torch.fx.Graph, class_name: str = "GraphModule"
) -> torch.fx.GraphModule:
    """A GraphModule that writes its forward only when it is called or printed."""
    from torch.fx._lazy_graph_module import _LazyGraphModule

    return _LazyGraphModule(root, graph, class_name)


# ---- backends ------------------------------------------------------------------------------------


def known_backends() -> list[str]:
    """Every name that torch.compile knows, debugging ones and entry points included."""
    return sorted(torch.compiler.list_backends(exclude_tags=()))  # type: ignore[no-untyped-call,unused-ignore]


def backend_alone(
    backend: str | Callable[..., Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """The backend where torch does not say how it would call it: a callable as it is, for a name eager, since nothing leads to it."""
    return backend if callable(backend) else lambda gm, example_inputs: gm.forward


@seen("2.13", "2.14", otherwise=backend_alone)
def configured_backend(
    backend: str | Callable[..., Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """``backend`` as ``torch.compile(backend=, options=, mode=)`` would call it: ``(gm, example_inputs)``.

    Inductor by name takes them as config patches, every other backend as keyword arguments and only when given.
    Raises RuntimeError for an option or mode that inductor does not know. ``_TorchCompileInductorWrapper`` and
    ``lookup_backend`` are private.
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


@seen("2.13", "2.14")
def inductor_option_names() -> list[str]:
    """What ``torch.compile(options=)`` may hold for inductor. ``get_config_copy`` is private."""
    from torch._inductor import config

    return sorted(config.get_config_copy())


@seen("2.13", "2.14")
def inductor_modes() -> list[str]:
    """What ``torch.compile(mode=)`` may be for inductor."""
    from torch._inductor import list_mode_options

    return sorted(list_mode_options())


@seen("2.13", "2.14")
def replace_backends(eval_frame: Any, replaced: Callable[[Any], Any]) -> None:
    """Have ``replaced(backend)`` used for each backend that a program asks for, in whatever way it asks.

    ``eval_frame`` is ``torch._dynamo.eval_frame``. ``torch.compile``, ``Module.compile`` and ``torch._dynamo.optimize``
    all call its ``get_compiler_fn``.
    """
    original = eval_frame.get_compiler_fn

    @functools.wraps(original)
    def get_compiler_fn(compiler_fn: Any) -> Any:
        return original(replaced(compiler_fn))

    eval_frame.get_compiler_fn = get_compiler_fn


def is_backend_of_a_program(backend: object) -> bool:
    """Whether a program asked for this backend, and not torch itself: export captures graphs by one of its own."""
    given, _, _ = as_given_to_compile(backend)
    if isinstance(given, str) or given is not backend:
        return True
    owner = getattr(backend, "__module__", None) or type(backend).__module__
    return backend is not None and not str(owner).startswith("torch")


@seen("2.13", "2.14")
def as_torch_compile_has_it(backend: Callable[..., Any]) -> Any:
    """``backend`` as ``torch.compile(backend=backend)`` hands it on, with its name for messages."""
    wrapper: Any = torch._TorchCompileWrapper
    return wrapper(backend, None, None, None)


# ---- the guards that dynamo builds after a backend has returned ------------------------------------


class GuardState:
    """What dynamo will build the guards of the graph in hand from: its ShapeEnv and the example inputs.

    Made before a backend is called. A backend that traces the graph once more may leave symbols in the ShapeEnv that no
    input has, and one that works in place may reshape an input; dynamo then fails after the backend has returned.
    ``produce_guards_verbose``, ``tracked_fakes`` and the counters were seen in 2.11 to 2.14; without them nothing is found.
    """

    def __init__(self, example_inputs: Sequence[Any] = ()) -> None:
        context = torch._guards.TracingContext.try_get()
        env: Any = getattr(getattr(context, "fake_mode", None), "shape_env", None)
        # Under translation validation torch records each call of the ShapeEnv and replays them.
        usable = hasattr(env, "produce_guards_verbose") and not env._translation_validation_enabled
        self.env: Any = env if usable else None
        self.attributes = (
            {name: (value, _copied(value)) for name, value in vars(env).items()} if usable else {}
        )
        self.size = self._size()
        tensors = (
            value for value in example_inputs if isinstance(value, torch.Tensor) and not is_fake(value)
        )
        self.layouts = [(value, _layout(value)) for value in tensors if value.layout is torch.strided]

    def error_of_guards(self) -> Exception | None:
        """What dynamo will raise because of what was done since; None when it will go on.

        An error that dynamo would have raised before, too, is none.
        """
        for value, before in self.layouts:
            if _layout(value) != before:
                return AssertionError(
                    "Guard failed on the same frame it was created: the backend changed an example input in place, "
                    f"from shape {before[0]}, strides {before[1]} to {tuple(value.shape)}, {value.stride()}"
                )
        if self.env is None or self._size() == self.size:
            return None
        error = self._dry_run()
        if error is None:
            return None
        now = GuardState()  # the program goes on from here, or is put back again
        self.put_back()
        known = self._dry_run()
        now.put_back()
        return error if known is None else None

    def put_back(self) -> None:
        """Undo what was done since. Counters go on: caches and the names of new symbols hang on them."""
        for value, layout in self.layouts:
            if _layout(value) != layout:
                with torch.no_grad():
                    value.as_strided_(*layout)
        if self.env is None or self._size() == self.size:
            return
        for name, (value, content) in self.attributes.items():
            if content is not value:
                value.clear()
                (value.extend if isinstance(value, list) else value.update)(_copied(content))
            if not (isinstance(value, int) and name.endswith("_counter")):
                setattr(self.env, name, value)
        for name in ("_version_counter", "_replacements_version_counter"):
            if hasattr(self.env, name):
                setattr(self.env, name, getattr(self.env, name) + 1)

    def _size(self) -> list[int]:
        names = ("guards", "var_to_range", "replacements", "divisible", "_version_counter")
        values = (getattr(self.env, name, ()) for name in names)
        return [value if isinstance(value, int) else len(value) for value in values]

    def _dry_run(self) -> Exception | None:
        tracked = list(getattr(self.env, "tracked_fakes", None) or ())
        known = {_root_name(one.source) for one in tracked}
        foreign: list[str] = []

        def name(source: Any) -> str:
            if source.guard_source.name == "CONSTANT" and _root_name(source) not in known:
                foreign.append(_root_name(source))  # a name of the backend's own
            return _name(source)

        was_disabled, self.env.log.disabled = self.env.log.disabled, True  # dynamo will say it itself
        try:
            self.env.produce_guards_verbose(
                [one.fake for one in tracked],
                [one.source for one in tracked],
                source_ref=name,
                input_contexts=[one.symbolic_context for one in tracked],
                langs=("python",),
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, dynamo will meet it
            raised_inside = error.__traceback__ is not None and error.__traceback__.tb_next is not None
            return error if raised_inside else None  # another torch's method may take other arguments
        finally:
            self.env.log.disabled = was_disabled
        if foreign:
            return AssertionError(
                f"Guard failed on the same frame it was created: name {foreign[0]!r} is not defined"
            )
        return None


def _root_name(source: Any) -> str:
    while hasattr(source, "base"):
        source = source.base
    return _name(source)


def _name(source: Any) -> str:
    return str(source.name() if callable(source.name) else source.name)


def _copied(value: Any) -> Any:
    """A copy of a container, and of the containers in a table; anything else as it is."""
    if isinstance(value, dict):
        copy = value.copy()
        copy.update({key: _copied(one) for key, one in value.items() if isinstance(one, list | set)})
        return copy
    make: Any = type(value)
    return make(value) if isinstance(value, list | MutableSet) else value


def _layout(value: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    return tuple(value.shape), value.stride(), int(value.storage_offset())


# ---- what dynamo does with a backend's answer ------------------------------------------------------


CONTROL_FLOW = (
    "TensorifyScalarRestartAnalysis", "SkipFrame", "DataDependentOutputException", "DynamicOutputShapeException",
    "UnsupportedFakeTensorException", "UnsupportedOperatorException",
)  # fmt: skip
"""Types that dynamo takes as messages, for a torch that does not list them."""


@seen("2.13", "2.14", otherwise=lambda error: type(error).__name__ in CONTROL_FLOW)
def is_control_flow(error: BaseException) -> bool:
    """Whether dynamo takes this exception of a backend as a message to itself, not as a failure.

    Restart of the analysis, skipping of the frame, and the FakeTensor exceptions that become a graph break.
    ``InductorError``, ``BackendCompilerFailed`` and ``IndexError`` are none of these.
    """
    from torch._dynamo import exc

    messages = (exc.TensorifyScalarRestartAnalysis, exc.SkipFrame, *exc.exceptions_allowed_to_be_fallback)
    return isinstance(error, messages)


@seen("2.13", "2.14", otherwise=lambda error: True)
def dynamo_keeps_type(error: BaseException) -> bool:
    """Whether dynamo lets this exception of a backend through as it is; others it wraps."""
    from torch._dynamo.exc import ShortenTraceback

    return isinstance(error, ShortenTraceback | IndexError)


@seen("2.13", "2.14", otherwise=lambda backend, error, frame: error)
def backend_compiler_failed(backend: object, error: Exception, first_useful_frame: FrameType) -> Exception:
    """The exception in which dynamo would wrap ``error``, with its traceback; dynamo does not wrap it again.

    ``first_useful_frame`` must be a frame of the traceback that the exception will have.
    """
    from torch._dynamo.exc import BackendCompilerFailed

    return BackendCompilerFailed(backend, error, first_useful_frame).with_traceback(error.__traceback__)


def is_called_by_torch(frame: FrameType | None) -> bool:
    """Whether the caller is torch.compile's machinery, so that exceptions are dynamo's to wrap."""
    name = frame.f_globals.get("__name__", "") if frame is not None else ""
    return name == "torch" or name.startswith("torch._dynamo.")


@seen("2.13", "2.14")
def settled_forward(compiled_fn: Any) -> Any:
    """``compiled_fn``, or the compiled forward behind it when it is a lazily compiled GraphModule's.

    Dynamo does the same to what a backend returns, and cannot once it is wrapped.
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


@seen("2.13", "2.14")
def is_serializable_callable(compiled_fn: Any) -> bool:
    """Whether dynamo may store this compiled function for another process, by its type."""
    module = sys.modules.get("torch._dynamo.aot_compile_types")
    return module is not None and isinstance(compiled_fn, module.SerializableCallable)


@seen("2.13", "2.14")
def with_inner_compiler(compiler: Any, wrapped: Callable[[Any, bool], Any]) -> Any:
    """``wrapped(compiler, stored)``; of a compiler whose results AOTAutograd stores, one of that kind around it.

    ``SerializableAOTDispatchCompiler`` is private.
    """
    from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler

    if isinstance(compiler, SerializableAOTDispatchCompiler):
        return SerializableAOTDispatchCompiler(compiler.output_code_ty, wrapped(compiler.compiler_fn, True))
    return wrapped(compiler, False)


@seen("2.13", "2.14")
def aot_graph_part() -> str | None:
    """``forward``, ``backward`` or ``inference``: the graph that AOTAutograd is having compiled; None outside of it.

    ``graph_being_compiled`` (``["0_forward"]``) is private.
    """
    from torch._functorch._aot_autograd import logging_utils

    found = [name.rpartition("_")[2] for name in logging_utils.graph_being_compiled]
    return found[0] if found and found[0] in ("forward", "backward", "inference") else None


@seen("2.13", "2.14")
def in_backward() -> bool:
    """Whether autograd's engine is running in this thread. ``_current_graph_task_id`` is private."""
    return torch._C._current_graph_task_id() != -1


@seen("2.13", "2.14")
def tries_backward_early() -> bool:
    """Whether AOTAutograd goes on when a backward that it compiles ahead of time fails to."""
    from torch._functorch import config

    return not config.force_non_lazy_backward_lowering


@seen("2.13", "2.14")
def in_a_backend() -> bool:
    """Whether dynamo is having a graph compiled in this thread."""
    return torch._guards.TracingContext.try_get() is not None and not in_backward()


@seen("2.13", "2.14")
def next_aot_id() -> int:
    """The number that AOTAutograd gives to the next graph it is asked for; 0 before it is loaded.

    ``AOT_COUNTER``, an ``itertools.count``, is private.
    """
    module = sys.modules.get("torch._functorch.aot_autograd")
    # its repr: looking at it must not count, and Python 3.14 copies no iterator
    return int(repr(module.AOT_COUNTER).removeprefix("count(").removesuffix(")")) if module is not None else 0


NEAR = 4
"""Autograd nodes between an output and the graph that made it: views and writes that AOTAutograd repeats outside."""


@seen("2.13", "2.14")
def aot_backward_classes(tensors: Sequence[torch.Tensor], since: int) -> list[Any]:
    """The autograd.Functions that AOTAutograd made for the graphs that ``tensors`` came out of, numbered from ``since``.

    ``_forward_cls``, ``_backward_impl`` and ``_aot_id`` are private.
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


@seen("2.13", "2.14")
def guard_backward(
    function_class: Any,
    on_error: Callable[[Exception], None],
    around: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
) -> None:
    """Let ``on_error`` hear what the compiled backward of this one graph raises; it is raised all the same.

    Each run is inside of ``around()``.

    The backward is compiled when it first runs, inside ``loss.backward()``, where no wrapper of the forward sees
    it. ``_backward_impl`` is looked up on the class at each call.
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


@seen("2.13", "2.14")
def backward_phase(error: Exception) -> str | None:
    """``compile`` or ``runtime`` for what a compiled backward raised, by its stack; None for AOTAutograd's own checks.

    A second backward without ``retain_graph``, or one that donated buffers forbid, is the program's error.
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


@seen("2.13", "2.14", otherwise=lambda value: type(value).__name__ in ("FakeTensor", "FunctionalTensor"))
def is_fake(value: object) -> bool:
    """Whether ``value`` is a tensor without data: a FakeTensor, or a functional wrapper."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(value, FakeTensor) or (
        isinstance(value, torch.Tensor) and torch._is_functional_tensor(value)
    )


@seen("2.13", "2.14")
def hint_of(value: torch.SymInt | torch.SymFloat | torch.SymBool) -> Any:
    """The number a symbolic value stands for in this run, without a guard on it; None when there is none.

    The ragged size of a nested tensor has none. ``node.hint`` is private.
    """
    return None if value.node.is_nested_int() or not value.node.has_hint() else value.node.hint


@contextlib.contextmanager
@seen("2.13", "2.14")
def outside_tracing() -> Iterator[None]:
    """A block in which no tracing context and no dispatch mode is active.

    Work of ours inside a backend's call would overwrite dynamo's live context.
    """
    from torch.utils._python_dispatch import _disable_current_modes

    with torch._guards.tracing(None), _disable_current_modes():
        yield


@contextlib.contextmanager
@seen("2.13", "2.14", otherwise=nothing_around)
def same_versions(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """A block whose writes to ``tensors`` autograd does not count: for putting back what was there before.

    ``_unsafe_preserve_version_counter`` is private. Inference tensors have no version.
    """
    counted = tuple(tensor for tensor in tensors if not tensor.is_inference())
    with torch.autograd.grad_mode._unsafe_preserve_version_counter(counted):
        yield


@seen("2.13", "2.14")
def changed_config(module_name: str) -> dict[str, Any]:
    """Options of an already imported torch config module that differ from their defaults."""
    module = sys.modules.get(module_name)
    if module is None:
        return {}
    # Deprecated options warn when they are read as attributes; this way of reading does not. It also gives options
    # that were patched for a while and are back at their default.
    changed = module._get_dict(skip_default=True)
    return {name: value for name, value in changed.items() if value != module._config[name].default}


@seen("2.13", "2.14")
def config_default(module_name: str, name: str) -> Any:
    """The default of an option of a torch config module. Raises KeyError for an unknown one. ``_config`` is private."""
    return importlib.import_module(module_name)._config[name].default


# ---- where a backend comes from --------------------------------------------------------------------


@seen("2.13", "2.14")
def registered_backend(name: str) -> Callable[..., Any]:
    """The function behind a name that torch.compile knows; loads an entry point."""
    from torch._dynamo.backends.registry import lookup_backend

    return lookup_backend(name)


@seen("2.13", "2.14")
def names_of_backend(compiler_fn: object) -> list[str]:
    """The names under which exactly this object is registered. ``_COMPILER_FNS`` is private."""
    from torch._dynamo.backends.registry import _COMPILER_FNS

    return sorted(name for name, known in _COMPILER_FNS.items() if known is compiler_fn)


@seen("2.13", "2.14")
def as_given_to_compile(backend: object) -> tuple[Any, dict[str, Any] | None, str | None]:
    """Backend, options and mode inside an object of the kinds that torch.compile makes; else ``backend`` itself.

    Both wrapper classes are private.
    """
    given: Any = backend
    # a torch without these classes makes no such objects
    inductor, other = (getattr(torch, f"_TorchCompile{kind}Wrapper", None) for kind in ("Inductor", ""))
    if type(given) is inductor:
        return "inductor", dict(given.config) or None, None
    if type(given) is other:
        return given.compiler_fn, given.kwargs.get("options"), given.kwargs.get("mode")
    return backend, None, None


@seen("2.13", "2.14")
def aot_autograd_arguments(backend: object) -> dict[str, Any] | None:
    """What ``aot_autograd(...)`` was called with to give ``backend``, or None when it was not made that way.

    Its first call wraps the backward compiler and fills in the inference one: both are undone here.
    ``AotAutograd.kwargs`` and ``_is_wrapped_bw_compiler`` are private.
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
    """Whether ``value`` is one overload of an operator: ``torch.ops.aten.add.Tensor``."""
    return isinstance(value, torch._ops.OpOverload)


@seen("2.13", "2.14")
def operator_path(value: Any) -> str | None:
    """``torch.ops.aten.add.Tensor`` for a torch operator of any kind, None for other values."""
    from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

    if isinstance(value, HigherOrderOperator):
        return f"torch.ops.higher_order.{value.__name__}"
    if not isinstance(value, OpOverload | OpOverloadPacket):
        return None
    packet, overload = (
        (value.overloadpacket, f".{value._overloadname}") if isinstance(value, OpOverload) else (value, "")
    )
    return f"torch.ops.{packet._qualified_op_name.replace('::', '.')}{overload}"


@seen("2.13", "2.14")
def operator_schemas(path: str) -> tuple[Any, ...]:
    """The schemas of ``torch.ops.aten.add.Tensor``, or of all overloads of ``torch.ops.aten.add``; empty when
    there is no such operator. ``_schema`` is private.
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
    """``hint_of`` a symbolic number; anything else as it is."""
    return hint_of(value) if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) else value


@seen("2.13", "2.14")
def storage_identity(value: torch.Tensor) -> int:
    """A number that tensors share exactly when they share their storage. ``_cdata`` is private."""
    return int(value.untyped_storage()._cdata)


@seen("2.13", "2.14")
def is_inside_functorch(value: torch.Tensor) -> bool:
    """Whether ``value`` lives inside a level of vmap, grad or jvp and exists nowhere else."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(value))


@contextlib.contextmanager
@seen("2.11", "2.14")
def functional_state_kept() -> Iterator[None]:
    """A block after which no level of vmap or grad that it opened is open, and the states around them are as before.

    Also of attention's kernels. ``_functorch`` and ``_sdpa_kernel`` as here are private.
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


@seen("2.13", "2.14")
def symbol_of(value: object) -> str | None:
    """The name of the symbol that ``value`` is: ``s0`` of a plain SymInt, None of anything else."""
    if not isinstance(value, torch.SymInt | torch.SymFloat):
        return None
    expression = value.node.expr
    return str(expression) if expression.is_Symbol else None


@seen("2.13", "2.14")
def symbols_in(value: object) -> set[str]:
    """Names of the symbols in the shape and strides of a fake tensor, or in a symbolic number."""
    if isinstance(value, torch.Tensor):
        found: set[str] = set()
        for size in (*value.shape, *(value.stride() if value.layout is torch.strided else ())):
            found |= symbols_in(size)
        return found
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return {str(symbol) for symbol in value.node.expr.free_symbols}
    return set()


@seen("2.13", "2.14")
def append_node(
    graph: torch.fx.Graph, like: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.fx.Node:
    """A node like ``like`` at the end of ``graph``: its op, target, type, meta, and its name where that is free.

    ``Graph.create_node`` without its walk over the arguments in Python, which takes most of its time, and without
    asking whether a name that a graph has is one: on dynamo's long names that takes most of the rest. The names of
    the namespace and of the look-up table are private.
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


@seen("2.13", "2.14")
def without_modes() -> contextlib.AbstractContextManager[Any]:
    """Inside, no fake, functional or proxy mode touches what is called."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def cuda_in_use() -> bool:
    """Whether this process has begun to use CUDA; asking does not begin it."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


@seen("2.13", "2.14")
def negated_view(value: torch.Tensor) -> torch.Tensor:
    """``value`` seen with its lazy negation bit flipped."""
    return torch._neg_view(value)


@seen("2.13", "2.14")
def many_recompiles() -> contextlib.AbstractContextManager[None]:
    """While it is open, one piece of code may be compiled any number of times."""
    patch: contextlib.AbstractContextManager[None] = torch._dynamo.config.patch(
        recompile_limit=1 << 20, accumulated_recompile_limit=1 << 20
    )
    return patch


@seen("2.13", "2.14", otherwise=lambda target: True)
def has_effects(target: object) -> bool:
    """Whether calling ``target`` does something outside the graph: prints, or calls into a torchbind object.

    ``_get_effect`` is private, with operators and higher-order operators.
    """
    from torch._higher_order_ops.effects import _get_effect
    from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

    if isinstance(target, OpOverloadPacket):
        return any(has_effects(getattr(target, name)) for name in target.overloads())  # type: ignore[no-untyped-call]
    return isinstance(target, HigherOrderOperator | OpOverload) and _get_effect(target) is not None


# ---- a process that children are forked from -------------------------------------------------------


DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd", "/dev/dri", "/dev/accel")
"""Device files of accelerators that the engine of autograd may find: NVIDIA, WSL, AMD, Intel, others."""


def forks_survive_autograd() -> bool:
    """Whether children that are forked after autograd has run in this process can use it too.

    Autograd's engine starts a thread for each device when it first runs, and no child forked after that may run it. A CUDA
    build on a machine without a GPU has eight devices as soon as dynamo has made its first FakeTensorMode
    (``_ensureCUDADeviceGuardSet``), none before: so the engine is started here, before, where there is no device.
    """
    if any(map(os.path.exists, DRIVERS)):
        return torch.version.cuda is None and torch.version.hip is None and not autograd_has_threads()
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


def warm_up_compiling(*, inductor: bool) -> None:
    """Compile a little here, so that processes forked from this one have every import and lazy table already.

    One thread only: a child hangs where its parent had more. No autograd where children could not use it after that. Whatever
    a broken backend raises is left for the children to meet.
    """
    with_autograd = forks_survive_autograd()
    torch.set_num_threads(1)
    hub: Any = torch.hub
    hub.tqdm.monitor_interval = 0  # dynamo's progress bar would start a thread, which no child would have
    for backend in ("aot_eager", *(("inductor",) if inductor else ())):
        with contextlib.suppress(Exception):
            compiled = torch.compile(lambda value: torch.relu(value) + 1, backend=backend, fullgraph=True)
            if with_autograd:
                result: Any = compiled(torch.ones(4, requires_grad=True))
                result.sum().backward()
            with torch.no_grad():
                compiled(torch.ones(4))
    torch._dynamo.reset()
    leave_out_measurements()


@seen("2.13", "2.14")
def leave_out_measurements() -> None:
    """Have dynamo in this process leave out what only its logs want: a third of a small graph's compile in a forked child.

    Each compile otherwise flushes the processor's caches to time its guards, and tokenizes the whole file of the traced
    function for the name in a log line. Both are private; where torch does not have them, nothing happens.
    """
    guards, names = (sys.modules.get(f"torch._dynamo.{name}") for name in ("guards", "funcname_cache"))
    if hasattr(guards, "profile_guard_manager"):
        vars(guards)["profile_guard_manager"] = lambda *_: 0.0
    if hasattr(names, "_add_file"):
        vars(names)["_add_file"] = lambda path: vars(names)["cache"].setdefault(path, {})


# ---- child processes -------------------------------------------------------------------------------


@seen("2.11", "2.14")
def one_thread_after_fork() -> None:
    """The first act of a forked child: OpenMP's and inductor's worker threads stayed with the parent.

    A child that asks for a second thread waits for ever at its first matmul. ``compile_threads`` is private.
    """
    torch.set_num_threads(1)
    config = sys.modules.get("torch._inductor.config")
    if config is None:
        from torch._inductor import config
    config.compile_threads = 1  # type: ignore[union-attr]  # a config module takes its options as attributes


def accelerator_in_use() -> str | None:
    """The kind of accelerator that this process has initialised, which a forked child could not use."""
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
@seen("2.11", "2.14")
def graphs_given_to_backends() -> Iterator[list[list[GivenCall]]]:
    """A list that receives, for each graph that dynamo hands to a backend in this thread, its calls.

    ``OutputGraph.call_user_compiler(self, gm, example_inputs)`` is private.
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


@seen("2.13", "2.14")
def decompositions_expression(table: object) -> tuple[str, str] | None:
    """The import and the expression that make an equal table of decompositions, or None.

    The functions that make such tables are private.
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


@seen("2.13", "2.14")
def operator_name(target: object) -> str | None:
    """``ns::name.overload`` of an operator in a graph, without ``.default``; None for other callables.

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

    ``TORCH_FORCE_WEIGHTS_ONLY_LOAD`` of ``torch.load`` is private. Raises whatever torch's reader raises.
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


@seen("2.13", "2.14")
def unflattened(values: Sequence[Any], spec: Any) -> Any:
    """The structure that ``spec`` describes, with ``values`` as its leaves."""
    from torch.utils._pytree import tree_unflatten

    return tree_unflatten(values, spec)


@seen("2.13", "2.14")
def input_reader(save_dir: str | None) -> Any:
    """What ``load_args`` of a repro by torch's minifier reads its inputs with: stored ones, without it random ones.

    ``InputReader`` and its logger are private.
    """
    from torch._dynamo import debug_utils

    level = debug_utils.log.level
    debug_utils.log.setLevel(logging.ERROR)  # that there is nothing to read is said in our own words
    try:
        return debug_utils.InputReader(save_dir=save_dir)
    finally:
        debug_utils.log.setLevel(level)


@seen("2.13", "2.14")
def bisect_inductor(fails: Callable[[], bool]) -> tuple[str, str | None, int | None, str] | None:
    """Backend, subsystem, number and detail that torch's CompilerBisector names; None when it finds nothing at fault.

    ``fails()`` runs a program with ``torch.compile`` once, in a fork of this process: the bisector keeps its state in
    files, here of a temporary folder. It is known to fail with inductor and to pass in the stages before. Raises RuntimeError when the answers contradict each other.
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


@seen("2.13", "2.14")
def operator_functions(name: str) -> list[Callable[..., Any]]:
    """The Python functions of operator ``ns::name`` that ``torch.library.custom_op`` and its methods were given.

    None for operators that were defined otherwise. ``OPDEFS`` and the fields of ``CustomOpDef`` are private.
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


@seen("2.13", "2.14")
def operator_definition(name: str) -> object | None:
    """The ``CustomOpDef`` of operator ``ns::name``, what ``@torch.library.custom_op`` gives."""
    from torch._library.custom_ops import OPDEFS

    return OPDEFS.get(name)


@seen("2.13", "2.14")
def operator_files(name: str) -> list[str]:
    """Source files, Python or C++, that registered the schema, the kernels or the fake kernel of ``ns::name``.

    The schema's comes first. ``_dispatch_dump`` and the registry of fake kernels are private.
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
@seen("2.11", "2.14")
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


# ---- ranks ------------------------------------------------------------------------------------------


@seen("2.13", "2.14", otherwise=lambda name: None)
def ranks_of_group(name: str) -> list[int] | None:
    """The ranks of the process group called ``name``; None for the group of all ranks, and where no group has that name."""
    from torch.distributed import distributed_c10d

    try:
        group = distributed_c10d._resolve_process_group(name)
    except (RuntimeError, ValueError):
        return None
    ranks = torch.distributed.get_process_group_ranks(group)
    return None if group == torch.distributed.group.WORLD else ranks
