"""What one whole run of a graph shows about its values: what they are, which storages they share, who writes to them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.multiprocessing.reductions import StorageWeakRef

from minidbg.graphs.cloning import storage_key
from minidbg.graphs.effects import STATISTICS, op_name
from minidbg.graphs.facts import Fact, tensors_in


class EagerFailure(Exception):
    """The graph, or the part of it that was needed, fails in eager; ``node`` is where."""

    def __init__(self, node: fx.Node, error: Exception) -> None:
        self.node = node
        self.error = error
        super().__init__(f"{node.format_node()} failed in eager: {type(error).__name__}: {error}")


@dataclass(slots=True)
class Survey:
    """What one whole run showed."""

    facts: dict[fx.Node, Fact] = field(default_factory=dict)
    storages: dict[fx.Node, frozenset[int]] = field(default_factory=dict)
    """Serial numbers of the storages behind a value; kept only for graphs that may write."""
    writes: dict[int, list[int]] = field(default_factory=dict)
    """Storage serial to the positions that write to it."""
    failure: EagerFailure | None = None


class StorageSerials:
    """Numbers for storages that stay different when a storage dies and its address is used again."""

    def __init__(self) -> None:
        self._numbers: dict[int, tuple[int, Any]] = {}
        self._next = 0

    def serials(self, value: Any) -> frozenset[int]:
        return frozenset(self._serial(tensor) for tensor in tensors_in(value))

    def _serial(self, tensor: Tensor) -> int:
        key = storage_key(tensor)
        known = self._numbers.get(key)
        if known is not None and known[1]() is not None:
            return known[0]
        self._next += 1
        self._numbers[key] = (self._next, _weak_storage(tensor))
        return self._next


def _weak_storage(tensor: Tensor) -> Callable[[], Any]:
    try:
        reference: Any = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
    except (RuntimeError, NotImplementedError):  # as in storage_key: the tensor stands for its storage
        return weakref.ref(tensor)
    return lambda: None if reference.expired() else reference


def versions(node: fx.Node, targets: Iterable[fx.Node], env: dict[fx.Node, Any]) -> list[tuple[Tensor, Any]]:
    """Each tensor that may be written with what tells whether it was: its version, or a copy of small statistics."""
    tensors = [tensor for target in targets for tensor in tensors_in(env[target])]
    if op_name(node) in STATISTICS:
        return [(tensor, tensor.clone()) for tensor in tensors if tensor.dim() <= 1]
    return [(tensor, None if tensor.is_inference() else tensor._version) for tensor in tensors]


def written(node: fx.Node, before: Iterable[tuple[Tensor, Any]]) -> Iterator[Tensor]:
    for tensor, was in before:
        if isinstance(was, Tensor):
            if not torch.equal(was, tensor):
                yield tensor
        elif was is None or tensor._version != was:
            yield tensor
