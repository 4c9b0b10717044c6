"""``Case``: one failing graph with all that is needed to run it again, in unchanging values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from minidbg.core.kinds import Kind
from minidbg.core.outcome import Signature
from minidbg.core.run_spec import BackendRef, CompilerFn, Provenance, RunSpec


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A graph, its inputs, its backend and the failure that they show together.

    ``inputs`` are live values in placeholder order: tensors (storages may alias), ints, floats,
    bools, None, or anything a graph takes. They are never written to: who runs a case clones them.
    """

    graph_module: fx.GraphModule
    inputs: tuple[Any, ...]
    spec: RunSpec
    """How it is run and what it must show; ``with_spec`` changes it."""
    provenance: Provenance = Provenance(torch_version=torch.__version__)
    compiler: str | CompilerFn | None = None
    """The backend, if this process has it (a forked worker does); else ``backend`` is resolved."""

    @property
    def backend(self) -> BackendRef:
        return self.spec.backend

    @property
    def signature(self) -> Signature | None:
        """The failure expected, or None when none has been seen yet."""
        return self.spec.signature

    @property
    def kind(self) -> Kind | None:
        return self.spec.kind

    def with_spec(self, **changes: Any) -> Case:
        """This case run otherwise, or with another failure: ``with_spec(call=CallPath.DIRECT)``."""
        return replace(self, spec=replace(self.spec, **changes))

    def with_graph(self, graph_module: fx.GraphModule, inputs: tuple[Any, ...]) -> Case:
        """This case with another graph, inputs dynamic as their placeholders or namesakes are."""
        own, placeholders = (
            gm.graph.find_nodes(op="placeholder") for gm in (self.graph_module, graph_module)
        )
        known = {node.name: dims for node, dims in zip(own, self.spec.dynamic_dims, strict=False)}
        dynamic = []
        for node, value in zip(placeholders, inputs, strict=True) if self.spec.dynamic_dims else ():
            dims = symbolic_dims(node) or known.get(node.name, ())
            rank = value.dim() if isinstance(value, torch.Tensor) else 0
            dynamic.append(tuple(dim for dim in dims if dim < rank))
        spec = replace(self.spec, dynamic_dims=tuple(dynamic))
        return replace(self, graph_module=graph_module, inputs=inputs, spec=spec)


def symbolic_dims(placeholder: fx.Node) -> tuple[int, ...]:
    example = placeholder.meta.get("example_value", placeholder.meta.get("val"))
    if not isinstance(example, torch.Tensor):
        return ()
    return tuple(dim for dim, size in enumerate(example.shape) if isinstance(size, torch.SymInt))
