"""Around the graph: what the error names before the reduction, which modes the failure can do without after it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from minidbg.case import Case, Context

WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{2,}")


def hints(case: Case) -> tuple[str, ...]:
    """Words of the error that may be nodes or ops of the graph, most telling first; the reducer looks them up.

    The error text is a hint and nothing more: each suspicion is asked of the oracle.
    """
    text = case.provenance.message
    if case.signature is not None:
        text = f"{text} {case.signature.message} {' '.join(case.signature.frames)}"
    return tuple(dict.fromkeys(WORD.findall(text)))


def simplify(case: Case, fails: Callable[[Case], bool], remaining: Callable[[], float]) -> Case:
    """``case`` without the modes and settings that its failure does not need. One oracle call each."""
    for change in CHANGES:
        for candidate in change(case):
            if remaining() > 0 and fails(candidate):
                case = candidate
                break
    return case


def without_backward(case: Case) -> Iterator[Case]:
    """The forward alone."""
    if case.backward:
        yield replace(case, backward=False)


def without_grad(case: Case) -> Iterator[Case]:
    """No input requires grad; and grad mode stays on, which is what a reader expects of plain code."""
    needs_grad = any(isinstance(value, torch.Tensor) and value.requires_grad for value in case.inputs)
    if needs_grad and not case.backward:
        inputs = tuple(value.detach() if isinstance(value, torch.Tensor) else value for value in case.inputs)
        yield replace(case, inputs=inputs, context=replace(case.context, grad=True, inference=False))


def without_modes(case: Case) -> Iterator[Case]:
    """Plain context first, then each mode for itself."""
    plain = replace(Context(), threads=case.context.threads, env=case.context.env)
    if case.context != plain:
        yield replace(case, context=plain)
        for name in (
            "grad",
            "inference",
            "autocast",
            "deterministic",
            "default_dtype",
            "matmul_precision",
            "config",
        ):
            default = getattr(plain, name)
            if getattr(case.context, name) != default:
                yield replace(case, context=replace(case.context, **{name: default}))


def without_dynamic(case: Case) -> Iterator[Case]:
    """Static shapes."""
    if case.dynamic is not False or case.dynamic_dims:
        yield replace(case, dynamic=False, dynamic_dims=())


def without_options(case: Case) -> Iterator[Case]:
    """The backend as it comes: without options and mode."""
    if case.backend.options or case.backend.mode:
        yield replace(case, backend=replace(case.backend, options={}, mode=None))


CHANGES: tuple[Callable[[Case], Iterator[Case]], ...] = (
    without_dynamic,
    without_backward,
    without_grad,
    without_modes,
    without_options,
)
