"""From a failure to a ``Case``: untouched graph, inputs as they were, modes, where it came from.

Modes are read when the call fails, since inference mode is off while dynamo compiles and on again
when the compiled function runs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from minidbg import backends, torch_internals
from minidbg.codegen.names import readable_name
from minidbg.codegen.origins import user_line
from minidbg.core.errors import AccuracyError, NothingLeadsThere
from minidbg.core.foreign import fence
from minidbg.core.kinds import Kind
from minidbg.core.outcome import Direction, Signature
from minidbg.core.records import record_of
from minidbg.core.run_spec import (
    LOST,
    STAND_IN_NOTE,
    BackendRef,
    CallPath,
    Context,
    Level,
    Provenance,
    RunSpec,
)
from minidbg.core.settings import Settings
from minidbg.fx.case import Case, symbolic_dims
from minidbg.fx.context import CONFIG_MODULES, current_context, round_trips
from minidbg.fx.effects import is_call
from minidbg.fx.ranks import rank_note
from minidbg.judge.compare import margin_for
from minidbg.judge.signature import also_imported, error_text, kind_of, signature_of
from minidbg.judge.suspects import Suspects, suspects_of
from minidbg.repro.cases import provenance_here
from minidbg.torch_internals import devices
from minidbg.wrapper.chain import Link, is_symbolic_number

MESSAGE_LINES, MESSAGE_CHARACTERS = 20, 4000


@dataclass(frozen=True, slots=True)
class Failure:
    graph_module: fx.GraphModule
    """As dynamo handed it over: a copy that no backend has seen."""
    inputs: Sequence[Any]
    """example_inputs, or the arguments of the failing call, with the values from before it."""
    link: Link
    """The backend that failed."""
    phase: str
    """``compile`` or ``runtime``, when the error was raised; ``accuracy`` of wrong results."""
    error: Exception
    notes: tuple[str, ...] = ()
    """What a reader of the capture must know."""
    direction: Direction = Direction.FORWARD
    context: Context | None = None
    """The modes of the forward call, where the backward fails; else they are read now."""

    @property
    def kind(self) -> Kind:
        return kind_of(self.phase, self.error)


def case_of_failure(failure: Failure, settings: Settings) -> Case:
    """The failure as a case. Raises BackendUnreachable if no fresh process can get its backend."""
    context = failure.context or current_context(failure.inputs, further_env=settings.env)
    if failure.link.level is Level.ATEN:  # AOTAutograd's graphs run without autocast and gradients
        context = replace(context, autocast=(), grad=False)
    call = case_of_call(failure.link, failure.graph_module, failure.inputs, context, settings)
    notes = list(failure.notes)
    if any(map(is_without_values, failure.inputs)) or devices.in_error(failure.inputs):
        notes.append(STAND_IN_NOTE)
    notes += [*rank_note(), *lost_note(failure)]
    if isinstance(failure.error, AccuracyError):
        figures = failure.error.figures
        signature = record_of({"kind": failure.kind, **failure.error.signature}, Signature)
    else:
        figures, signature = {}, signature_of(failure.error, failure.phase, failure.direction)
    # what is filled in may be imported from the program, as the module that others know
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    program = spec.name if spec is not None else Path(getattr(main, "__file__", None) or "").stem
    if call.backend.missing_backend and program:
        signature = also_imported(signature, program)
    call = call.with_spec(
        signature=signature,
        call=CallPath.DIRECT if failure.link.level is Level.ATEN else CallPath.TORCH_COMPILE,
        level=failure.link.level,
        backward=failure.direction is Direction.BACKWARD,
        tolerances=settings.allowed,
        golden=settings.golden,
        judge=settings.judge,
        match=settings.match,
        margin=margin_for(figures),
    )
    # the backend is without its options, which reduction may drop
    return replace(call, provenance=provenance(call, failure, notes), compiler=failure.link.backend)


def case_of_call(
    link: Link, graph_module: fx.GraphModule, values: Sequence[Any], context: Context, settings: Settings
) -> Case:
    """The call of ``graph_module`` with ``values`` through ``link``, of which no failure is known.
    Raises BackendUnreachable."""
    placeholders = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    inputs = tuple(real_value(value, index) for index, value in enumerate(values))
    dynamic_dims = tuple(symbolic_dims(node) for node in placeholders)
    reference = reference_of_link(link, settings)
    spec = RunSpec(
        backends.with_operators(reference, graph_module, setup=settings.setup),
        context,
        dynamic=any(dynamic_dims) or any(map(is_symbolic_number, placeholders)),
        dynamic_dims=dynamic_dims if any(dynamic_dims) else (),
    )
    return Case(graph_module, inputs, spec, provenance_here(graph_module, inputs))


def lost_note(failure: Failure) -> list[str]:
    """A note on what the program had that no run of ours has, and the failure may need, if any."""
    own: Any = torch.Tensor.__torch_function__
    lost = []
    for module in CONFIG_MODULES:
        options = torch_internals.changed_config(module).items()
        lost += [f"{module}.{name} was set" for name, value in options if not round_trips(value)]
    placeholders = failure.graph_module.graph.find_nodes(op="placeholder")
    for node, value in zip(placeholders, failure.inputs, strict=False):
        name = readable_name(str(node.target))
        if isinstance(value, torch.Tensor) and type(value._base) is type(value):
            lost.append(f"{name} was a view with a base of its own ({name}._base)")
        method = getattr(value, "__torch_function__", None)
        if getattr(method, "__func__", own.__func__) is not own.__func__:
            lost.append(f"{name} was a {type(value).__qualname__}, which has a __torch_function__")
    return [f"{LOST} {' and '.join(lost)}"] if lost else []


def reference_of_link(link: Link, settings: Settings) -> BackendRef:
    """How a fresh process gets the link's backend, or what a person is to fill in; looked for once.

    Raises BackendUnreachable if what the user says cannot be imported, or an option is no literal.
    """
    if settings not in link.references:
        own: dict[str, Any] = {"options": link.options, "mode": link.mode, "setup": settings.setup}
        try:
            found = backends.find_reference(link.backend, **own, reference=settings.reference)
        except NothingLeadsThere:
            found = backends.missing_backend(link.backend, **own)
        link.references[settings] = found
    return link.references[settings]


def provenance(call: Case, failure: Failure, notes: Iterable[str]) -> Provenance:
    """The call's, with what is known of its failure."""
    said = error_text(failure.error)
    where, line = user_line(failure.graph_module, said)
    return replace(
        call.provenance,
        captured_from=where,
        line=line,
        message="\n".join(said.splitlines()[:MESSAGE_LINES])[:MESSAGE_CHARACTERS],
        notes=tuple(notes),
        suspects=tuple(" ".join(group) for group in suspects(failure)),
    )


def suspects(failure: Failure) -> Suspects:
    """The nodes that the frames of the failure name, or the first with a wrong value: a hint, empty
    where that is not known."""
    if isinstance(failure.error, AccuracyError):
        return (failure.error.suspect_nodes,) if failure.error.suspect_nodes else ()
    with fence("no_suspects"):  # foreign objects in foreign frames
        return suspects_of(failure.error, filter(is_call, failure.graph_module.graph.nodes))
    return ()


def real_value(value: Any, seed: int) -> Any:
    return stand_in(value, seed) if is_without_values(value) else concrete(value)


def is_without_values(value: Any) -> bool:
    """Whether ``value`` is a tensor whose elements are nowhere: a fake one, or a freed one."""
    return isinstance(value, torch.Tensor) and (
        torch_internals.is_fake(value) or torch_internals.is_freed(value)
    )


def concrete(value: Any) -> Any:
    """The number behind a symbolic one in this run; 2 where none (0 and 1 are special to torch)."""
    number = torch_internals.hint(value)
    return 2 if number is None and value is not None else number


def stand_in(fake: torch.Tensor, seed: int) -> torch.Tensor:
    """A tensor of same shape, stride, dtype and device: normal values; 0 and 1 for non-floats."""
    with torch_internals.outside_tracing():
        shape = [concrete(size) for size in fake.shape]
        stride = [concrete(step) for step in fake.stride()]
        values = torch.empty_strided(shape, stride, dtype=fake.dtype, device=fake.device)
        if values.numel():
            generator = torch.Generator(values.device).manual_seed(seed)
            if values.dtype.is_floating_point or values.dtype.is_complex:
                normal = torch.randn(shape, generator=generator, device=values.device)
                values.copy_(normal.to(values.dtype))
            else:
                values.copy_(torch.randint(0, 2, shape, generator=generator, device=values.device))
        if isinstance(fake, nn.Parameter):
            return nn.Parameter(values, requires_grad=fake.requires_grad)
        return values.requires_grad_(fake.requires_grad)
