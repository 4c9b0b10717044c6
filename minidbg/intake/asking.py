"""Programs of ``torch.export`` as cases, and which of several forms of a program fails: each is run once, in a child process."""

from __future__ import annotations

import importlib
import operator
import platform
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from minidbg import _torch, isolation, references
from minidbg.case import BackendRef, Case, CompilerFn, Context, Provenance
from minidbg.errors import BackendUnreachable, MinidbgError, NotReproduced, UnreadableRepro
from minidbg.failure import Outcome, Verdict
from minidbg.graphs.copying import capture_by_dynamo
from minidbg.graphs.size import call_nodes

SECONDS = 120.0
"""Time limit of each run of the whole program."""


@dataclass(frozen=True, slots=True)
class UsedBackend:
    """A backend and how a fresh process gets it back."""

    ref: BackendRef
    compiler: str | CompilerFn


def backend_named(backend: str | CompilerFn) -> UsedBackend:
    """A registered name, ``module:attribute`` or the backend itself. Raises UnknownBackend or BackendUnreachable."""
    if not isinstance(backend, str) or ":" not in backend:
        return UsedBackend(references.find(backend), backend)
    module, _, attribute = backend.partition(":")
    try:
        found = operator.attrgetter(attribute)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise BackendUnreachable(
            f"backend={backend!r} leads nowhere: {error}; give a registered name, or module:attribute of what can be imported"
        ) from error
    return UsedBackend(references.find(found), found)


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
    return Case(
        graph_module,
        values,
        references.with_operators(backend.ref, graph_module, values, setup=setup),
        context,
        dynamic=dynamic,
        provenance=Provenance(
            nodes=call_nodes(graph_module),
            inputs=len(values),
            python_version=platform.python_version(),
            notes=tuple(notes),
        ),
        compiler=backend.compiler,
    )


def first_that_fails(forms: Iterable[Case], what: str) -> Case:
    """The first form that fails, expecting that failure. Raises NotReproduced, with what each of them did."""
    said: list[Outcome] = []
    name = ""
    for case in forms:
        name = case.backend.name
        outcome = isolation.submit(case, seconds=SECONDS)
        if outcome.verdict is Verdict.REPRODUCES:
            story = replace(case.provenance, message=outcome.message)
            return replace(case, signature=outcome.signature, provenance=story)
        said.append(outcome)
    told = "; ".join(dict.fromkeys(f"{one.verdict}{': ' + one.reason if one.reason else ''}" for one in said))
    raise NotReproduced(
        f"{what} does not fail with {name or 'the backend'} here ({told})", said[-1] if said else None
    )


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
        return _torch.load_exported(path)
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
    symbolic = any(
        _torch.symbols_in(node.meta.get("val")) for node in program.graph.nodes if node.op == "placeholder"
    )
    module = WithKeywords(program.module(check_guards=False), kwargs)
    graph_module, inputs = capture_by_dynamo(module, args, dynamic=True if symbolic else None)
    notes = [*notes, "from a program of torch.export"]
    case = case_of(graph_module, inputs, backend, context=Context(), notes=notes)
    case = replace(case, dynamic=symbolic)
    yield replace(case, context=Context(grad=False))
    needs_grad = any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)
    if needs_grad:
        yield replace(case, backward=True)


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
        metas = [
            node.meta["val"]
            for node in program.graph.nodes
            if node.op == "placeholder" and node.name in names
        ]
        values = [stand_in(meta) for meta in metas]
    in_spec = program.call_spec.in_spec
    if in_spec is None:
        return tuple(values), {}, [RANDOM]
    args, kwargs = _torch.unflattened(values, in_spec)
    return tuple(args), dict(kwargs), [RANDOM]


def stand_in(meta: Any) -> Any:
    """A value like the one that the exported program knows of an input."""
    if not isinstance(meta, torch.Tensor):
        return _torch.hint(meta)
    shape = [_torch.hint(size) for size in meta.shape]
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
