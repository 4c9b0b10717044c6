"""What minidbg knows about single backends, so that a question costs less. An answer is never another one for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from minidbg import _torch
from minidbg.case import Case
from minidbg.failure import Direction, Kind

BEFORE_INDUCTORS_CODEGEN = (
    "torch._inductor.fx_passes",
    "torch._inductor.pattern_matcher",
    "torch._inductor.decomposition",
    "torch._inductor.lowering",
    "torch._decomp",
    "torch._refs",
    "torch._meta_registrations",
)
"""Modules that run before inductor generates code, and not after."""
LOWERING_ERROR = "torch._inductor.exc.LoweringException"


@contextlib.contextmanager
def without_needless_stages(case: Case, *, wanted: bool = True) -> Iterator[list[str]]:
    """A block in which the backend may stop after the stage that the case's failure belongs to: a graph that comes through it has passed.

    The list gets an item when that happened; what was raised then means nothing.
    """
    if not wanted or not fails_before_inductors_codegen(case):
        yield []
        return
    with _torch.inductor_without_codegen() as stopped:
        yield stopped


def fails_before_inductors_codegen(case: Case) -> bool:
    """Whether the case expects a failure that inductor shows before it generates code for the graph."""
    signature = case.signature
    if (
        signature is None
        or signature.kind is not Kind.COMPILE
        or signature.direction is not Direction.FORWARD
    ):
        return False
    if case.backward or case.backend.expression.strip("'\"") != "inductor":
        return False
    innermost = signature.frames[0] if signature.frames else ""
    return LOWERING_ERROR in signature.types or innermost.startswith(BEFORE_INDUCTORS_CODEGEN)
