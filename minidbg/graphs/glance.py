"""Values taken down in microseconds for each input, for a record that is written before every compile.

Exact values go to the file as they are. Of large float tensors a few elements are looked at, which is enough to make
others of the same scale; NaN and infinities elsewhere are not seen.
"""

from __future__ import annotations

import math

from torch import Tensor

from minidbg.graphs.contents import Content, Contents, as_bytes, content_without_data
from minidbg.graphs.fills import Fill, How, is_opaque
from minidbg.graphs.layouts import Layout, View

LOOKED_AT = 32
"""Elements of a large float tensor."""


def stored_content(data: Tensor, key: str) -> Content:
    """The bytes of ``data``."""
    return Content(Fill(How.STORED, text=key), stored={key: as_bytes(data)})


def glanced_content(value: Tensor, view: View, layout: Layout, key: str) -> Content:
    """Normal numbers of about the scale of ``value``; of one sign where it has one; equal ones where they are equal."""
    if is_opaque(value.dtype) or not (value.is_floating_point() or value.is_complex()) or not value.numel():
        return content_without_data(value.dtype)
    some = elements(value)
    numbers = [float(abs(one)) if isinstance(one, complex) else float(one) for one in some]
    finite = [one for one in numbers if math.isfinite(one)]
    if len(finite) < len(numbers):
        return Content(Fill(How.NORMAL, (0.0, 1.0)) if finite else Fill(How.FULL, (numbers[0],)))
    if min(finite) == max(finite) and not value.is_complex():
        return Content(Fill(How.FULL, (finite[0],)))
    scale = float(f"{math.sqrt(sum(one * one for one in finite) / len(finite)):.1e}")
    if min(finite) >= 0 and not value.is_complex():
        return Content(Fill(How.MAGNITUDE, (scale,)))
    return Content(Fill(How.NORMAL, (0.0, scale)))


def elements(value: Tensor) -> list[float | complex]:
    """``LOOKED_AT`` elements, spread over the tensor without copying it."""
    step = max(1, value.numel() // LOOKED_AT)
    flat = value.as_strided((value.numel(),), (1,), value.storage_offset()) if is_dense(value) else None
    if flat is None:
        flat = value.select(0, 0).reshape(-1) if value.ndim > 1 else value.reshape(-1)
        step = max(1, flat.numel() // LOOKED_AT)
    found = flat[::step][:LOOKED_AT]
    return list((found.float() if found.dtype.itemsize < 4 else found).tolist())


def is_dense(value: Tensor) -> bool:
    """Whether the elements fill their part of the storage, in whatever order."""
    return value.is_contiguous() or _span(value) == value.numel()


def _span(value: Tensor) -> int:
    pairs = zip(value.shape, value.stride(), strict=True)
    return 1 + sum((size - 1) * step for size, step in pairs)


AT_A_GLANCE = Contents(stored_content, glanced_content)
