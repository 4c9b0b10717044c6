"""Shape, stride and storage offset of a tensor as a plain base tensor and a view of it, in idiomatic text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CROP_BYTES = 1 << 20
"""A view that starts this far into a much larger storage is moved to its beginning, keeping its alignment."""
ALIGNMENT = 64
"""Elements; an offset is moved by multiples of this."""


@dataclass(frozen=True, slots=True)
class Layout:
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

    def cropped(self, itemsize: int) -> Layout:
        """This layout without the unused gigabytes before it."""
        used = self.span - self.offset
        if self.offset * itemsize <= CROP_BYTES or self.offset < 4 * used:
            return self
        return Layout(self.shape, self.stride, self.offset % ALIGNMENT)


@dataclass(frozen=True, slots=True)
class View:
    """``base`` is the shape of a new contiguous tensor; ``text`` follows its expression: ``.t()``, or nothing."""

    base: tuple[int, ...]
    text: str


def view_of(layout: Layout) -> View:
    """The most readable base and view that give exactly ``layout``."""
    if layout.offset == 0 and layout.stride == layout.contiguous_stride:
        return View(layout.shape, "")
    for view in _candidates(layout):
        if _gives(view, layout):
            return view
    return generic_view(layout)


def generic_view(layout: Layout, base: tuple[int, ...] | None = None) -> View:
    """``as_strided`` of a flat base (or of ``base``): right for every layout."""
    return View(
        base or (max(layout.span, 1),) if 0 not in layout.shape else base or (layout.span,),
        f".as_strided({tuple(layout.shape)}, {tuple(layout.stride)}"
        + (f", {layout.offset})" if layout.offset else ")"),
    )


def view_into(base: tuple[int, ...], layout: Layout) -> View:
    """The most readable view that gives ``layout`` on a base that other inputs share."""
    size = ", ".join(map(str, layout.shape)) or "()"
    texts = ["", f".view({size})", ".t()", *_slice_texts(base, layout)]
    if layout.stride == layout.contiguous_stride and layout.shape:
        flat = "" if len(base) == 1 else ".flatten()"
        part = f"{flat}[{layout.offset or ''}:{layout.span}]"
        texts.append(part if len(layout.shape) == 1 else f"{part}.view({size})")
    for text in texts:
        view = View(base, text)
        if _gives(view, layout):
            return view
    return generic_view(layout, base)


def _gives(view: View, layout: Layout) -> bool:
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


def _candidates(layout: Layout) -> Iterator[View]:
    shape = layout.shape
    yield View(shape, "")
    if len(shape) == 4:
        yield View(shape, ".to(memory_format=torch.channels_last)")
    if len(shape) == 5:
        yield View(shape, ".to(memory_format=torch.channels_last_3d)")
    if len(shape) > 1:
        yield _permuted(layout)
    if 0 in layout.stride:
        yield _expanded(layout)
    yield from _sliced(layout)


def _permuted(layout: Layout) -> View:
    dims = range(len(layout.shape))
    order = sorted(dims, key=lambda dim: (-layout.stride[dim], dim))
    base = tuple(layout.shape[dim] for dim in order)
    inverse = tuple(order.index(dim) for dim in dims)
    moved = [dim for dim in dims if inverse[dim] != dim]
    if len(dims) == 2:
        return View(base, ".t()")
    if len(moved) == 2:
        return View(base, f".transpose({moved[0]}, {moved[1]})")
    return View(base, f".permute({', '.join(map(str, inverse))})")


def _expanded(layout: Layout) -> View:
    base = tuple(1 if step == 0 else size for size, step in zip(layout.shape, layout.stride, strict=True))
    return View(base, f".expand({', '.join(map(str, layout.shape))})")


def _sliced(layout: Layout) -> Iterator[View]:
    """A part of a larger contiguous tensor, whose sizes follow from the ratios of the strides."""
    stride, shape = layout.stride, layout.shape
    if not shape or 0 in stride or 0 in shape or stride[-1] != 1:
        return
    ratios = [outer // inner for outer, inner in itertools.pairwise(stride)]
    base = (layout.offset // stride[0] + shape[0], *ratios)
    for text in _slice_texts(base, layout):
        yield View(base, text)


def _slice_texts(base: Sequence[int], layout: Layout) -> list[str]:
    if len(base) != len(layout.shape) or not base or math.prod(base) == 0:
        return []
    parts, rest = [], layout.offset
    for size, whole, step in zip(layout.shape, base, Layout(tuple(base), ()).contiguous_stride, strict=True):
        start, rest = divmod(rest, step)
        stop = start + size
        parts.append(":" if (start, stop) == (0, whole) else f"{start or ''}:{'' if stop == whole else stop}")
    while len(parts) > 1 and parts[-1] == ":":
        parts.pop()
    return [f"[{', '.join(parts)}]"]
