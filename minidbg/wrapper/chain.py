"""Links of a fallback chain, and how a later one compiles when dynamo no longer gives the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import fx

from minidbg import backends, torch_internals
from minidbg.core.errors import BadSetting
from minidbg.core.run_spec import BackendRef, CompiledFn, CompilerFn, Level, RunSpec
from minidbg.core.settings import Settings
from minidbg.fx.case import symbolic_dims
from minidbg.fx.copying import copy_graph_module
from minidbg.torch_internals import compile_directly

Backend: TypeAlias = str | CompilerFn


@dataclass(frozen=True, slots=True, eq=False)
class Link:
    backend: Backend
    options: Mapping[str, Any] = field(default_factory=dict)
    mode: str | None = None
    level: Level = Level.DYNAMO
    compiler: CompilerFn = field(init=False)
    """``(gm, example_inputs) -> compiled_fn``, options included."""
    references: dict[Settings, BackendRef] = field(default_factory=dict, init=False, repr=False)
    """How a fresh process gets it, where that was looked for: on the link itself, so that no table
    outlives the backend."""

    def __post_init__(self) -> None:
        found = backends.compiler_fn(self.backend, options=self.options, mode=self.mode)
        object.__setattr__(self, "compiler", found)

    @property
    def name(self) -> str:
        """For people; torch calls every ``aot_autograd(...)`` ``compiler_fn``."""
        if torch_internals.aot_autograd_arguments(self.backend) is None:
            return link_name(self.backend)
        return backends.backend_name(self.backend)  # type: ignore[arg-type] # no text

    @property
    def __name__(self) -> str:
        # dynamo's exception asks a backend for it
        return link_name(self.backend)


def link_name(backend: Backend) -> str:
    if isinstance(backend, str):
        return backend
    try:
        return str(getattr(backend, "__name__", backend))
    except Exception:  # noqa: BLE001 - a foreign repr
        return type(backend).__name__


def merged_links(
    wrapped: Mapping[str, Any], wrapped_mode: str | None, given: Mapping[str, Any], given_mode: str | None
) -> tuple[dict[str, Any], str | None]:
    """Options and mode from ``minidbg.wrap`` and from ``torch.compile``, together. Raises
    BadSetting for one that has two values."""
    pairs = [(f"option {name!r}", wrapped[name], given[name]) for name in wrapped.keys() & given.keys()]
    modes = [mode for mode in (wrapped_mode, given_mode) if mode not in (None, "default")]
    pairs += [("mode", modes[0], modes[-1])] if modes else []
    for what, ours, theirs in pairs:
        if ours is not theirs and ours != theirs:
            conflict = f"{what} is {ours!r} in minidbg.wrap and {theirs!r} in torch.compile"
            raise BadSetting(f"{conflict}; give it in one place")
    return {**wrapped, **given}, modes[0] if modes else None


def compile_at_run_time(link: Link, graph: fx.GraphModule, args: Sequence[Any]) -> CompiledFn:
    """``graph`` compiled by ``link`` for real ``args``, outside dynamo: one with symbolic sizes for
    these alone, so that others run in eager."""
    spec = RunSpec(BackendRef(link.name, "..."), level=link.level)
    with (
        torch_internals.compiling_alone(),
        torch_internals.outside_tracing(),
        torch_internals.preserving_thread_state(),
    ):
        own_graph = copy_graph_module(graph)
        compiled_fn: CompiledFn = compile_directly(link.compiler, own_graph, tuple(args), spec)
    placeholders = graph.graph.find_nodes(op="placeholder")
    if not any(symbolic_dims(node) or is_symbolic_number(node) for node in placeholders):
        return compiled_fn

    def form(args: Sequence[Any]) -> list[Any]:
        return [
            (arg.shape, arg.stride() if arg.layout is torch.strided else ())
            if isinstance(arg, torch.Tensor)
            else arg
            for arg in args
        ]

    first = form(args)
    return lambda *args: (compiled_fn if form(args) == first else graph.forward)(*args)


def is_symbolic_number(placeholder: fx.Node) -> bool:
    example = placeholder.meta.get("example_value")
    return isinstance(example, torch.SymInt | torch.SymFloat | torch.SymBool)


def backend_hash(backend: Backend) -> int:
    try:
        return hash(backend)
    except TypeError:
        return hash(type(backend))
