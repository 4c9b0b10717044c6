"""``InputSpec``: what one input of a graph is; its shape, stride and offset as a base tensor and a view of it."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from minidbg.graphs.fills import Fill

CROP_BYTES = 1 << 20
"""A view that starts this far into a much larger storage is moved to its beginning, keeping its alignment."""
ALIGNMENT = 64
"""Elements; an offset is moved by multiples of this."""


@dataclass(frozen=True, slots=True)
class StridedLayout:
    """What a tensor's strides say, without its data."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0

    @property
    def span(self) -> int:
        """Elements of storage from its beginning to the last one used."""
        if 0 in self.shape:
            return self.offset
        return (
            self.offset
            + 1
            + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        )

    @property
    def contiguous_stride(self) -> tuple[int, ...]:
        """The strides that a new tensor of this shape would have."""
        steps, step = [], 1
        for size in reversed(self.shape):
            steps.append(step)
            step *= max(size, 1)
        return tuple(reversed(steps))

    def cropped(self, itemsize: int) -> StridedLayout:
        """This layout without the unused gigabytes before it."""
        used = self.span - self.offset
        if self.offset * itemsize <= CROP_BYTES or self.offset < 4 * used:
            return self
        return StridedLayout(self.shape, self.stride, self.offset % ALIGNMENT)


@dataclass(frozen=True, slots=True)
class ViewExpression:
    """``base`` is the shape of a new contiguous tensor; ``text`` follows its expression: ``.t()``, or nothing."""

    base: tuple[int, ...]
    text: str


def view_of(layout: StridedLayout) -> ViewExpression:
    """The most readable base and view that give exactly ``layout``."""
    if layout.offset == 0 and layout.stride == layout.contiguous_stride:
        return ViewExpression(layout.shape, "")
    for view in _candidates(layout):
        if _gives(view, layout):
            return view
    return generic_view(layout)


def generic_view(layout: StridedLayout, base: tuple[int, ...] | None = None) -> ViewExpression:
    """``as_strided`` of a flat base (or of ``base``): right for every layout."""
    return ViewExpression(
        base or (max(layout.span, 1),) if 0 not in layout.shape else base or (layout.span,),
        f".as_strided({tuple(layout.shape)}, {tuple(layout.stride)}"
        + (f", {layout.offset})" if layout.offset else ")"),
    )


def view_into(base: tuple[int, ...], layout: StridedLayout) -> ViewExpression:
    """The most readable view that gives ``layout`` on a base that other inputs share."""
    size = ", ".join(map(str, layout.shape)) or "()"
    texts = ["", f".view({size})", ".t()", *_slice_texts(base, layout)]
    if layout.stride == layout.contiguous_stride and layout.shape:
        flat = "" if len(base) == 1 else ".flatten()"
        part = f"{flat}[{layout.offset or ''}:{layout.span}]"
        texts.append(part if len(layout.shape) == 1 else f"{part}.view({size})")
    for text in texts:
        view = ViewExpression(base, text)
        if _gives(view, layout):
            return view
    return generic_view(layout, base)


def _gives(view: ViewExpression, layout: StridedLayout) -> bool:
    """Whether ``view`` really has ``layout``, tried on a tensor without data."""
    base = torch.empty(view.base, device="meta")
    try:
        found = _apply(base, view.text)
    except (RuntimeError, IndexError):
        return False
    return (tuple(found.shape), found.stride(), found.storage_offset()) == (
        layout.shape,
        layout.stride,
        layout.offset,
    )


def _apply(base: Tensor, text: str) -> Tensor:
    found: Tensor = eval(f"base{text}", {"torch": torch, "base": base})
    return found


def _candidates(layout: StridedLayout) -> Iterator[ViewExpression]:
    shape = layout.shape
    yield ViewExpression(shape, "")
    if len(shape) == 4:
        yield ViewExpression(shape, ".to(memory_format=torch.channels_last)")
    if len(shape) == 5:
        yield ViewExpression(shape, ".to(memory_format=torch.channels_last_3d)")
    if len(shape) > 1:
        yield _permuted(layout)
    if 0 in layout.stride:
        yield _expanded(layout)
    yield from _sliced(layout)


def _permuted(layout: StridedLayout) -> ViewExpression:
    dims = range(len(layout.shape))
    order = sorted(dims, key=lambda dim: (-layout.stride[dim], dim))
    base = tuple(layout.shape[dim] for dim in order)
    inverse = tuple(order.index(dim) for dim in dims)
    moved = [dim for dim in dims if inverse[dim] != dim]
    if len(dims) == 2:
        return ViewExpression(base, ".t()")
    if len(moved) == 2:
        return ViewExpression(base, f".transpose({moved[0]}, {moved[1]})")
    return ViewExpression(base, f".permute({', '.join(map(str, inverse))})")


def _expanded(layout: StridedLayout) -> ViewExpression:
    base = tuple(1 if step == 0 else size for size, step in zip(layout.shape, layout.stride, strict=True))
    return ViewExpression(base, f".expand({', '.join(map(str, layout.shape))})")


def _sliced(layout: StridedLayout) -> Iterator[ViewExpression]:
    """A part of a larger contiguous tensor, whose sizes follow from the ratios of the strides."""
    stride, shape = layout.stride, layout.shape
    if not shape or 0 in stride or 0 in shape or stride[-1] != 1:
        return
    ratios = [outer // inner for outer, inner in itertools.pairwise(stride)]
    base = (layout.offset // stride[0] + shape[0], *ratios)
    for text in _slice_texts(base, layout):
        yield ViewExpression(base, text)


def _slice_texts(base: Sequence[int], layout: StridedLayout) -> list[str]:
    if len(base) != len(layout.shape) or not base or math.prod(base) == 0:
        return []
    parts, rest = [], layout.offset
    for size, whole, step in zip(
        layout.shape, base, StridedLayout(tuple(base), ()).contiguous_stride, strict=True
    ):
        start, rest = divmod(rest, step)
        stop = start + size
        parts.append(":" if (start, stop) == (0, whole) else f"{start or ''}:{'' if stop == whole else stop}")
    while len(parts) > 1 and parts[-1] == ":":
        parts.pop()
    return [f"[{', '.join(parts)}]"]


class Exactness(enum.StrEnum):
    """How faithful the values of a script's inputs are. Seeded first: weights of a private model stay where they are."""

    SEEDED = "seeded"
    """Random values of the same distribution and range."""
    SMALL = "small"
    """Integers, booleans and small tensors as they were, the rest seeded."""
    EXACT = "exact"
    """All values as they were."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input.

    A tensor is ``view`` (text such as ``.t()``) of a contiguous ``base`` ``[*base_shape]`` of ``base_dtype`` filled by ``fill``.
    Usually ``base`` is the input's own name; inputs that share a storage name the same base, which is no input then.
    """

    name: str
    fill: Fill
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    storage_offset: int = 0
    dtype: torch.dtype | None = None
    """None: no tensor; ``fill`` is the text of a plain value."""
    device: str = "cpu"
    requires_grad: bool = False
    is_leaf: bool = True
    is_parameter: bool = False
    is_inference: bool = False
    is_conj: bool = False
    is_neg: bool = False
    layout: torch.layout = torch.strided
    base: str = ""
    base_shape: tuple[int, ...] = ()
    base_dtype: torch.dtype | None = None
    view: str = ""
    places: tuple[tuple[str, str], ...] = ()
    """Where the base holds NaN or infinities: index and value, as text."""
    same_as: str = ""
    """The earlier input that is this very object."""
    dynamic_dims: tuple[int, ...] = ()
    parts: tuple[InputSpec, ...] = ()
    """Of a tensor subclass: what ``fill.text`` makes it of, made before it."""
    imports: tuple[str, ...] = ()
    """Statements that the text needs beside ``import torch``."""
    stored: Mapping[str, Tensor] = field(default_factory=dict, compare=False, repr=False)
    """What the text reads from the .safetensors file, by key: uint8 ``[n]`` on the cpu."""

    @property
    def is_shared(self) -> bool:
        """Whether the base is a variable of its own, used by several inputs."""
        return self.dtype is not None and self.base != self.name
