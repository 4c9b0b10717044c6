"""A backend as torch.compile would call it, and what else torch.compile asks of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from minidbg import _torch
from minidbg.case import CompilerFn
from minidbg.errors import UnknownBackend


def compiler_fn(
    backend: str | CompilerFn, *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> CompilerFn:
    """``backend`` as ``torch.compile(backend=, options=, mode=)`` would build it: ``(gm, example_inputs)``.

    Inductor by name takes options and mode as config patches; every other backend as keyword arguments, and
    only when given. An object that torch.compile itself has built is taken apart first.
    Raises UnknownBackend, or RuntimeError for an option that inductor does not know.
    """
    inner, inner_options, inner_mode = _torch.as_given_to_compile(backend)
    if isinstance(inner, str) and inner not in (known := _torch.known_backends()):
        raise UnknownBackend(inner, known)
    return _torch.configured_backend(inner, options=options or inner_options, mode=mode or inner_mode)


@dataclass(frozen=True, slots=True)
class Hooks:
    """What torch.compile asks of a backend beside the call; None where the backend does not have it."""

    reset: Callable[[], Any] | None = None
    get_compiler_config: Callable[[], Any] | None = None


def hooks(compiler: CompilerFn) -> Hooks:
    """The hooks of what ``compiler_fn`` returned, of the backend behind its keyword arguments."""
    inner: Any = compiler
    while hasattr(inner, "func") and not hasattr(
        inner, "reset"
    ):  # functools.partial holds the keyword arguments
        inner = inner.func
    return Hooks(getattr(inner, "reset", None), getattr(inner, "get_compiler_config", None))
