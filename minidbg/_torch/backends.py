"""Backends as torch.compile knows, configures and calls them."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch

from minidbg._torch.private_names import seen


def known_backends() -> list[str]:
    """Every name that torch.compile knows, debugging ones and entry points included."""
    return sorted(torch.compiler.list_backends(exclude_tags=()))  # type: ignore[no-untyped-call,unused-ignore]


def backend_alone(
    backend: str | Callable[..., Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """The backend where torch does not say how it would call it: a callable as it is, for a name eager, since nothing leads to it."""
    return backend if callable(backend) else lambda gm, example_inputs: gm.forward


@seen("2.11", "2.15", otherwise=backend_alone)
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


@seen("2.11", "2.15")
def inductor_option_names() -> list[str]:
    """What ``torch.compile(options=)`` may hold for inductor. ``get_config_copy`` is private."""
    from torch._inductor import config

    return sorted(config.get_config_copy())


@seen("2.11", "2.15")
def inductor_modes() -> list[str]:
    """What ``torch.compile(mode=)`` may be for inductor."""
    from torch._inductor import list_mode_options

    return sorted(list_mode_options())


@seen("2.11", "2.15")
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


@seen("2.11", "2.15")
def as_torch_compile_has_it(backend: Callable[..., Any]) -> Any:
    """``backend`` as ``torch.compile(backend=backend)`` hands it on, with its name for messages."""
    wrapper: Any = torch._TorchCompileWrapper
    return wrapper(backend, None, None, None)


@seen("2.11", "2.15")
def registered_backend(name: str) -> Callable[..., Any]:
    """The function behind a name that torch.compile knows; loads an entry point."""
    from torch._dynamo.backends.registry import lookup_backend

    return lookup_backend(name)


@seen("2.11", "2.15")
def names_of_backend(compiler_fn: object) -> list[str]:
    """The names under which exactly this object is registered. ``_COMPILER_FNS`` is private."""
    from torch._dynamo.backends.registry import _COMPILER_FNS

    return sorted(name for name, known in _COMPILER_FNS.items() if known is compiler_fn)


@seen("2.11", "2.15")
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


def is_called_by_torch(frame: FrameType | None) -> bool:
    """Whether the caller is torch.compile's machinery, so that exceptions are dynamo's to wrap."""
    name = frame.f_globals.get("__name__", "") if frame is not None else ""
    return name == "torch" or name.startswith("torch._dynamo.")


@seen("2.11", "2.15")
def changed_config(module_name: str) -> dict[str, Any]:
    """Options of an already imported torch config module that differ from their defaults."""
    module = sys.modules.get(module_name)
    if module is None:
        return {}
    # Deprecated options warn when they are read as attributes; this way of reading does not. It also gives options
    # that were patched for a while and are back at their default.
    changed = module._get_dict(skip_default=True)
    return {name: value for name, value in changed.items() if value != module._config[name].default}


@seen("2.11", "2.15")
def config_default(module_name: str, name: str) -> Any:
    """The default of an option of a torch config module. Raises KeyError for an unknown one. ``_config`` is private."""
    return importlib.import_module(module_name)._config[name].default
