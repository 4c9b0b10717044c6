"""What a value inside a graph is, without the value: enough to choose representatives and same-shaped stand-ins."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minidbg import _torch


class FactKind(enum.Enum):
    """What can be done with a value when the node that made it is gone."""

    TENSOR = enum.auto()
    """It becomes an input."""
    NUMBER = enum.auto()
    """An int, float or bool: it becomes an input where it is symbolic, else a constant."""
    PLAIN = enum.auto()
    """None, a dtype, a size...: it becomes a constant."""
    TUPLE = enum.auto()
    """A tuple or list of the others: each part for itself."""
    OPAQUE = enum.auto()
    """Nothing: a context object, a generator, a tensor inside a functorch level."""


PLAIN_TYPES = (
    str,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    type(None),
    slice,
    range,
    type(...),
)


@dataclass(frozen=True, slots=True)
class Fact:
    """One value: ``like`` is equal for values that could stand in for each other, ``kind_of_layout`` for similar ones."""

    kind: FactKind
    like: Hashable = None
    """Of a tensor: shape, dtype, device."""
    traits: Hashable = None
    """Of a tensor: what makes an op take another way for it; dtype, rank, order of strides, gradients, odd sizes."""
    plain: Any = None
    """The value itself, of a number or a constant."""
    parts: tuple[Fact, ...] = ()
    nbytes: int = 0


def fact_of(value: Any) -> Fact:
    """The fact about ``value``."""
    if isinstance(value, Tensor):
        return _tensor_fact(value)
    if isinstance(value, bool | int | float | complex | torch.SymInt | torch.SymFloat | torch.SymBool):
        return Fact(FactKind.NUMBER, type(value).__name__, type(value).__name__, value)
    if isinstance(value, PLAIN_TYPES):
        return Fact(FactKind.PLAIN, traits=repr(value), plain=value)
    if isinstance(value, tuple | list):
        parts = tuple(map(fact_of, value))
        return Fact(
            FactKind.TUPLE,
            tuple(part.like for part in parts),
            tuple(part.traits for part in parts),
            value if all(part.kind is FactKind.PLAIN for part in parts) else None,
            parts,
            sum(part.nbytes for part in parts),
        )
    return Fact(FactKind.OPAQUE, traits=type(value).__name__)


def _tensor_fact(value: Tensor) -> Fact:
    if _torch.is_inside_functorch(value):
        return Fact(FactKind.OPAQUE, traits="functorch level")
    shape = tuple(map(_torch.hint, value.shape))
    if value.layout is not torch.strided or value.is_nested:
        return Fact(
            FactKind.TENSOR,
            (shape, value.dtype, value.device, value.layout),
            (value.dtype, value.layout),
            nbytes=0,
        )
    traits = (
        value.dtype,
        value.device.type,
        len(shape),
        _order_of(shape, tuple(map(_torch.hint, value.stride()))),
        value.requires_grad,
        tuple(size if size < 2 else 2 for size in shape),
    )
    return Fact(
        FactKind.TENSOR,
        (shape, value.dtype, value.device),
        traits,
        nbytes=value.numel() * value.element_size(),
    )


def _order_of(shape: tuple[Any, ...], stride: tuple[Any, ...]) -> Hashable:
    """How the dimensions lie in memory: equal for any two contiguous tensors of a rank."""
    expected = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and step != expected:
            break
        expected *= size
    else:
        return "contiguous"
    order = sorted(range(len(stride)), key=lambda dim: -stride[dim])
    return tuple(order), tuple(step == 0 for step in stride)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in ``value``, tuples, lists and dicts opened."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part)
