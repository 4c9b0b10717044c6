"""Cases with no known failure yet: graph, inputs, and a backend that a fresh process can have."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from minidbg import backends
from minidbg.codegen.size import call_nodes
from minidbg.core.errors import BackendUnreachable
from minidbg.core.run_spec import BackendRef, CompilerFn, Context, Provenance, RunSpec
from minidbg.fx.case import Case


@dataclass(frozen=True, slots=True)
class ChosenBackend:
    ref: BackendRef
    compiler: str | CompilerFn


def backend_named(backend: str | CompilerFn) -> ChosenBackend:
    """``backends.named`` of a name, or the backend. Raises UnknownBackend or BackendUnreachable."""
    try:
        found = backends.named(backend) if isinstance(backend, str) else backend
    except (ImportError, AttributeError, NameError, SyntaxError) as error:
        raise BackendUnreachable(
            f"backend={backend!r} cannot be imported: {error}; give a registered name or module:attribute"
        ) from error
    return ChosenBackend(backends.find_reference(found), found)


def case_of(
    graph_module: fx.GraphModule,
    inputs: Sequence[Any],
    backend: ChosenBackend,
    *,
    context: Context,
    notes: Sequence[str] = (),
    setup: str | Sequence[str] | None = None,
    dynamic: bool | None = None,
) -> Case:
    values = tuple(inputs)
    provenance = replace(provenance_here(graph_module, values), notes=tuple(notes))
    ref = backends.with_operators(backend.ref, graph_module, setup=setup)
    spec = RunSpec(ref, context, dynamic=dynamic)
    return Case(graph_module, values, spec, provenance, backend.compiler)


def provenance_here(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Provenance:
    """What is known here of any call, whether it fails or not."""
    return Provenance(
        nodes=call_nodes(graph_module),
        inputs=len(inputs),
        torch_version=torch.__version__,
        python_version=platform.python_version(),
    )


def need_grad(values: Iterable[Any]) -> bool:
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)
