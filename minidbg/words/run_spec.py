"""How a case is run, and where it comes from: values that need no torch."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

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
    torch_version: str = ""
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
