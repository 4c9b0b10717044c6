"""Backends as torch.compile knows, configures and calls them; of inductor its stages,
and the fx nodes behind its objects."""

from __future__ import annotations

import contextlib
import enum
import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import torch

from minidbg.torch_internals.private_names import private, private_or

BACKEND_INIT = "_dynamo_backend_init"
"""Of a backend: called whenever torch.compile finds it, before its first graph (2.15)."""
BACKEND_HOOKS = ("reset", "get_compiler_config", BACKEND_INIT)
"""Attributes that torch.compile looks for on a backend."""


def known_backends() -> list[str]:
    return sorted(torch.compiler.list_backends(exclude_tags=()))  # type: ignore[no-untyped-call,unused-ignore]


# where torch does not say how it would call it, a name leads to nothing but eager
@private_or(lambda backend, **_: backend if callable(backend) else lambda gm, _: gm.forward)
def configured_backend(
    backend: str | Callable[..., Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """``backend`` as ``torch.compile(backend=, options=, mode=)`` has it: ``(gm, example_inputs)``.

    Inductor by name takes them as config patches, every other backend as keyword arguments and only
    when given. Raises RuntimeError for an option or mode that inductor does not know.
    """
    if backend == "inductor":
        return as_torch_compile_has_it(backend, mode, dict(options or {}))
    from torch._dynamo.backends.registry import lookup_backend

    keywords: dict[str, Any] = {"options": dict(options)} if options else {}
    if mode and mode != "default":
        keywords["mode"] = mode
    found = lookup_backend(backend)
    return functools.partial(found, **keywords) if keywords else found


@private
def inductor_option_names() -> list[str]:
    from torch._inductor import config

    return sorted(config.get_config_copy())


@private
def replace_backends(eval_frame: Any, replaced: Callable[[Any], Any]) -> None:
    """Have ``replaced(backend)`` used for each backend a program asks for: ``torch.compile``,
    ``Module.compile`` and ``torch._dynamo.optimize`` all call ``get_compiler_fn`` of
    ``torch._dynamo.eval_frame``, which is ``eval_frame``."""
    original = eval_frame.get_compiler_fn

    @functools.wraps(original)
    def get_compiler_fn(compiler_fn: Any) -> Any:
        return original(replaced(compiler_fn))

    eval_frame.get_compiler_fn = get_compiler_fn


def is_backend_of_a_program(backend: object) -> bool:
    given, _, _ = as_given_to_compile(backend)
    if isinstance(given, str) or given is not backend:
        return True
    owner = getattr(backend, "__module__", None) or type(backend).__module__
    return backend is not None and not str(owner).startswith("torch")


@private
def as_torch_compile_has_it(
    backend: Any, mode: str | None = None, options: Any = None, dynamic: bool | None = None
) -> Callable[..., Any]:
    """``backend`` as ``torch.compile(backend=backend)`` hands it on, with its name for messages."""
    if backend == "inductor":
        return torch._TorchCompileInductorWrapper(mode, options, dynamic)
    return torch._TorchCompileWrapper(backend, mode, options, dynamic)


@private
def registered_backend(name: str) -> Callable[..., Any]:
    from torch._dynamo.backends.registry import lookup_backend

    return lookup_backend(name)


OVERRIDES = ("debug_backend_override", "debug_inductor_config_override", "debug_dynamo_config_override")
"""Options of dynamo that hold torch's override variables, as they were when it was imported."""


@private
def without_overrides() -> contextlib.AbstractContextManager[None]:
    """A block without what torch's override variables say of backends and options."""
    config: Any = torch._dynamo.config
    here = [name for name in OVERRIDES if hasattr(config, name)]  # the last one from 2.12 on
    patch: contextlib.AbstractContextManager[None] = config.patch(dict.fromkeys(here, ""))
    return patch


@private
def names_of_backend(compiler_fn: object) -> list[str]:
    """The names under which exactly this object is registered."""
    from torch._dynamo.backends.registry import _COMPILER_FNS

    return sorted(name for name, known in _COMPILER_FNS.items() if known is compiler_fn)


@private_or(lambda backend: (backend, None, None))
def as_given_to_compile(backend: object) -> tuple[Any, dict[str, Any] | None, str | None]:
    """Backend, options and mode in an object as torch.compile makes it; else ``backend`` itself."""
    given: Any = backend
    if type(given) is torch._TorchCompileInductorWrapper:
        return "inductor", dict(given.config) or None, None
    if type(given) is torch._TorchCompileWrapper:
        return given.compiler_fn, given.kwargs.get("options"), given.kwargs.get("mode")
    return backend, None, None


@private_or(lambda _: {})
def changed_config(module_name: str) -> dict[str, Any]:
    module = sys.modules.get(module_name)
    if module is None:
        return {}
    # Deprecated options warn when they are read as attributes; this way of reading does not. It
    # also gives options that were patched for a while and are back at their default.
    changed = module._get_dict(skip_default=True)
    return {name: value for name, value in changed.items() if value != module._config[name].default}


@private
def config_default(module_name: str, name: str) -> Any:
    """The default of an option of a torch config module. Raises KeyError for an unknown one."""
    return importlib.import_module(module_name)._config[name].default


class InductorStop(enum.Enum):
    LOWERING = ("codegen", "codegen_with_cpp_wrapper")
    CODEGEN = ("_compile_to_module_lines",)
    """Scheduling and code generation; the kernels are compiled after it."""


@contextlib.contextmanager
@private
def inductor_stopped_after(stage: InductorStop | None) -> Iterator[list[str]]:
    """A block in which inductor stops after ``stage``; the list gets an item when it has."""
    stopped: list[str] = []
    if stage is None:
        yield stopped
        return
    from torch._inductor.graph import GraphLowering

    def stop(self: Any, *args: Any, **kwargs: Any) -> Any:
        stopped.append(stage.name)
        raise RuntimeError(f"minidbg needs no more of this graph than {stage.name.lower()}")

    stops: dict[str, Any] = dict.fromkeys(stage.value, stop)
    with mock.patch.multiple(GraphLowering, **stops):
        yield stopped


@private_or(lambda: 0)
def graphs_of_inductor() -> int:
    """How many graphs inductor has compiled in this process, whoever called it."""
    from torch._dynamo.utils import compilation_time_metrics

    return len(compilation_time_metrics.get("compile_fx_inner", ()))


def fx_nodes_behind(value: object) -> Iterator[torch.fx.Node]:
    """The fx nodes that an object in a frame of a compiler stands for, none for most objects.

    A node stands for itself, inductor's IR for its ``origins``, its scheduler nodes and buffers for
    those of their IR, a match of its pattern matcher for ``nodes``.
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
    """Names of the nodes a compiler's ``node`` was made from, first maker last; none if unknown.
    ``meta["from_node"]``, a list of ``NodeSource`` that may hold more, was seen in 2.11 to 2.15."""
    names, sources = [], list(node.meta.get("from_node") or ())
    while sources:
        source = sources.pop(0)
        names.append(str(getattr(source, "name", "")))
        sources += list(getattr(source, "from_node", None) or ())
    return names
