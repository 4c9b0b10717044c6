"""``RunSpec``: the one record of how a graph is run and what it must show; and where a case comes from. Needs no torch.

``to_table`` and ``from_table`` are what a script's header holds of them, and the only code that
names a key of that table. A new field of the record is a field here, a line in each of the two, and
whoever uses it.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeAlias

from minidbg.core import script_header
from minidbg.core.kinds import UNSEEN, Kind, Traits
from minidbg.core.literals import read_literal, write_literal
from minidbg.core.outcome import Signature
from minidbg.core.records import check_types, differing, mapping, string_list
from minidbg.core.script_header import HANG_LIMIT_S
from minidbg.core.text import display_path

MALFORMED = (
    KeyError,
    ValueError,
    TypeError,
    AttributeError,
    SyntaxError,
    OverflowError,
    RecursionError,
    MemoryError,
)
"""What reading a table that anybody may have edited can raise."""

PRECISIONS = {"bfloat16": 3e-2, "float16": 5e-3, "tf32": 5e-3}
"""What float32 results may be off, relative and absolute, of a backend that computes them in this precision by design."""


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
    """Python expression for ``torch.compile(backend=...)``, evaluated after ``setup``:
    ``'"inductor"'``, ``my_pkg.mod.fn``."""
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
    """What a person has to put into a script, since nothing leads there: ``a closure of train.py:4``; else empty.

    The expression is then ``...``, or gives back what was pickled for the children of the process that has it.
    """

    @property
    def lacks_backend(self) -> bool:
        return self.expression == "..."

    @property
    def unfilled(self) -> str:
        """Why a script that lacks its backend cannot be judged, as it says itself."""
        return f"its backend is to be filled in: {self.missing_backend or 'what torch.compile gets as its backend'}"

    def to_table(self) -> dict[str, Any]:
        """What a header tells of it; how it is reached stands at the top of the script."""
        table: dict[str, Any] = {"backend": self.name}
        if self.options:
            table["options"] = write_literal(dict(self.options))
        if self.mode:
            table["mode"] = self.mode
        if self.paths:
            table["paths"] = list(self.paths)
        reference = {
            "modules": list(self.modules),
            "requirements": list(self.requirements),
            "remarks": list(self.remarks),
            "missing_backend": [self.missing_backend] if self.missing_backend else [],
        }
        if any(reference.values()):
            table["reference"] = {name: texts for name, texts in reference.items() if texts}
        return table

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> BackendRef:
        """Read ``to_table`` back, without an expression. Raises MALFORMED."""
        reference = mapping(table.get("reference", {}), "reference")
        found = cls(
            name=table["backend"],
            expression="",
            paths=string_list(table.get("paths", ()), "paths"),
            options=options_from_table(table.get("options", {})),
            mode=table.get("mode"),
            requirements=string_list(reference.get("requirements", ()), "requirements"),
            remarks=string_list(reference.get("remarks", ()), "remarks"),
            modules=string_list(reference.get("modules", ()), "modules"),
            missing_backend="".join(string_list(reference.get("missing_backend", ()), "missing_backend")),
        )
        check_types(found)
        return found


def how_to_supply_backend(path: str | os.PathLike[str], missing_backend: str) -> str:
    """What the script at ``path`` holds, with the ways to give it its backend: ``graph whose
    backend is to be filled in, ...``."""
    shown = display_path(path)
    return (
        f"graph whose backend is to be filled in, {missing_backend}: edit `backend = ...` in {shown}, "
        f"or give it one: minidbg reduce {shown} --backend MODULE:EXPRESSION"
    )


def pairs(table: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    for name, pair in table.items():
        if [type(one) in (int, float) for one in pair] != [True, True]:
            raise ValueError(f"tolerances = {{{name} = {pair!r}}}: expected two numbers")
    return {name: (low, high) for name, (low, high) in table.items()}


def in_precision(name: str) -> dict[str, tuple[float, float]]:
    return dict.fromkeys(("float32", "complex64"), (PRECISIONS[name], PRECISIONS[name]))


def options_from_table(value: str | Mapping[str, Any]) -> dict[str, Any]:
    return mapping(read_literal(value) if isinstance(value, str) else value, "options")


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
    env_matters: bool = False
    """Whether the failure was seen with them only: then a script sets them."""

    def to_table(self) -> dict[str, Any]:
        """What differs from torch's defaults and has an effect on a run; and ``grad``."""
        without = {"threads_matter", "env_matters", "config"}
        without |= set() if self.threads_matter else {"threads"}
        without |= set() if self.env_matters else {"env"}
        table = differing(self, without)
        if self.config:
            table["config"] = {
                module: write_literal(dict(options)) for module, options in self.config.items()
            }
        return {"grad": self.grad, **table}

    @classmethod
    def from_table(cls, table: Mapping[str, Any], origin: Mapping[str, Any]) -> Context:
        """Read ``to_table`` back; ``origin`` tells the threads and variables that have no effect. Raises MALFORMED."""
        read_below = {"autocast", "config", "env", "env_matters", "threads", "threads_matter"}
        plain = {one.name for one in fields(cls)} - read_below
        env = mapping(table.get("env", origin.get("env", {})), "env")
        found = cls(
            **{name: value for name, value in table.items() if name in plain},
            autocast=tuple(
                (str(device), str(dtype), bool(cached)) for device, dtype, cached in table.get("autocast", ())
            ),
            config={
                module: options_from_table(options)
                for module, options in mapping(table.get("config", {}), "config").items()
            },
            threads=table.get("threads", origin.get("threads")),
            threads_matter="threads" in table,
            env_matters="env" in table,
            env=dict(zip(env, string_list(list(env.values()), "env"), strict=True)),
        )
        check_types(found)
        return found


STAND_IN_NOTE = "values: some inputs had no data when it failed (fake, freed since, or on a device in error); seeded random ones stand in"
"""A note of a Provenance."""
LOST = "in the program"  # begins a note on what our runs lack, which only an end without a script tells


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
    """Of a failure not yet reduced: the nodes that the frames of its traceback held, ``add_2
    linear`` for one frame, innermost first."""

    def to_table(self) -> dict[str, Any]:
        """What a header tells of it: ``done.json`` in ``.minidbg`` has the statistics of the reduction."""
        return differing(self, {"oracle_calls", "seconds"})

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Provenance:
        """What a header's whole table tells of it. Raises MALFORMED."""
        origin = mapping(table.get("origin", {}), "origin")
        told = {one.name: origin[one.name] for one in fields(cls) if one.name in origin}
        for name in {"notes", "suspects"} & told.keys():
            told[name] = string_list(told[name], name)
        found = cls(**told)
        check_types(found)
        return found


@dataclass(frozen=True, slots=True)
class RunSpec:
    """How a graph is run, and what it must show.

    Together with the graph and its inputs this is all that the judge asks: ``Case`` holds one, a script's header is one,
    and so is what ``minidbg watch`` knows of a repro without importing torch.
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
    dynamic: bool | None = False
    """``torch.compile(dynamic=...)``."""
    dynamic_dims: tuple[tuple[int, ...], ...] = ()
    """Per input the dimensions to ``mark_dynamic``, the others being static; empty where nothing is known."""
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

    def to_table(self, provenance: Provenance = Provenance()) -> dict[str, Any]:
        """The table of a script's header, with what it tells of ``provenance``: TOML's types only.

        What ``from_table`` supplies is left out.
        """
        backend, context, allowed = self.backend.to_table(), self.context.to_table(), self.tolerances
        kind = str(self.expected.kind)
        signature = self.signature.to_table() if self.signature else {}
        usual = {"kind": kind, "direction": "forward", "types": [], "frames": []}
        told = {
            "threads": self.context.threads,
            "env": {} if self.context.env_matters else dict(self.context.env),
        }
        optional = {
            "call": None if self.call is CallPath.TORCH_COMPILE else str(self.call),
            "level": None if self.level is Level.DYNAMO else str(self.level),
            "dynamic": self.dynamic,
            "dynamic_dims": [list(dims) for dims in self.dynamic_dims] if any(self.dynamic_dims) else None,
            "backward": self.backward or None,
            "attempts": self.attempts if self.attempts > 1 else None,
            "time_limit_s": self.time_limit_s if self.time_limit_s != HANG_LIMIT_S else None,
            "options": backend.get("options"),
            "mode": backend.get("mode"),
            "paths": backend.get("paths"),
            "match": self.match,
            "tolerances": {name: list(pair) for name, pair in allowed.items()} or None,
            "context": context if context != {"grad": True} else None,
            "signature": {name: value for name, value in signature.items() if usual.get(name) != value}
            or None,
            "origin": {
                **provenance.to_table(),
                **{name: value for name, value in told.items() if value not in (None, {})},
            },
            "reference": backend.get("reference"),
        }
        optional = {name: value for name, value in optional.items() if value is not None}
        return {"kind": kind, "backend": self.backend.name, "device": self.device, **optional}

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> RunSpec:
        """Read ``to_table`` back. Raises MALFORMED for a table that is none."""
        kind, signature = Kind(table["kind"]), table.get("signature")
        limit, allowed = table.get("time_limit_s", HANG_LIMIT_S), table.get("tolerances", {})
        mapping(table.get("context", {}), "context")
        mapping(table.get("origin", {}), "origin")
        found = cls(
            backend=BackendRef.from_table(table),
            context=Context.from_table(table.get("context", {}), table.get("origin", {})),
            signature=None if signature is None else Signature.from_table({"kind": kind, **signature}),
            kind_if_unseen=kind,
            call=CallPath(table.get("call", CallPath.TORCH_COMPILE)),
            level=Level(table.get("level", Level.DYNAMO)),
            device=table.get("device", "cpu"),
            dynamic=table.get("dynamic"),
            dynamic_dims=tuple(tuple(map(int, dims)) for dims in table.get("dynamic_dims", ())),
            backward=table.get("backward", False),
            attempts=table.get("attempts", 1),
            time_limit_s=limit if isinstance(limit, int | float) else HANG_LIMIT_S,
            tolerances=pairs(mapping(allowed, "tolerances")),
            match=table.get("match"),
        )
        check_types(found)
        return found

    def to_literal(self) -> str:
        """All of it as the text of a Python literal, for another process: a header holds neither
        the margin nor the backend's expression."""
        return write_literal(plain(self))

    @classmethod
    def from_literal(cls, text: str) -> RunSpec:
        table = read_literal(text)
        signature = table["signature"]
        exact = {
            "backend": BackendRef(**table["backend"]),
            "context": Context(**table["context"]),
            "signature": None if signature is None else Signature.from_table(signature),
            "kind_if_unseen": Kind(table["kind_if_unseen"]),
            "call": CallPath(table["call"]),
            "level": Level(table["level"]),
        }
        return cls(**{**table, **exact})


def table_of(text: str, path: str | os.PathLike[str]) -> dict[str, Any]:
    """``[tool.minidbg]`` of the script ``text`` at ``path``: with absolute paths.

    Raises ValueError when there is no such table.
    """
    table = script_header.table_in(script_header.metadata_of(text))
    home = script_header.folder_of_script(os.path.abspath(path))
    given = table.get("paths")
    if isinstance(given, list) and all(isinstance(one, str) for one in given):
        table["paths"] = [os.path.normpath(os.path.join(home, one)) for one in given]
    return table


def plain(value: Any) -> Any:
    """``value`` with each dataclass as a dict, and in place of members of enums and of subclasses
    what they are to everybody."""
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float(value)
    return tuple(map(plain, value)) if type(value) is tuple else value
