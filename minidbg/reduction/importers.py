"""What others wrote, as cases: programs of ``torch.export``, and repros that torch's own minifier or tlparse wrote.

Which of several forms of a program fails is found by running each once, in a child process.

The files of torch's minifier are ``minifier_launcher.py``, ``repro.py`` and ``fx_graph_runnable``. Such a file defines ``Repro``,
``mod`` and ``load_args``, sets options, and ends with a call of ``run_repro`` of ``torch._dynamo.repro.after_dynamo`` or
``after_aot``. It is executed without that call and without its settings, which become part of the case. The storages that it
names are read where they are there, else torch makes values up.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import platform
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from minidbg import asking, backends, torch_internals
from minidbg.fx.case import Case
from minidbg.fx.copying import capture_by_dynamo
from minidbg.python_text.run import run_as_module
from minidbg.source.size import call_nodes
from minidbg.words.errors import BackendUnreachable, MinidbgError, NotReproduced, UnreadableRepro
from minidbg.words.outcome import Outcome, Verdict
from minidbg.words.run_spec import BackendRef, CallPath, CompilerFn, Context, Level, Provenance, RunSpec

SECONDS = 120.0
"""Time limit of each run of the whole program."""


@dataclass(frozen=True, slots=True)
class UsedBackend:
    """A backend and how a fresh process gets it back."""

    ref: BackendRef
    compiler: str | CompilerFn


def backend_named(backend: str | CompilerFn) -> UsedBackend:
    """What ``backends.named`` makes of a name, or the backend itself. Raises UnknownBackend or BackendUnreachable."""
    try:
        found = backends.named(backend) if isinstance(backend, str) else backend
    except (ImportError, AttributeError) as error:
        raise BackendUnreachable(
            f"backend={backend!r} leads nowhere: {error}; give a registered name, or module:attribute of what can be imported"
        ) from error
    return UsedBackend(backends.find(found), found)


def case_of(
    graph_module: fx.GraphModule,
    inputs: Sequence[Any],
    backend: UsedBackend,
    *,
    context: Context,
    notes: Sequence[str] = (),
    setup: str | Sequence[str] | None = None,
    dynamic: bool | None = None,
) -> Case:
    """A case of which no failure is known yet."""
    values = tuple(inputs)
    provenance = Provenance(
        call_nodes(graph_module),
        len(values),
        torch_version=torch.__version__,
        python_version=platform.python_version(),
        notes=tuple(notes),
    )
    return Case(
        graph_module,
        values,
        RunSpec(
            backends.with_operators(backend.ref, graph_module, values, setup=setup), context, dynamic=dynamic
        ),
        provenance,
        backend.compiler,
    )


def first_that_fails(forms: Iterable[Case], what: str) -> Case:
    """The first form that fails, expecting that failure. Raises NotReproduced, with what each of them did."""
    said: list[Outcome] = []
    name = ""
    for case in forms:
        name = case.backend.name
        outcome = asking.submit(case, seconds=SECONDS)
        if outcome.verdict is Verdict.REPRODUCES:
            story = replace(case.provenance, message=outcome.message)
            return replace(case.with_spec(signature=outcome.signature), provenance=story)
        said.append(outcome)
    told = "; ".join(dict.fromkeys(one.in_words for one in said))
    raise NotReproduced(
        f"{what} does not fail with {name or 'the backend'} here ({told})", said[-1] if said else None
    )


def need_grad(values: Iterable[Any]) -> bool:
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)


# --- programs of torch.export ---

RANDOM = "the program was saved without example inputs; seeded random ones stand in"


class UnreadableProgram(UnreadableRepro):
    """A file that is no program of ``torch.export``, or one that this torch cannot load."""

    advice = "save it with torch.export.save(exported_program, path), with this version of torch where another one did"


def read_exported(path: Path) -> torch.export.ExportedProgram:
    """The program in the file at ``path``. What it stores is read as tensors and JSON; pickled objects are refused.

    Raises UnreadableProgram.
    """
    try:
        if not zipfile.is_zipfile(path):
            raise UnreadableProgram(f"{path}: not an archive of torch.export")
        return torch_internals.load_exported(path)
    except MinidbgError:
        raise
    except OSError as error:
        raise UnreadableProgram(f"{path}: {error.strerror or error}") from error
    except Exception as error:  # a damaged or foreign archive fails anywhere in torch's reader
        first = str(error).strip().partition("\n")[0][:200]
        raise UnreadableProgram(
            f"{path}: torch.export cannot load it ({type(error).__name__}: {first})"
        ) from error


def cases_of_exported(program: torch.export.ExportedProgram, backend: UsedBackend) -> Iterator[Case]:
    """The program's graph in the modes in which it may fail, the most usual first: inference, then training.

    Raises NoGraph, and what dynamo raises on a program that it cannot capture.
    """
    args, kwargs, notes = example_inputs(program)
    placeholders = program.graph.find_nodes(op="placeholder")
    symbolic = any(torch_internals.symbols_in(node.meta.get("val")) for node in placeholders)
    module = WithKeywords(program.module(check_guards=False), kwargs)
    graph_module, inputs = capture_by_dynamo(module, args, dynamic=symbolic or None)
    notes = [*notes, "from a program of torch.export"]
    case = case_of(graph_module, inputs, backend, context=Context(), notes=notes, dynamic=symbolic)
    yield case.with_spec(context=Context(grad=False))
    if need_grad(inputs):
        yield case.with_spec(backward=True)


def example_inputs(
    program: torch.export.ExportedProgram,
) -> tuple[tuple[Any, ...], dict[str, Any], list[str]]:
    """Positional and keyword inputs that the program can be called with, and notes on them."""
    if program.example_inputs is not None:
        args, kwargs = program.example_inputs
        return tuple(args), dict(kwargs), []
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        names = program.graph_signature.user_inputs
        placeholders = program.graph.find_nodes(op="placeholder")
        values = [stand_in(node.meta["val"]) for node in placeholders if node.name in names]
    in_spec = program.call_spec.in_spec
    args, kwargs = (values, {}) if in_spec is None else torch_internals.unflattened(values, in_spec)
    return tuple(args), dict(kwargs), [RANDOM]


def stand_in(meta: Any) -> Any:
    """A value like the one that the exported program knows of an input."""
    if not isinstance(meta, torch.Tensor):
        return torch_internals.hint(meta)
    shape = [torch_internals.hint(size) for size in meta.shape]
    if meta.is_floating_point() or meta.is_complex():
        return torch.randn(shape).to(meta.device, meta.dtype)
    return torch.randint(0, 2, shape, device=meta.device).to(meta.dtype)


class WithKeywords(nn.Module):
    """The program's module as a function of its positional inputs alone."""

    def __init__(self, module: fx.GraphModule | nn.Module, keywords: dict[str, Any]) -> None:
        super().__init__()
        self.module = module
        self.keywords = keywords

    def forward(self, *args: Any) -> Any:
        return self.module(*args, **self.keywords)


# --- repros of torch's minifier ---

MARK = "torch._dynamo.repro.after_"
INNER = "torch._inductor.compile_fx:compile_fx_inner"
"""What a graph of AOTAutograd is compiled with."""

_numbers = itertools.count(1)


class UnreadableTorchRepro(UnreadableRepro):
    """A repro of torch's minifier that cannot be read; the message names the line."""

    advice = "mend that line by hand, or have the failing program run under minidbg.wrap"


@dataclass(frozen=True, slots=True)
class TorchRepro:
    """What such a file holds, before anything of it is run."""

    path: Path
    level: Level
    body: ast.Module
    """The definitions, without settings and without the call."""
    arguments: Mapping[str, Any]
    """Of ``run_repro``: ``accuracy``, ``backend``, ``save_dir``, ``autocast``, ``tracing_mode``."""
    config: Mapping[str, Mapping[str, Any]]
    """Options that the file sets and that differ from their defaults."""
    grad: bool
    """Whether the call is outside ``torch.no_grad()``."""


def is_torch_repro(path: Path) -> bool:
    """Whether the file at ``path`` is one; it is read, not run."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return MARK in text and "load_args" in text and "# [tool.minidbg]" not in text


def cases_of_torch_repro(path: Path, backend: str | CompilerFn | None) -> Iterator[Case]:
    """The forms in which the file's failure may show, the most readable first. Executes the file's definitions.

    ``backend`` replaces the one in the file. Raises UnreadableTorchRepro, UnknownBackend, BackendUnreachable, and what
    the file's own code raises.
    """
    found = read_torch_repro(path)
    namespace = executed(found)
    inputs, notes = loaded_inputs(found, namespace)
    used = backend_of(found, backend)
    symbolic = any(type(value) is int for value in inputs)
    context = Context(grad=found.grad, config=found.config)
    graph_module, values = capture_by_dynamo(namespace["mod"], inputs, dynamic=symbolic or None)
    notes = [*notes, f"from {path.name}, which torch's minifier wrote"]
    form = partial(case_of, graph_module, values, notes=notes, dynamic=symbolic)
    yield form(used, context=context)
    if found.grad and need_grad(values):
        yield form(used, context=context).with_spec(backward=True)
    if found.level is Level.ATEN and backend is None:
        inner = form(backend_named(INNER), context=replace(context, grad=False))
        yield inner.with_spec(level=Level.ATEN, call=CallPath.DIRECT)


def backend_of(found: TorchRepro, wanted: str | CompilerFn | None) -> UsedBackend:
    """The backend that the file names, or the one that is wanted instead."""
    if wanted is not None:
        return backend_named(wanted)
    named = found.arguments.get("backend", "inductor") if found.level is Level.DYNAMO else "inductor"
    if not isinstance(named, str):
        raise BackendUnreachable(
            f"{found.path}: its backend is {named!r}; name it: --backend module:attribute"
        )
    return backend_named(named)


# --- reading, without running ---


def read_torch_repro(path: Path) -> TorchRepro:
    """The parts of the file. Raises UnreadableTorchRepro."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    except SyntaxError as error:
        line = (error.text or "").strip()
        raise UnreadableTorchRepro(f"{path}: line {error.lineno} is no Python: {line[:120]}") from error
    except ValueError as error:
        raise UnreadableTorchRepro(f"{path}: {error}") from error
    nodes = list(ast.walk(tree))
    calls = [one for one in nodes if isinstance(one, ast.Call) and is_named(one.func, "run_repro")]
    modules = [
        f"{one.module}" for one in nodes if isinstance(one, ast.ImportFrom) and MARK in f"{one.module}"
    ]
    if not calls or not modules:
        raise UnreadableTorchRepro(f"{path}: there is no call of run_repro in it")
    body = [node for node in tree.body if not is_ending(node) and not is_setting(node)]
    return TorchRepro(
        path,
        Level.ATEN if modules[0].endswith("after_aot") else Level.DYNAMO,
        ast.Module(body, []),
        {keyword.arg: literal(keyword.value) for keyword in calls[0].keywords if keyword.arg},
        config_in(tree),
        grad=not any(is_named(one, "no_grad") for one in nodes if isinstance(one, ast.Attribute)),
    )


def is_named(node: ast.expr, name: str) -> bool:
    """Whether ``node`` is ``name`` or an attribute of that name."""
    return ast.unparse(node).rpartition(".")[2] == name


def is_ending(node: ast.stmt) -> bool:
    """Whether it is the block that runs the repro, or the import of what runs it."""
    if isinstance(node, ast.If):
        return "__main__" in ast.unparse(node.test)
    return isinstance(node, ast.ImportFrom) and MARK in f"{node.module}"


def is_setting(node: ast.stmt) -> bool:
    """Whether it sets an option of torch or a variable of the environment, for the whole process."""
    text = ast.unparse(node)
    is_option = isinstance(node, ast.Assign) and option_of(ast.unparse(node.targets[0])) is not None
    return is_option or text.startswith(("os.environ[", "os.environ.pop("))


def option_of(target: str) -> tuple[str, str] | None:
    """Module and option of ``torch._inductor.config.cpp.threads``."""
    for name in ("config", "_config"):
        module, found, option = target.partition(f".{name}.")
        if found and module.startswith("torch."):
            return f"{module}.{name}", option
    return None


def config_in(tree: ast.Module) -> dict[str, dict[str, Any]]:
    """Options that the file sets to what is not their default; those that this torch does not have are left out."""
    config: dict[str, dict[str, Any]] = {}
    for node in tree.body:
        if not isinstance(node, ast.Assign) or (place := option_of(ast.unparse(node.targets[0]))) is None:
            continue
        with contextlib.suppress(ValueError, KeyError, ImportError, AttributeError):
            value = ast.literal_eval(node.value)
            if value != torch_internals.config_default(*place) and place not in HARMLESS:
                config.setdefault(place[0], {})[place[1]] = value
    return config


HARMLESS = {("torch._functorch.config", "fake_tensor_allow_unsafe_data_ptr_access")}
"""Options that torch writes down because its minifier sets them itself."""


def literal(node: ast.expr) -> Any:
    """The value of a literal; the source of anything else."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return Source(ast.unparse(node))


@dataclass(frozen=True, slots=True)
class Source:
    """An argument that is no literal."""

    text: str

    def __repr__(self) -> str:
        return self.text


# --- running what it defines ---


def executed(found: TorchRepro) -> dict[str, Any]:
    """The names that the file defines. Raises UnreadableTorchRepro when its own ones are not among them."""
    name = f"minidbg_torch_repro_{next(_numbers)}"
    with torch.random.fork_rng([]):
        namespace = run_as_module(name, ast.unparse(found.body), __file__=str(found.path))
    for needed in ("mod", "load_args"):
        if needed not in namespace:
            raise UnreadableTorchRepro(f"{found.path}: it defines no {needed!r}")
    return namespace


def loaded_inputs(found: TorchRepro, namespace: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
    """The arguments of the module, and notes on where they come from."""
    stored = storages_of(found)
    reader = torch_internals.input_reader(str(stored) if stored else None)
    with torch.random.fork_rng([]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of each storage that is not there
        torch.manual_seed(0)
        namespace["load_args"](reader)
    version = getattr(namespace["load_args"], "_version", 0)
    if version != 0:
        raise UnreadableTorchRepro(f"{found.path}: its load_args is of version {version}, known is 0")
    notes = [] if stored else ["its storages are not there, so torch's random values stand in"]
    return list(reader.args), notes


def storages_of(found: TorchRepro) -> Path | None:
    """The folder that holds ``storages``: the one that the file names, or one beside it, when it was moved."""
    named = found.arguments.get("save_dir")
    beside = (found.path.parent / "checkpoints", found.path.parent)
    folders = (*([Path(named)] if isinstance(named, str) else ()), *beside)
    return next((folder for folder in folders if (folder / "storages").is_dir()), None)
