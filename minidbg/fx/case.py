"""``Case``: one failing graph with all that is needed to run it again, in values that do not change."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from minidbg.words.outcome import Kind, Signature
from minidbg.words.run_spec import BackendRef, CallPath, CompilerFn, Context, Level, Provenance, Tolerances


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A graph, its inputs, its backend and the failure that they show together.

    ``inputs`` are live values in placeholder order: tensors (their storages may alias), ints, floats, bools,
    None, or anything a graph takes. They are never written to: who runs a case clones them.
    """

    graph_module: fx.GraphModule
    inputs: tuple[Any, ...]
    backend: BackendRef
    context: Context = Context()
    signature: Signature | None = None
    call: CallPath = CallPath.TORCH_COMPILE
    level: Level = Level.DYNAMO
    """Graphs of level ATEN are called directly only."""
    dynamic: bool | None = False
    """``torch.compile(dynamic=...)``."""
    dynamic_dims: tuple[tuple[int, ...], ...] = ()
    """Per input the dimensions to ``mark_dynamic``, the others being static; empty where nothing is known."""
    backward: bool = False
    """Whether the run goes on to backward with seeded cotangents."""
    attempts: int = 1
    """Runs in which the failure shows at least once: more than 1 for a flaky one."""
    tolerances: Tolerances = field(default_factory=dict)
    """Relative and absolute tolerance of wrong results by name of dtype (``float32``), or ``any``; else the built-in ones.

    Or the name of a precision that the backend computes float32 in.
    """
    match: str | None = None
    """A regular expression that the failure's message must contain to be the same failure."""
    margin: float = 1.0
    """How many times more than tolerated a wrong result must be off. Only a reduction asks for more than 1."""
    provenance: Provenance = Provenance(torch_version=torch.__version__)
    compiler: str | CompilerFn | None = None
    """The backend itself, where this process has it (a forked worker does); else ``backend`` is resolved."""

    @property
    def kind(self) -> Kind | None:
        """The kind of failure expected, or None when none has been seen yet."""
        return self.signature.kind if self.signature else None

    def with_graph(self, graph_module: fx.GraphModule, inputs: tuple[Any, ...]) -> Case:
        """This case over another graph, whose inputs are dynamic where theirs are known to be."""
        dims = self._dims_of(graph_module, inputs) if self.dynamic_dims else ()
        return replace(self, graph_module=graph_module, inputs=inputs, dynamic_dims=dims)

    def _dims_of(self, graph_module: fx.GraphModule, inputs: tuple[Any, ...]) -> tuple[tuple[int, ...], ...]:
        """Per input of another graph its dynamic dimensions: by what its placeholder knows, else by its name here."""
        own = (node for node in self.graph_module.graph.nodes if node.op == "placeholder")
        known = {node.name: dims for node, dims in zip(own, self.dynamic_dims, strict=False)}
        placeholders = (node for node in graph_module.graph.nodes if node.op == "placeholder")
        found = []
        for node, value in zip(placeholders, inputs, strict=True):
            dims = symbolic_dims(node) or known.get(node.name, ())
            rank = value.dim() if isinstance(value, torch.Tensor) else 0
            found.append(tuple(dim for dim in dims if dim < rank))
        return tuple(found)


def symbolic_dims(placeholder: fx.Node) -> tuple[int, ...]:
    """The dimensions of the placeholder's tensor whose size is symbolic."""
    example = placeholder.meta.get("example_value", placeholder.meta.get("val"))
    if not isinstance(example, torch.Tensor):
        return ()
    return tuple(place for place, size in enumerate(example.shape) if isinstance(size, torch.SymInt))
