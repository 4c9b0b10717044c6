"""Shape, stride and offset of a tensor as a contiguous base and a view, as a person writes it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minidbg.torch_internals import hint

CROP_BYTES = 1 << 20
"""Values that begin this far into their storage are moved to its beginning."""


@dataclass(frozen=True, slots=True)
class StridedLayout:
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0

    @property
    def span(self) -> int:
        """Elements of storage from its beginning to the last one used."""
        if 0 in self.shape:
            return self.offset
        last = sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))
        return self.offset + last + 1

    def seen_in(self, flat: Tensor) -> Tensor:
        return flat.as_strided(self.shape, self.stride, self.offset)

    @property
    def shows_all(self) -> bool:
        """Whether each element up to the last used is seen, by one index but for expanded dims."""
        # what has neither gaps nor overlaps is what a copy keeps the strides of
        once = [size if step else 1 for size, step in zip(self.shape, self.stride, strict=True)]
        like = torch.empty_strided(once, self.stride, device="meta")
        return self.offset == 0 and torch.empty_like(like).stride() == self.stride


def layout_of(value: Tensor, moved_bytes: int = 0) -> StridedLayout:
    """With the numbers of symbolic sizes, in a storage that begins ``moved_bytes`` later."""
    numbers = ([int(hint(number)) for number in many] for many in (value.shape, value.stride()))
    shape, stride = map(tuple, numbers)
    offset = int(hint(value.storage_offset())) - moved_bytes // value.dtype.itemsize
    return StridedLayout(shape, stride, offset)


def start_of(values: Sequence[Tensor]) -> int:
    """The bytes before all of ``values`` that a script leaves out; as many as keep them aligned."""
    start = min(int(hint(value.storage_offset())) * value.dtype.itemsize for value in values)
    return start // 1024 * 1024 if start > CROP_BYTES else 0


def view_of(layout: StridedLayout) -> tuple[tuple[int, ...], str]:
    """A contiguous base's shape, and the text of the first view of it giving ``layout`` on meta."""
    return next(found for found in _candidates(layout) if _gives(*found, layout))


def view_into(size: int, layout: StridedLayout) -> str:
    """The text of a view giving ``layout`` on a flat base ``[size]`` that other tensors share."""
    sizes = ", ".join(map(str, layout.shape)) or "()"
    texts = ("", f".view({sizes})", _strided(layout))
    return next(text for text in texts if _gives((size,), text, layout))


def _strided(layout: StridedLayout) -> str:
    offset = f", {layout.offset}" if layout.offset else ""
    return f".as_strided({layout.shape}, {layout.stride}{offset})"


def _gives(base: tuple[int, ...], text: str, layout: StridedLayout) -> bool:
    try:
        view: Tensor = eval(f"base{text}", {"base": torch.empty(base, device="meta")})
    except (RuntimeError, IndexError):
        return False
    return StridedLayout(tuple(view.shape), view.stride(), int(view.storage_offset())) == layout


def _candidates(layout: StridedLayout) -> Iterator[tuple[tuple[int, ...], str]]:
    shape, stride = layout.shape, layout.stride
    yield shape, ""
    if len(shape) > 1:
        dims = range(len(shape))
        order = sorted(dims, key=lambda dim: (-stride[dim], shape[dim] == 1))
        inverse = ", ".join(str(order.index(dim)) for dim in dims)
        permuted = tuple(shape[dim] for dim in order)
        yield permuted, ".t()" if len(dims) == 2 else f".permute({inverse})"
    if 0 in stride:
        base = tuple(1 if step == 0 else size for size, step in zip(shape, stride, strict=True))
        yield base, f".expand({', '.join(map(str, shape))})"
    elif shape and 0 not in shape and stride[-1] == 1:
        ratios = [outer // inner for outer, inner in itertools.pairwise(stride)]
        base = (layout.offset // stride[0] + shape[0], *ratios)
        parts, rest = [], layout.offset
        contiguous = torch.empty(base, device="meta").stride()
        for size, whole, step in zip(shape, base, contiguous, strict=True):
            start, rest = divmod(rest, step)
            parts.append(f"{start or ''}:{'' if start + size == whole else start + size}")
        while len(parts) > 1 and parts[-1] == ":":
            parts.pop()
        yield base, f"[{', '.join(parts)}]"
    yield (layout.span,), _strided(layout)
