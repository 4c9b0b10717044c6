"""Repros that torch's own minifier or tlparse wrote, as cases: ``minifier_launcher.py``, ``repro.py``, ``fx_graph_runnable``.

Such a file defines ``Repro``, ``mod`` and ``load_args``, sets options, and ends with a call of ``run_repro`` of
``torch._dynamo.repro.after_dynamo`` or ``after_aot``. It is executed without that call and without its settings,
which become part of the case. The storages that it names are read where they are there, else torch makes values up.
"""

from __future__ import annotations

import ast
import itertools
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from minidbg import _torch
from minidbg.case import CallPath, Case, CompilerFn, Context, Level
from minidbg.errors import BackendUnreachable, UnreadableRepro
from minidbg.graphs.copying import capture_by_dynamo
from minidbg.intake.asking import UsedBackend, backend_named, case_of
from minidbg.references import run_as_module

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
    config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options that the file sets and that differ from their defaults."""
    grad: bool = True
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
    graph_module, values = capture_by_dynamo(namespace["mod"], inputs, dynamic=True if symbolic else None)
    notes = [*notes, f"from {path.name}, which torch's minifier wrote"]
    case = case_of(graph_module, values, used, context=context, notes=notes)
    case = replace(case, dynamic=symbolic)
    yield case
    needs_grad = any(isinstance(value, torch.Tensor) and value.requires_grad for value in values)
    if found.grad and needs_grad:
        yield replace(case, backward=True)
    if found.level is Level.ATEN and backend is None:
        inner = case_of(
            graph_module, values, backend_named(INNER), context=replace(context, grad=False), notes=notes
        )
        yield replace(inner, level=Level.ATEN, call=CallPath.DIRECT, dynamic=symbolic)


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
    call = next(
        (node for node in ast.walk(tree) if isinstance(node, ast.Call) and is_named(node.func, "run_repro")),
        None,
    )
    module = next(
        (
            node.module
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and MARK in f"{node.module}"
        ),
        "",
    )
    if call is None or not module:
        raise UnreadableTorchRepro(f"{path}: there is no call of run_repro in it")
    body = [node for node in tree.body if not is_ending(node) and not is_setting(node)]
    return TorchRepro(
        path,
        Level.ATEN if module.endswith("after_aot") else Level.DYNAMO,
        ast.Module(body, []),
        {keyword.arg: literal(keyword.value) for keyword in call.keywords if keyword.arg},
        config_in(tree),
        grad=not any(is_named(node, "no_grad") for node in ast.walk(tree) if isinstance(node, ast.Attribute)),
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
    target = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""
    return (
        option_of(target) is not None
        or target.startswith("os.environ[")
        or text.startswith("os.environ.pop(")
    )


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
        place = option_of(ast.unparse(node.targets[0])) if isinstance(node, ast.Assign) else None
        if place is None or not isinstance(node, ast.Assign):
            continue
        try:
            value = ast.literal_eval(node.value)
            default = _torch.config_default(*place)
        except (ValueError, KeyError, ImportError, AttributeError):
            continue
        if value != default and place not in HARMLESS:
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
    reader = _torch.input_reader(str(stored) if stored else None)
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
