"""Changes of a program that leave its graph as it is: options and modes of its backend, symbolic sizes, one thread, another backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from minidbg import _torch, references
from minidbg.case import CallPath, Case

INDUCTOR_OPTIONS: Mapping[str, Any] = {
    "emulate_precision_casts": True,
    "pattern_matcher": False,
    "joint_graph_constant_folding": False,
    "layout_optimization": False,
    "comprehensive_padding": False,
    "split_reductions": False,
    "loop_ordering_after_fusion": False,
    "inplace_buffers": False,
    "allow_buffer_reuse": False,
    "epilogue_fusion": False,
    "max_fusion_size": 1,
    "cpp.simdlen": 1,
    "size_asserts": False,
    "use_pre_grad_passes": False,
    "use_joint_graph_passes": False,
    "use_post_grad_passes": False,
}
"""Documented switches of inductor that turn something off, at about what they cost, the cheapest first."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the user's program, and the capture as it then runs."""

    what: str
    """In a few words: ``.contiguous() before cumsum``."""
    lines: tuple[str, ...]
    """To write into the program."""
    where: str
    """``train.py:41``, or a sentence."""
    case: Case
    changes_graph: bool = False
    """Whether the graph computes in another way, so that its eager results are compared with those before."""


WHERE = "where torch.compile is called"


def inductor_options(case: Case) -> Mapping[str, Any]:
    """The switches that this torch has and the program has not set; none for another backend."""
    if case.backend.name != "inductor":
        return {}
    known = {*_torch.inductor_option_names()}.difference(case.backend.options)
    return {name: value for name, value in INDUCTOR_OPTIONS.items() if name in known}


def with_options(case: Case, options: Mapping[str, Any]) -> Change:
    given = {**case.backend.options, **options}
    what = f"options={dict(options)!r}"
    line = f"torch.compile(..., backend={case.backend.expression}, options={given!r})"
    return Change(what, (line,), WHERE, with_backend(case, options=given, mode=None))


def with_backend(case: Case, **more: Any) -> Case:
    """The case with other options of its backend."""
    return replace(case, backend=replace(case.backend, **more), call=CallPath.TORCH_COMPILE)


def without_own_settings(case: Case) -> Iterator[Change]:
    """The program's own mode and options, one left out at a time."""
    expression = case.backend.expression
    if case.backend.mode:
        line = f"torch.compile(..., backend={expression})"
        yield Change(f"without mode={case.backend.mode!r}", (line,), WHERE, with_backend(case, mode=None))
    for name in case.backend.options:
        rest = {key: value for key, value in case.backend.options.items() if key != name}
        line = f"torch.compile(..., backend={expression}" + (f", options={rest!r})" if rest else ")")
        yield Change(f"without the option {name!r}", (line,), WHERE, with_backend(case, options=rest))


def with_other_sizes(case: Case) -> Iterator[Change]:
    """All sizes symbolic, or all of them numbers."""
    symbolic = any(case.dynamic_dims) or case.dynamic
    other = replace(case, dynamic=not symbolic, dynamic_dims=(), call=CallPath.TORCH_COMPILE)
    cost = "a compilation for each size" if symbolic else "one compilation for many sizes"
    line = f"torch.compile(..., dynamic={not symbolic})  # {cost}"
    yield Change(f"dynamic={not symbolic}", (line,), WHERE, other)


def with_one_thread(case: Case) -> Iterator[Change]:
    """One thread, for a failure that several threads are part of."""
    if case.context.threads_matter and case.context.threads != 1:
        changed = replace(case, context=replace(case.context, threads=1))
        yield Change("one thread", ("torch.set_num_threads(1)",), "before the first call", changed)


def in_lite_mode(case: Case) -> Iterator[Change]:
    """The mode of inductor in which each op falls back to eager's kernel and nothing is fused."""
    if case.backend.name == "inductor" and "lite" in _torch.inductor_modes():
        line = f'torch.compile(..., backend={case.backend.expression}, mode="lite")'
        yield Change('mode="lite"', (line,), WHERE, with_backend(case, options={}, mode="lite"))


def with_other_backends(case: Case) -> Iterator[Change]:
    """This graph through a backend that compiles nothing; the program's other graphs are still compiled."""
    for name in ("aot_eager", "eager"):
        line = f'torch.compile(..., backend=minidbg.wrap([{case.backend.expression}, "{name}"]))'
        changed = replace(case, backend=references.find(name), compiler=name, call=CallPath.TORCH_COMPILE)
        yield Change(f"{name} for this graph", (line,), WHERE, changed)
