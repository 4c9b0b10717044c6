"""Inductor: its stages, its bisector, and the fx nodes behind its objects."""

from __future__ import annotations

import contextlib
import enum
import io
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from minidbg._torch.private_names import seen


@seen("2.11", "2.15")
def bisect_inductor(fails: Callable[[], bool]) -> tuple[str, str | None, int | None, str] | None:
    """Backend, subsystem, number and detail that torch's CompilerBisector names; None when it finds nothing at fault.

    ``fails()`` runs a program with ``torch.compile`` once, in a fork of this process: the bisector keeps its state in
    files, here of a temporary folder. It is known to fail with inductor and to pass in the stages before. Raises RuntimeError when the answers contradict each other.
    """
    from torch._inductor.compiler_bisector import CompilerBisector

    known: Any = CompilerBisector
    folder = tempfile.mkdtemp(prefix="minidbg-bisect-")
    known.in_process_cache = folder  # else it would delete a bisection that the user has begun
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints each step
            # the stages before inductor have passed already
            found = known.do_bisect(lambda: known.get_backend() != "inductor" or not fails())
    finally:
        known.in_process_cache = None
        known.bisection_enabled = False
        shutil.rmtree(folder, ignore_errors=True)
    if found is None:
        return None
    number = found.bisect_number if found.debug_info != found.subsystem else None  # an option is on or off
    detail = str(found.debug_info or "") if number is not None else ""
    return found.backend, found.subsystem, number, detail


class InductorStage(enum.Enum):
    """A stage of inductor, with the methods of ``GraphLowering`` that begin the next one."""

    LOWERING = ("codegen", "codegen_with_cpp_wrapper")
    CODEGEN = ("_compile_to_module_lines",)
    """Scheduling and code generation; the kernels are compiled after it."""


class StoppedAfterStage(Exception):
    """Inductor has come as far as it was wanted to."""


@contextlib.contextmanager
@seen("2.11", "2.15")
def inductor_stopped_after(stage: InductorStage) -> Iterator[list[str]]:
    """A block in which inductor stops after ``stage``; the list gets an item when it has."""
    from torch._inductor.graph import GraphLowering

    stopped: list[str] = []

    def stop(self: Any, *args: Any, **kwargs: Any) -> Any:
        stopped.append(stage.name)
        raise StoppedAfterStage(f"minidbg needs no more of this graph than {stage.name.lower()}")

    kept = {name: getattr(GraphLowering, name) for name in stage.value if hasattr(GraphLowering, name)}
    for name in kept:
        setattr(GraphLowering, name, stop)
    try:
        yield stopped
    finally:
        for name, function in kept.items():
            setattr(GraphLowering, name, function)


def fx_nodes_behind(value: object) -> Iterator[torch.fx.Node]:
    """The fx nodes that an object in a frame of a compiler stands for, none for most objects.

    A node stands for itself, inductor's IR for its ``origins``, its scheduler nodes and buffers for those of their IR, a match
    of its pattern matcher for ``nodes``.
    """
    if isinstance(value, torch.fx.Node):
        yield value
    elif _is_of_inductor(value, "scheduler", "BaseSchedulerNode"):
        for inner in value.get_nodes():  # type: ignore[attr-defined]
            yield from getattr(getattr(inner, "node", None), "origins", None) or ()
    elif _is_of_inductor(value, "scheduler", "SchedulerBuffer"):
        yield from getattr(getattr(value, "node", None), "origins", None) or ()
    elif _is_of_inductor(value, "ir", "IRNode"):
        yield from getattr(value, "origins", None) or ()
    elif _is_of_inductor(value, "pattern_matcher", "Match"):
        yield from value.nodes  # type: ignore[attr-defined]


def _is_of_inductor(value: object, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(f"torch._inductor.{module}"), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def names_of_sources(node: torch.fx.Node) -> list[str]:
    """Names of the nodes that a compiler's ``node`` was made from, the first maker last; none where it does not say.

    ``meta["from_node"]``, a list of ``NodeSource`` that may hold further ones, was seen in 2.11 to 2.15.
    """
    names, sources = [], list(node.meta.get("from_node") or ())
    while sources:
        source = sources.pop(0)
        names.append(str(getattr(source, "name", "")))
        sources += list(getattr(source, "from_node", None) or ())
    return names


@seen("2.13", "2.15")
def inductor_fallback_lines(operators: Sequence[str]) -> list[str]:
    """Statements after which inductor calls eager's kernels for the operators, of which it has no decomposition then.

    They belong before the first compilation; the table of decompositions may have been copied into a cache by an earlier one.
    """
    return [
        "from torch._inductor import decomposition, lowering",
        *(f"decomposition.decompositions.pop({name}, None)" for name in operators),
        "decomposition.fast_random_decomps.cache_clear()",
        *(f"lowering.make_fallback({name}, warn=False)" for name in operators),
    ]
