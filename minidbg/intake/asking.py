"""Which of several forms of a program fails: each is run once, in a child process."""

from __future__ import annotations

import importlib
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from minidbg import isolation, references
from minidbg.case import BackendRef, Case, CompilerFn, Context, Provenance
from minidbg.errors import BackendUnreachable, NotReproduced
from minidbg.failure import Outcome, Verdict
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
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
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
