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
"""Modules that run before inductor schedules a graph, and not after."""
LOWERING_ERROR = "torch._inductor.exc.LoweringException"
BEFORE_INDUCTORS_KERNELS = (
    "torch._inductor.scheduler",
    "torch._inductor.codegen",
    "torch._inductor.ir",
    "torch._inductor.loop_body",
    "torch._inductor.bounds",
    "torch._inductor.dependencies",
    "torch._inductor.index_propagation",
    "torch._inductor.memory",
    "torch._inductor.ops_handler",
    "torch._inductor.sizevars",
)
"""Modules that have done their work when inductor begins to compile the kernels that it has generated."""


@contextlib.contextmanager
def without_needless_stages(case: Case, *, wanted: bool = True) -> Iterator[list[str]]:
    """Stop inductor after the last stage in which the expected failure can happen: a graph that comes through it has passed.

    The list gets an item when that happened; what was raised then means nothing.
    """
    stage = last_stage_needed(case) if wanted else None
    if stage is None:
        yield []
        return
    with _torch.inductor_stopped_after(stage) as stopped:
        yield stopped


def last_stage_needed(case: Case) -> _torch.InductorStage | None:
    """The last stage of inductor, short of all, in which the case's failure can happen."""
    signature = case.signature
    if (
        signature is None
        or signature.kind is not Kind.COMPILE
        or signature.direction is not Direction.FORWARD
    ):
        return None
    if case.backward or case.backend.expression.strip("'\"") != "inductor":
        return None
    own = [frame for frame in signature.frames if frame.startswith("torch._inductor.")]
    innermost = signature.frames[0] if signature.frames else ""
    if LOWERING_ERROR in signature.types or innermost.startswith(BEFORE_INDUCTORS_CODEGEN):
        return _torch.InductorStage.LOWERING
    if own and own[0].startswith(BEFORE_INDUCTORS_KERNELS):
        return _torch.InductorStage.CODEGEN
    return None
