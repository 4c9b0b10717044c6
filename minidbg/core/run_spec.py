"""``RunSpec``: the one record of how a graph is run, what it must show, its origin. Needs no torch.

A script's header holds these records as they are (``records.table_of``): a new field is a field
here, and whoever uses it.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from minidbg.core.kinds import UNSEEN, Kind, Traits
from minidbg.core.outcome import Signature
from minidbg.core.text import display_path

PRECISIONS = {
    name: dict.fromkeys(("float32", "complex64"), (error, error))
    for name, error in {"bfloat16": 3e-2, "float16": 5e-3, "tf32": 5e-3}.items()
}
"""Relative and absolute error allowed where a backend has float32 in this precision by design."""
HANG_LIMIT_S = 120.0
"""What a script of the kind hang gets when its header names no limit."""

CompiledFn: TypeAlias = Callable[..., Any]
"""What a backend returns: called as ``compiled_fn(*args)`` at dynamo level."""

CompilerFn: TypeAlias = Callable[..., CompiledFn]
"""A backend: ``(gm, example_inputs, **kwargs) -> compiled_fn``."""


class CallPath(enum.StrEnum):
    """How the graph reaches the backend; the same in reduction, script and watch."""

    TORCH_COMPILE = "torch.compile"
    """``torch.compile(Repro(), backend=..., fullgraph=True)``: dynamo retraces the module."""
    DIRECT = "direct"
    """``backend(gm, inputs)``: for graphs that dynamo would not hand over unchanged."""


class Level(enum.StrEnum):
    """What kind of graph the case holds, and so what kind of function its backend is."""

    DYNAMO = "dynamo"
    """A graph of ``torch.compile``, for a backend."""
    ATEN = "aten"
    """A graph of AOTAutograd (forward, backward, inference), for a compiler of ``aot_autograd``."""


@dataclass(frozen=True, slots=True)
class BackendRef:
    """How a fresh process gets a backend back. All fields are text or plain literals."""

    name: str
    """For people, and for file names: ``inductor``, ``my_pkg.mod.my_backend``."""
    expression: str = ""
    """Python expression for ``torch.compile(backend=...)``, evaluated after ``setup``:
    ``'"inductor"'``, ``my_pkg.mod.fn``. A header has none: it stands at the top of the script, with
    ``setup`` and ``embedded``."""
    setup: tuple[str, ...] = ()
    """Statements run first, in this order: ``import my_pkg``."""
    embedded: str = ""
    """Definitions that no import reaches, run next: what the program itself defines."""
    paths: tuple[str, ...] = ()
    """Folders put at the end of ``sys.path``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """``torch.compile(options=...)``, literals only."""
    mode: str | None = None
    """``torch.compile(mode=...)``."""
    requirements: tuple[str, ...] = ()
    """Distributions to install, public versions: ``my-backend==0.3``. Torch is not among them."""
    remarks: tuple[str, ...] = ()
    """What no requirement can say, one comment line each: ``my_pkg is on no index: it was imported
    from the folder src``."""
    modules: tuple[str, ...] = ()
    """Top-level modules that hold the backend's code, for watch."""
    missing_backend: str = ""
    """What to put into a script, as nothing leads there: ``a closure of train.py:4``; else empty.

    The expression is then ``...``, or gives what was pickled for the children of its process.
    """

    @property
    def lacks_backend(self) -> bool:
        return self.expression == "..."

    @property
    def unfilled(self) -> str:
        """Why a script that lacks its backend cannot be judged, as it says itself."""
        missing = self.missing_backend or "what torch.compile gets as its backend"
        return f"its backend is to be filled in: {missing}"


def how_to_supply_backend(path: str | os.PathLike[str], missing_backend: str) -> str:
    """What the script at ``path`` holds, with the ways to give it its backend: ``graph whose
    backend is to be filled in, ...``."""
    shown = display_path(path)
    return (
        f"graph whose backend is to be filled in, {missing_backend}: edit `backend = ...` in "
        f"{shown}, or give it one: minidbg reduce {shown} --backend MODULE:EXPRESSION"
    )


@dataclass(frozen=True, slots=True)
class Context:
    """The modes and settings around the failing call, each unlike torch's default or left at it."""

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
    """Module name -> option -> value, if it differs from its default and ``repr`` round-trips."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the allow list that were set."""
    env_matters: bool = False
    """Whether the failure was seen with them only: then a script sets them."""


STAND_IN_NOTE = "values: some inputs had no data when it failed (fake, freed since, or on a device in error); seeded random ones stand in"
"""A note of a Provenance."""
LOST = "in the program"  # begins a note on what our runs lack, told only by an end without script


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
    neighbour: str = ""
    """What one step less looks like: ``passes without torch.relu``."""
    notes: tuple[str, ...] = ()
    """What readers must know: which values are real, the call path needed, which budget ran out."""
    suspects: tuple[str, ...] = ()
    """Of a failure not yet reduced: the nodes that the frames of its traceback held, ``add_2
    linear`` for one frame, innermost first."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """How a graph is run, and what it must show.

    Together with the graph and its inputs this is all that the judge asks: ``Case`` holds one, a
    script's header is one, so is what ``minidbg watch`` knows of a repro without importing torch.
    """

    backend: BackendRef
    context: Context = Context()
    signature: Signature | None = None
    """The failure to look for; None when none has been seen yet: then any failure reproduces."""
    kind_if_unseen: Kind = Kind.COMPILE
    """The kind that a header names when there is no signature."""
    call: CallPath = CallPath.TORCH_COMPILE
    level: Level = Level.DYNAMO
    """Graphs of level ATEN are called directly only."""
    device: str = "cpu"
    """The device that a script runs on unless told otherwise."""
    dynamic: bool | None = None
    """``torch.compile(dynamic=...)``."""
    dynamic_dims: tuple[tuple[int, ...], ...] = ()
    """Per input the dimensions to ``mark_dynamic``, others static; empty where nothing is known."""
    backward: bool = False
    """Whether the run goes on to backward with seeded cotangents."""
    attempts: int = 1
    """Runs in which the failure shows at least once: more than 1 for a flaky one."""
    time_limit_s: float = HANG_LIMIT_S
    """From the end of the eager run: after it a compile counts as a hang."""
    tolerances: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Relative and absolute tolerance of wrong results by name of dtype (``float32``), or ``any``;
    else the built-in ones.

    Or the name of a precision that the backend computes float32 in.
    """
    match: str | None = None
    """A regular expression that the failure's message must contain to be the same failure."""
    margin: float = 1.0
    """How many times more than tolerated a wrong result must be off. Only a reduction asks for more
    than 1; no header holds it."""
    golden: Literal["", "cpu"] = ""
    """Where eager runs, which results are held against: on the backend's device, or ``cpu``."""
    judge: str = ""
    """An expression of metrics by which results are judged, instead of tolerances and float64."""

    @property
    def kind(self) -> Kind | None:
        return self.signature.kind if self.signature else None

    @property
    def traits(self) -> Traits:
        return self.signature.kind.traits if self.signature else UNSEEN

    @property
    def expected(self) -> Signature:
        """The signature; one that only names the kind when none has been seen yet."""
        return self.signature or Signature(self.kind_if_unseen)
