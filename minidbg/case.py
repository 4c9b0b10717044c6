"""``Case``: one failing graph with all that is needed to run it again, in values that do not change."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import fx

from minidbg.failure import Kind, Signature

Tolerances: TypeAlias = Mapping[str, tuple[float, float]] | str
CompiledFn: TypeAlias = Callable[..., Any]
"""What a backend returns: called as ``compiled_fn(*args)`` at dynamo level."""

CompilerFn: TypeAlias = Callable[..., CompiledFn]
"""A backend: ``(gm, example_inputs, **kwargs) -> compiled_fn``."""


class CallPath(enum.StrEnum):
    """How the graph reaches the backend; the same in reduction, script and watch."""

    TORCH_COMPILE = "torch.compile"
    """``torch.compile(Repro(), backend=..., fullgraph=True)``: dynamo traces the written module again."""
    DIRECT = "direct"
    """``backend(gm, inputs)``: for graphs that dynamo would not hand over unchanged."""


class Level(enum.StrEnum):
    """What kind of graph the case holds, and so what kind of function its backend is."""

    DYNAMO = "dynamo"
    """A graph of ``torch.compile``, for a backend."""
    ATEN = "aten"
    """A graph of AOTAutograd (forward, backward or inference), for a compiler given to ``aot_autograd``."""


@dataclass(frozen=True, slots=True)
class BackendRef:
    """How a fresh process gets a backend back. All fields are text or plain literals."""

    name: str
    """For people, and for file names: ``inductor``, ``my_pkg.mod.my_backend``."""
    expression: str
    """Python expression for ``torch.compile(backend=...)``, evaluated after ``setup``: ``'"inductor"'``, ``my_pkg.mod.fn``."""
    setup: tuple[str, ...] = ()
    """Statements run first, in this order: ``import my_pkg``. Device plugins come before the rest."""
    embedded: str = ""
    """Source of definitions that no import reaches (self-contained functions of ``__main__``)."""
    files: tuple[str, ...] = ()
    """Absolute paths of scripts that are loaded by path, without running their ``__main__`` block; ``setup`` may then say
    ``train = load_by_path("/abs/train.py")``."""
    paths: tuple[str, ...] = ()
    """Folders put on ``sys.path`` only when a plain import has failed."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """``torch.compile(options=...)``, literals only."""
    mode: str | None = None
    """``torch.compile(mode=...)``."""
    requirements: tuple[str, ...] = ()
    """Distributions to install, public versions: ``my-backend==0.3``. Torch is not among them."""
    remarks: tuple[str, ...] = ()
    """What no requirement can say, one comment line each: ``my_pkg is an editable install of /src/my_pkg at commit 1a2b3c``."""
    modules: tuple[str, ...] = ()
    """Top-level modules that hold the backend's code, for watch."""


@dataclass(frozen=True, slots=True)
class Context:
    """The modes and settings around the failing call; each differs from torch's default or is left at it."""

    grad: bool = True
    inference: bool = False
    autocast: tuple[tuple[str, str, bool], ...] = ()
    """Enabled autocasts: device type, dtype (``"torch.bfloat16"``), cache_enabled."""
    deterministic: bool = False
    deterministic_warn_only: bool = False
    default_dtype: str = "torch.float32"
    default_device: str | None = None
    matmul_precision: str = "highest"
    threads: int | None = None
    """``torch.get_num_threads()`` at the failure."""
    threads_matter: bool = False
    """Whether a run sets that number; else it is only told."""
    config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Module name -> option -> value, where it differs from its default and ``repr`` round-trips."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the allow list that were set."""


STAND_INS = "values: some inputs had no data when it failed (fake, freed since, or on a device in error); seeded random ones stand in"
"""A note of a Provenance."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a case came from and what was done to it, for its docstring and the reports."""

    nodes: int = 0
    """Call nodes at capture."""
    inputs: int = 0
    """Inputs at capture."""
    captured_from: str = ""
    """``train.py:41`` of the user's innermost line known for the failing graph."""
    line: str = ""
    """That line's text."""
    message: str = ""
    """The original message, first lines, unchanged."""
    torch_version: str = torch.__version__
    python_version: str = ""
    reduced: bool = False
    certified: bool = False
    """Whether 1-minimality over nodes, inputs and outputs was proven."""
    oracle_calls: int = 0
    seconds: float = 0.0
    neighbour: str = ""
    """What one step less looks like: ``passes without torch.relu``."""
    notes: tuple[str, ...] = ()
    """What a reader must know: which values are real, which call path was needed, which budget ran out."""
    suspects: tuple[str, ...] = ()
    """Of a failure not yet reduced: the nodes that the frames of its traceback held, ``add_2 linear`` for one frame, innermost first."""


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
    provenance: Provenance = Provenance()
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
