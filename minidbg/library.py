"""What a program calls besides ``wrap``: the functions behind ``minidbg check`` and ``minidbg
reduce``, and their like."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from minidbg import backends, oracle, repro
from minidbg.core import settings
from minidbg.core.errors import NotReproduced
from minidbg.core.outcome import Outcome, Verdict
from minidbg.core.run_spec import CompilerFn
from minidbg.fx.case import Case
from minidbg.fx.context import current_context
from minidbg.fx.copying import capture_by_dynamo, copy_graph_module
from minidbg.reduction import publishing, reducing
from minidbg.reduction.result import Limits, Listener, ReductionResult, silent
from minidbg.reduction.search import BudgetSpent
from minidbg.reduction.session import Session
from minidbg.repro.cases import ChosenBackend, case_of
from minidbg.torch_internals.devices import kept_on_cpu

StrPath = str | os.PathLike[str]


def load(path: StrPath) -> Case:
    """The case in a repro script or a capture. Imports its backend, runs its ``inputs()``.

    Raises UnreadableRepro, and what the script itself raises.
    """
    return repro.load(Path(path))


def check(
    path: StrPath, device: str | None = None, backend: str | None = None, *, seconds: float = 300.0
) -> Outcome:
    """The outcome of running a repro in a fresh interpreter, within ``seconds``.

    ``device`` and ``backend`` (a registered name) replace the script's. Raises UnreadableRepro.
    """
    return repro.run(Path(path), device=device, backend=backend, seconds=seconds)


def reduce(
    what: StrPath | torch.export.ExportedProgram,
    *,
    backend: str | CompilerFn | None = None,
    seconds: float = 300.0,
    max_calls: int | None = None,
    folder: StrPath | None = None,
) -> Path:
    """Reduce ``what`` and return the path of a verified repro.

    ``what`` is a repro or a capture of minidbg, edited by hand or not; a program of
    ``torch.export``, or the ``.pt2`` file that holds one; or a script that torch's own minifier or
    tlparse wrote. The last two run with ``backend``, by default inductor and the one in the script;
    of minidbg's scripts, only one whose backend is to be filled in does. ``seconds`` (the
    verification included) and ``max_calls`` (runs) bound the search, after which the best so far is
    written. The repro goes into ``folder``, by default the repro folder that a repro of minidbg
    lies in, and the one of the settings for all others.

    Raises UnreadableRepro, and NotReproduced when it does not fail here, or no form of it does in a
    fresh interpreter.
    """
    written = reduced(
        what if isinstance(what, torch.export.ExportedProgram) else Path(what),
        backend=backend,
        limits=Limits(
            seconds=seconds, max_calls=max_calls, value_limit_bytes=settings.load().value_limit_bytes
        ),
        folder=Path(folder) if folder else None,
    )
    if written.path is None:
        raise NotReproduced(
            f"{what if isinstance(what, str | os.PathLike) else 'the program'}: {written.line}"
        )
    return written.path


def reduced(
    what: Path | torch.export.ExportedProgram,
    *,
    backend: str | CompilerFn | None = None,
    limits: Limits,
    folder: Path | None = None,
    listener: Listener = silent,
) -> ReductionResult:
    """As ``reduce``, but also returns a result without a verified repro."""
    from minidbg.extras import importers  # late: few programs need what others wrote

    forms = importers.forms_of(what, backend)
    if forms is None:
        assert isinstance(what, Path)
        with kept_on_cpu(repro.read_header(what).spec.device):
            return reducing.reduce_path(
                what, backend=backend, limits=limits, folder=folder, listener=listener
            )
    case = importers.first_that_fails(forms, str(what) if isinstance(what, Path) else "the program")
    folder = folder or settings.load().repro_dir
    return reducing.reduce_and_publish(case, folder, limits=limits, listener=listener, just_seen=True)


def save_repro(
    model: fx.GraphModule | torch.nn.Module | Callable[..., Any],
    inputs: Sequence[Any],
    backend: str | CompilerFn,
    path: StrPath | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    setup: str | Sequence[str] | None = None,
    reference: str | None = None,
    dynamic: bool | None = None,
    seconds: float = 300.0,
) -> Path:
    """Write ``model(*inputs)`` under ``backend`` as a verified, unreduced repro; return its path.

    A GraphModule is taken as it is; a module or function is captured by dynamo as one graph. The
    modes that are on around this call (no_grad, autocast, ...) are part of the repro. ``path`` is
    the script to write, by default a name in the repro folder; ``seconds`` bounds the
    runs. Reduce it with ``minidbg.reduce(path)``.

    Raises NotReproduced when the backend does not fail here, or the script in a fresh interpreter.
    """
    context = current_context(inputs)
    if isinstance(model, fx.GraphModule):
        graph_module, values = copy_graph_module(model), tuple(inputs)
    else:
        graph_module, values = capture_by_dynamo(model, inputs, dynamic=dynamic)
    found = backends.find_reference(backend, options=options, mode=mode, setup=setup, reference=reference)
    used = ChosenBackend(found, backend)
    case = case_of(graph_module, values, used, context=context, setup=setup, dynamic=dynamic)
    outcome = oracle.ask(case, seconds=seconds)
    if outcome.verdict is not Verdict.REPRODUCES:
        raise NotReproduced(
            f"{found.name} does not fail on this graph: {outcome.in_words}."
            " A repro is written of failures only",
            outcome,
        )
    case = publishing.with_failure(case, outcome)
    chosen, target = settings.load(), Path(path) if path is not None else None
    folder = target.parent if target is not None else chosen.repro_dir
    last = Outcome(Verdict.INVALID, reason=f"{seconds:.3g} s were over")
    session = Session(Limits(seconds=seconds, value_limit_bytes=chosen.value_limit_bytes))
    with contextlib.suppress(BudgetSpent):
        for exactness in repro.Exactness:
            last, draft = publishing.prove(case, exactness, folder, session)
            if draft is None:
                continue
            if target is None:
                return repro.publish(case, draft, folder)
            repro.move_script(draft, target)
            repro.discard(draft)
            return target
    why = f"the failure shows here and not in a fresh interpreter: {last.in_words}"
    raise NotReproduced(why, last)
