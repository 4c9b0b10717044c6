"""From a failure to a ``Case``: the untouched graph, the inputs as they were, the modes, and where it came from."""

from __future__ import annotations

import hashlib
import logging
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn

from minidbg import _torch, devices, references
from minidbg.backend.chain import Link
from minidbg.backend.context import current_context
from minidbg.case import CallPath, Case, Context, Level, Provenance, symbolic_dims
from minidbg.errors import AccuracyError
from minidbg.failure import Direction, Kind, Signature
from minidbg.graphs.comments import user_line
from minidbg.graphs.effects import is_call
from minidbg.graphs.ranks import rank_note
from minidbg.graphs.size import call_nodes, canonical_text
from minidbg.oracle.agreement import margin_for
from minidbg.oracle.signature import signature_of
from minidbg.oracle.suspects import Suspects, suspects_of
from minidbg.settings import Settings

log = logging.getLogger("minidbg")
MESSAGE_LINES, MESSAGE_CHARACTERS = 20, 4000
STAND_INS = "values: some inputs had no data when it failed (fake, freed since, or on a device in error); seeded random ones stand in"


@dataclass(frozen=True, slots=True)
class Failure:
    """What failed, before anything was done about it."""

    graph_module: fx.GraphModule
    """As dynamo handed it over: a copy that no backend has seen."""
    inputs: Sequence[Any]
    """example_inputs, or the arguments of the failing call, with the values from before it."""
    link: Link
    """The backend that failed."""
    kind: Kind
    error: Exception
    notes: tuple[str, ...] = ()
    """What a reader of the capture must know."""
    direction: Direction = Direction.FORWARD
    context: Context | None = None
    """The modes of the forward call, where it is the backward that fails; else they are read now."""
    level: Level = Level.DYNAMO


def case_of(failure: Failure, settings: Settings) -> Case:
    """The failure as a case. Raises BackendUnreachable when no fresh process could get the backend back."""
    link, notes = failure.link, list(failure.notes)
    placeholders = [node for node in failure.graph_module.graph.nodes if node.op == "placeholder"]
    inputs = tuple(real_value(value, place) for place, value in enumerate(failure.inputs))
    if any(_torch.is_fake(value) for value in failure.inputs) or devices.in_error(failure.inputs):
        notes.append(STAND_INS)
    notes += rank_note()
    dynamic_dims = tuple(symbolic_dims(node) for node in placeholders)
    symbolic = any(dynamic_dims) or any(is_symbolic_number(node) for node in placeholders)
    found = references.find(
        link.backend, options=link.options, mode=link.mode, setup=settings.setup, reference=settings.reference
    )
    return Case(
        graph_module=failure.graph_module,
        inputs=inputs,
        backend=references.with_operators(found, failure.graph_module, inputs, setup=settings.setup),
        context=context_of(failure, settings),
        signature=signature(failure),
        call=CallPath.DIRECT if failure.level is Level.ATEN else CallPath.TORCH_COMPILE,
        level=failure.level,
        dynamic=symbolic,
        dynamic_dims=dynamic_dims if any(dynamic_dims) else (),
        backward=failure.direction is Direction.BACKWARD,
        provenance=provenance(failure, notes),
        tolerances=settings.allowed,
        match=settings.match,
        margin=margin_for(failure.error.figures if isinstance(failure.error, AccuracyError) else {}),
        compiler=link.backend,  # without its options, which reduction may drop
    )


def context_of(failure: Failure, settings: Settings) -> Context:
    """The modes of the failing call. AOTAutograd runs its graphs without autocast and without gradients."""
    context = failure.context or current_context(failure.inputs, further_env=settings.env)
    return replace(context, autocast=(), grad=False) if failure.level is Level.ATEN else context


def signature(failure: Failure) -> Signature:
    """What makes another failure the same as this one."""
    if isinstance(failure.error, AccuracyError):
        return Signature.from_table({"kind": str(Kind.ACCURACY), **failure.error.signature})
    return Signature.from_table(signature_of(failure.error, str(failure.kind), str(failure.direction)))


def digest(failure: Failure) -> str:
    """A text that two failures of the same graph share, whatever its nodes are called."""
    return hashlib.sha256(canonical_text(failure.graph_module).encode()).hexdigest()


def provenance(failure: Failure, notes: Iterable[str]) -> Provenance:
    """Where the case came from."""
    where, line = user_line(failure.graph_module, str(failure.error))
    return Provenance(
        nodes=call_nodes(failure.graph_module),
        inputs=len(failure.inputs),
        captured_from=where,
        line=line,
        message=first_lines(str(failure.error)),
        torch_version=torch.__version__,
        python_version=platform.python_version(),
        notes=tuple(notes),
        suspects=tuple(" ".join(group) for group in suspects(failure)),
    )


def suspects(failure: Failure) -> Suspects:
    """The nodes that the frames of the failure name. They are a hint: what cannot be found out is left out."""
    nodes = failure.graph_module.graph.nodes
    try:
        return suspects_of(failure.error, [_torch.GivenCall.of(node) for node in nodes if is_call(node)])
    except Exception:  # foreign objects in foreign frames
        log.debug("no_suspects", exc_info=True)
        return ()


def first_lines(message: str) -> str:
    """The beginning of ``message``, unchanged."""
    return "\n".join(message.splitlines()[:MESSAGE_LINES])[:MESSAGE_CHARACTERS]


def real_value(value: Any, place: int) -> Any:
    """``value``, or what stands in for it: numbers for symbolic ones, a seeded tensor for a fake one."""
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return concrete(value)
    if isinstance(value, torch.Tensor) and _torch.is_fake(value):
        return stand_in(value, place)
    return value


def concrete(value: Any) -> Any:
    """The number behind a symbolic one in this run; 2 where there is none (0 and 1 are special to torch)."""
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        hint = _torch.hint(value)
        return 2 if hint is None else hint
    return value


def stand_in(fake: torch.Tensor, seed: int) -> torch.Tensor:
    """A tensor of the same shape, stride, dtype and device: normal values, or 0 and 1 for other than floats."""
    with _torch.outside_tracing():
        shape, stride = [concrete(size) for size in fake.shape], [concrete(step) for step in fake.stride()]
        values = torch.empty_strided(shape, stride, dtype=fake.dtype, device=fake.device)
        if values.numel():
            generator = torch.Generator(values.device).manual_seed(seed)
            if values.dtype.is_floating_point or values.dtype.is_complex:
                values.copy_(torch.randn(shape, generator=generator, device=values.device).to(values.dtype))
            else:
                values.copy_(torch.randint(0, 2, shape, generator=generator, device=values.device))
        if isinstance(fake, nn.Parameter):
            return nn.Parameter(values, requires_grad=fake.requires_grad)
        return values.requires_grad_(fake.requires_grad)


def is_symbolic_number(placeholder: fx.Node) -> bool:
    """Whether the placeholder stands for a symbolic number."""
    example = placeholder.meta.get("example_value")
    return isinstance(example, torch.SymInt | torch.SymFloat | torch.SymBool)
