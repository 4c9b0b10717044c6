"""Passes for small graphs, beyond nodes, inputs, outputs: plainer arguments, shapes, tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx

from minidbg import torch_internals
from minidbg.codegen.subclasses import is_constructed, plain_stand_in
from minidbg.core.outcome import Outcome, Verdict
from minidbg.fx import edit, nested
from minidbg.fx.effects import FactType, graph_attribute, is_call, tensors_in
from minidbg.fx.record import EagerFailure, Recording
from minidbg.reduction.edits import with_alike_inputs_merged
from minidbg.reduction.search import (
    ArgumentPlace,
    BudgetSpent,
    Candidate,
    GraphEdit,
    Pass,
    Search,
    last_that_holds,
    run_passes,
)
from minidbg.torch_internals.devices import place_of

Plainer: TypeAlias = Callable[[Any], Tensor | None]

# --- candidates ---


def with_inputs(
    search: Search,
    changes: Mapping[int, Any],
    how: Hashable,
    graph_module: fx.GraphModule | None = None,
) -> Candidate:
    """``best`` with other values for the inputs at these indices; ``how`` tells what was done from
    other ways to do it."""
    best = search.best
    inputs = tuple(changes.get(index, value) for index, value in enumerate(best.inputs))
    tokens = tuple((how, token) if index in changes else token for index, token in enumerate(best.tokens))
    return best.edited(graph_module or best.graph_module, inputs, tokens)


def _tensors(search: Search) -> list[tuple[int, Tensor]]:
    return [(index, value) for index, value in enumerate(search.best.inputs) if _is_plain(value)]


def _is_plain(value: Any) -> bool:
    return isinstance(value, Tensor) and not is_constructed(value)


def flagged_as(value: Tensor, made: Tensor) -> Tensor:
    """``made`` as a Parameter, or requiring gradients, where ``value`` does."""
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=value.requires_grad)
    return made.requires_grad_(value.requires_grad)


FEW_CALLS = 16
"""Calls up to which it is looked whether a candidate's results are as full."""


def is_alike(search: Search, candidate: Candidate) -> bool:
    """Whether each call's results are as full as in ``best``."""
    if place_of(candidate.inputs) != "cpu" or len(candidate.calls) > FEW_CALLS:
        return True
    after = Recording(candidate.graph_module, candidate.inputs, around=search.around)
    return after.failure is None and is_as_full(search.recording, after)


def is_as_full(before: Recording, after: Recording) -> bool:
    """Whether no call of ``after`` gives nothing, inf or NaN where it gave finite numbers before."""
    again = {node.name: node for node in after.nodes}
    pairs = [(node, again[node.name]) for node in before.nodes if is_call(node) and node.name in again]
    moments: list[list[tuple[int, fx.Node]]] = [[], []]
    for pair in pairs:
        facts = [run.facts.get(node) for run, node in zip((before, after), pair, strict=True)]
        if all(fact is not None and fact.type is not FactType.OPAQUE for fact in facts):
            for run, node, wanted in zip((before, after), pair, moments, strict=True):
                wanted.append((run.index[node] + 1, node))
    try:
        values = [run.values(wanted) for run, wanted in zip((before, after), moments, strict=True)]
    except EagerFailure:
        return False
    for results in zip(*values, strict=True):
        for old, new in zip(*(tensors_in([result]) for result in results), strict=False):
            with suppress(RuntimeError, NotImplementedError):  # a dtype or layout without these ops
                is_emptied = bool(old.numel()) and not new.numel()
                if is_emptied or (bool(old.isfinite().all()) and not bool(new.isfinite().all())):
                    return False
    return True


# --- passes ---


def all_then_each(search: Search, change: Plainer, how: str) -> Iterator[GraphEdit]:
    """What ``change`` makes of all inputs, then of each. It gives None for one that stays."""
    yield partial(_with_plainer, change=change, how=how)
    for index, value in enumerate(search.best.inputs):
        if change(value) is not None:
            yield partial(_with_plainer, change=change, how=how, only=index)


def _with_plainer(search: Search, change: Plainer, how: str, only: int | None = None) -> Candidate | None:
    values = {index: value for index, value in enumerate(search.best.inputs) if only in (None, index)}
    changes = {index: made for index, value in values.items() if (made := change(value)) is not None}
    return with_inputs(search, changes, how) if changes else None


def _of_plain_kind(value: Any) -> Tensor | None:
    """A plain tensor for a subclass, the local shard for a DTensor."""
    plain = plain_stand_in(value) if is_constructed(value) else None
    return None if plain is None else flagged_as(value, plain)


def lift_attributes(search: Search) -> Iterator[GraphEdit]:
    """Try inputs, which may be made plainer, in the place of tensors that the graph owns, of all of
    them or of each. Cost: one call where that does not matter."""
    yield _lifted
    for path in _attributes(search.best):
        yield partial(_lifted, only=path)


def _attributes(candidate: Candidate) -> dict[str, Tensor]:
    nodes = candidate.graph_module.graph.find_nodes(op="get_attr")
    held = {str(node.target): graph_attribute(node) for node in nodes}
    return {path: value for path, value in held.items() if isinstance(value, Tensor)}


def _lifted(search: Search, only: str = "") -> Candidate | None:
    best, held = search.best, _attributes(search.best)
    paths = [path for path in held if only in ("", path)]
    if not paths:
        return None
    tokens = (*best.tokens, *(("attribute", best.epoch, path) for path in paths))
    inputs = (*best.inputs, *(held[path] for path in paths))
    return best.edited(edit.with_attributes_lifted(best.graph_module, paths), inputs, tokens)


def drop_arguments(search: Search) -> Iterator[None]:
    """Try fewer constants in calls, then plainer ones. Cost: one call for each that eager takes."""
    yield None
    for propose in (nested.shorter_arguments, nested.simpler_constants):
        for name in [node.name for node in search.best.calls]:
            best = None
            while search.best is not best and (node := search.best.call(name)):
                best = search.best
                for place, changed, originals in propose(node):
                    first = best.rewrites.get((name, place), originals)  # the first original of a place stays
                    rewrites = {**best.rewrites, (name, place): first}
                    candidate = replace(_with_arguments_of(search, {node: changed}), rewrites=rewrites)
                    if is_alike(search, candidate) and search.consider(candidate) and search.best is not best:
                        break


def _with_arguments_of(search: Search, changed: Mapping[fx.Node, nested.Arguments]) -> Candidate:
    graph_module = edit.rewritten(
        search.best.graph_module, arguments=lambda node: changed.get(node, (node.args, node.kwargs))
    )
    return with_inputs(search, {}, "", graph_module)


VANISHED = (Verdict.GONE.exit_status, Verdict.CHANGED.exit_status)


def is_another_cause(search: Search) -> bool:
    """Whether a plainer argument has become the cause: the failure vanishes with the originals of
    all, or of one where all do not fit by now. Cost: one call where any was rewritten, and one for
    each if need be."""
    search.phase = "put back"
    rewrites = search.best.rewrites

    def status(places: Iterable[ArgumentPlace]) -> int:
        changed: dict[fx.Node, nested.Arguments] = {}
        for name, place in reversed(list(places)):
            if node := search.best.call(name):
                given = changed.get(node, (node.args, node.kwargs))
                changed[node] = nested.with_originals(place, rewrites[name, place], given)
        return search.answer(_with_arguments_of(search, changed)).exit_status

    if rewrites and status(rewrites) == Verdict.INVALID.exit_status:
        return any(status([place]) in VANISHED for place in rewrites)
    return bool(rewrites) and status(rewrites) in VANISHED


STEP_SIZES = (1, 2, 4, 8, 16)
"""Sizes tried first: most failures do not care, and what needs a multiple of 8 then keeps 8."""


def shrink_sizes(search: Search) -> Iterator[None]:
    """Make each size that occurs in a shape smaller, everywhere at once. Cost: one call for an
    irrelevant size, else about ``log2(size)``, later at most two each round."""
    yield None
    # where in memory a read is deadly is chance: no size is searched for exactly then
    least_gain = 2.0 if search.traits.dies else 32 / 31
    if torch_internals.has_kernel_launch(search.best.graph_module):  # it would write beyond a smaller tensor
        return
    for size in sorted(_sizes(search), reverse=True):
        if size in search.settled_sizes:
            again = () if search.traits.dies else sorted({1, search.settled_sizes[size]})
            any(search.consider(_resized(search, size, smaller)) for smaller in again)
            continue
        low, high = 0, size
        while (tried := _size_between(low, high, least_gain)) is not None:
            if search.consider(_resized(search, high, tried)):
                high = tried
            else:
                low = tried
        search.settled_sizes[high] = low


def _size_between(low: int, high: int, least_gain: float) -> int | None:
    """The size to try when ``low`` passes and ``high`` fails; None when ``high`` is as small as it
    gets, or ``least_gain`` times ``low`` at most. Powers of two first, and the one above:
    thresholds of kernels and vector units lie there."""
    if high - low <= 1 or high <= least_gain * low:
        return None
    following = next((step for step in STEP_SIZES if step > low), None)
    if following is not None:
        return following if following < high else (low + high) // 2
    if high > 2 * low:
        return 1 << (low.bit_length() + (high - 1).bit_length() - 1) // 2
    return low + 1 if low.bit_count() == 1 else (low + high) // 2


def _sizes(search: Search) -> set[int]:
    return {size for _, value in _tensors(search) for size in value.shape if size > 1}


def _resized(search: Search, old: int, new: int) -> Candidate | None:
    """Every size that is ``old`` becomes ``new``, and every int argument where that can be;
    multiples of it shrink alike if need be, and indices."""
    for among_arguments, scaled, with_indices in itertools.product(
        (True, False), (False, True), (False, True)
    ):
        sizes = {old: new}
        if scaled:
            sizes |= {size: size // old * new for size in _sizes(search) if size % old == 0}
            if len(sizes) == 1:
                continue
        candidate = _with_sizes(search, sizes, with_indices, sizes if among_arguments else {})
        if candidate is not None and search.is_valid(candidate) and is_alike(search, candidate):
            return candidate
    return None


def _with_sizes(
    search: Search, sizes: Mapping[int, int], with_indices: bool, arguments: Mapping[int, int]
) -> Candidate | None:
    changes: dict[int, Any] = {}
    for index, value in enumerate(search.best.inputs):
        if _is_plain(value) and (with_indices or any(size in sizes for size in value.shape)):
            try:
                changes[index] = _cropped(value, sizes)
            except RuntimeError:  # a sparse tensor has no corner
                return None
        elif type(value) is int and value in sizes:
            changes[index] = sizes[value]
    graph_module = _with_arguments(search, lambda value: nested.with_sizes(value, arguments))
    return with_inputs(search, changes, ("cropped", tuple(sorted(sizes.items()))), graph_module)


def _with_arguments(search: Search, change: Callable[[Any], Any]) -> fx.GraphModule:
    """The graph of ``best`` with changed arguments of each call, but for axes."""

    def changed(node: fx.Node) -> nested.Arguments:
        axes = nested.axes_of(node)
        args = (value if index in axes else change(value) for index, value in enumerate(node.args))
        return tuple(args), {
            key: value if key in axes else change(value) for key, value in node.kwargs.items()
        }

    return edit.rewritten(search.best.graph_module, arguments=changed)


def _cropped(value: Tensor, sizes: Mapping[int, int]) -> Tensor:
    """A corner of ``value``, laid out as it was; indices that would point outside come back in."""
    cut = value.detach()[tuple(slice(sizes.get(size, size)) for size in value.shape)].clone()
    if not value.dtype.is_floating_point and not value.dtype.is_complex and value.dtype is not torch.bool:
        limit = max(sizes)
        if cut.numel() and int(cut.to(torch.int64).max()) < limit:
            # through int64: torch has no clamp of uint16 and its like
            cut = indices_within(cut.to(torch.int64), max(0, sizes[limit] - 1)).to(value.dtype)
    return flagged_as(value, cut)


def are_distinct(value: Tensor) -> bool:
    """Whether an input holds whole numbers, none of them twice: they may be places to write to."""
    is_whole = not (value.dtype.is_floating_point or value.dtype.is_complex or value.dtype is torch.bool)
    if not is_whole or value.layout is not torch.strided or value.numel() < 2 or value.is_meta:
        return False
    try:
        return int(torch.unique(value.to(torch.int64)).numel()) == value.numel()
    except RuntimeError:  # a dtype without numbers
        return False


def indices_within(indices: Tensor, most: int) -> Tensor:
    """Indices, of int64, of at most ``most``; different ones stay so where there is room."""
    inside = indices.clamp(max=most)
    if are_distinct(indices) and not are_distinct(inside) and indices.numel() <= most + 1:
        return indices.flatten().argsort().argsort().reshape(indices.shape)
    return inside


def plain_dtypes(search: Search) -> Iterator[GraphEdit]:
    """Try float32 for each other floating dtype, in inputs and arguments. Cost: one call each."""
    for dtype in sorted({value.dtype for _, value in _tensors(search)}, key=str):
        if dtype.is_floating_point and dtype is not torch.float32:
            yield partial(_with_dtype, old=dtype)


def _with_dtype(search: Search, old: torch.dtype) -> Candidate:
    changes = {
        index: flagged_as(value, value.detach().to(torch.float32))
        for index, value in _tensors(search)
        if value.dtype is old
    }

    def plainer(value: Any) -> Any:
        return fx.node.map_aggregate(value, lambda part: torch.float32 if part is old else part)

    return with_inputs(search, changes, "float32", _with_arguments(search, plainer))


def plain_tensors(search: Search) -> Iterator[GraphEdit]:
    """Try inputs without gradients, as no Parameters, and contiguous; all at once, then each."""
    yield from all_then_each(search, _without_grad, "no grad")
    if not torch_internals.has_kernel_launch(search.best.graph_module):  # strides are among its arguments
        yield from all_then_each(search, _contiguous, "contiguous")


def _without_grad(value: Any) -> Tensor | None:
    if not _is_plain(value):
        return None
    return value.detach() if value.requires_grad or isinstance(value, torch.nn.Parameter) else None


def _contiguous(value: Any) -> Tensor | None:
    if not _is_plain(value) or _is_plainly_laid(value):
        return None
    plain = torch.empty(value.shape, dtype=value.dtype, device=value.device).copy_(value.detach())
    return flagged_as(value, plain)


def _is_plainly_laid(value: Tensor) -> bool:
    """Whether a new tensor of this shape has these strides; with a size 1 others are contiguous."""
    return (
        value.layout is not torch.strided
        or value.stride() == torch.empty(value.shape, device="meta").stride()
    )


def plainness(candidate: Candidate) -> tuple[float, ...]:
    """What these passes make smaller, most important first: attributes, subclasses, arguments,
    elements, odd kinds of tensors, constants."""
    tensors = [value for value in candidate.inputs if isinstance(value, Tensor)]
    modules = sum(
        len(list(graph_attribute(node).modules())) for node in candidate.calls if node.op == "call_module"
    )
    arguments = [value for node in candidate.calls for value in (*node.args, *node.kwargs.values())]
    return (
        modules,
        len(_attributes(candidate)),
        sum(map(is_constructed, tensors)),
        len(arguments),
        sum(value.numel() for value in tensors),
        sum(value.dtype.is_floating_point and value.dtype is not torch.float32 for value in tensors),
        sum(value.requires_grad + isinstance(value, torch.nn.Parameter) for value in tensors),
        sum(not _is_plainly_laid(value) for value in tensors),
        nested.weight_of(arguments),
    )


SIMPLIFYING: tuple[tuple[str, Pass], ...] = (
    ("attributes", lift_attributes),
    ("kinds", partial(all_then_each, change=_of_plain_kind, how="plain")),
    ("arguments", drop_arguments),
    ("sizes", shrink_sizes),
    ("dtypes", plain_dtypes),
    ("tensors", plain_tensors),
    ("alike inputs", lambda search: iter([with_alike_inputs_merged])),
)

# --- all at once ---

OF_INPUTS = tuple(row for row in SIMPLIFYING if row[0] in ("kinds", "sizes", "dtypes", "tensors"))
"""Passes whose changes most failures do not care for: all of them together are worth a question."""
MOST_SIMPLIFIED = 200


def simplify_inputs_at_once(search: Search) -> Iterator[None]:
    """Ask for the plainest inputs that eager takes, then for as much of the way as still fails: of
    what those passes would accept in turn if every candidate failed. Cost: one call if inputs do
    not matter, not one per size and stride; else ``log2(steps)`` more."""
    yield None
    optimist = Search(
        search.best,
        lambda candidates: [Outcome(Verdict.REPRODUCES)] * len(candidates),
        max_calls=MOST_SIMPLIFIED,
        around=search.around,
        plainness=plainness,
    )
    with suppress(BudgetSpent):
        run_passes(optimist, OF_INPUTS)
    steps = optimist.steps
    if len(steps) > 1 and not search.consider(steps[-1]):
        last_that_holds(lambda index: search.consider(steps[index]), -1, len(steps) - 1)
