"""Whether smaller inputs still leave something to be computed, and whether indices still are places of their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, fx

from minidbg.fx.effects import FactKind, is_call, tensors_in
from minidbg.fx.record import Recording
from minidbg.fx.runs import EagerFailure


def is_as_full(before: Recording, after: Recording) -> bool:
    """Whether no call of ``after`` gives nothing, or an infinity or NaN, where it gave finite numbers before."""
    again = {node.name: node for node in after.nodes}
    pairs = [(node, again[node.name]) for node in before.nodes if is_call(node) and node.name in again]
    try:
        sides = [_by_index(run, [pair[side] for pair in pairs]) for side, run in enumerate((before, after))]
    except EagerFailure:
        return False
    return all(
        _is_as_full(one, two)
        for index in sides[0].keys() & sides[1].keys()
        for one, two in zip(sides[0][index], sides[1][index], strict=False)
    )


def _by_index(recording: Recording, nodes: Sequence[fx.Node]) -> dict[int, list[Tensor]]:
    known = [
        (index, node)
        for index, node in enumerate(nodes)
        if node in recording.facts and recording.facts[node].kind is not FactKind.OPAQUE
    ]
    values = recording.values([(recording.index[node] + 1, node) for _, node in known])
    return {index: list(tensors_in([value])) for (index, _), value in zip(known, values, strict=True)}


def _is_as_full(before: Tensor, after: Tensor) -> bool:
    try:
        if before.numel() and not after.numel():
            return False
        return not bool(before.isfinite().all()) or bool(after.isfinite().all())
    except (RuntimeError, NotImplementedError):  # a dtype or layout without these ops
        return True


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
