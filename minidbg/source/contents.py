"""What values a base tensor gets in the text: a fitted distribution, a literal or stored bytes, and where NaN stands."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from minidbg import torch_internals
from minidbg.source.expressions import number, quoted
from minidbg.source.fills import Fill, FillKind, fit, is_opaque, literal_fill
from minidbg.source.specs import Exactness, StridedLayout, ViewExpression
from minidbg.torch_internals.devices import BROKEN

SMALL_ELEMENTS = 64
"""A tensor of this many elements or fewer is small: its values may stand in the text."""
FEW_PLACES = 8
"""NaN and infinities up to this number are written one by one, more of them as a stored mask."""

_EXACT_AS_FITTED = (FillKind.FULL, FillKind.LOWER, FillKind.UPPER, FillKind.LITERAL)


@dataclass(frozen=True, slots=True)
class Content:
    fill: Fill
    places: tuple[tuple[str, str], ...] = ()
    stored: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ValueReader:
    exact: Callable[[Tensor, str], Content]
    """For the values of a whole base, and the key under which they may be stored."""
    fitted: Callable[[Tensor, ViewExpression, StridedLayout, str], Content]
    """For a value that stands in for its base, through a view."""


def has_data(value: Tensor) -> bool:
    """Whether ``value`` holds numbers that can be read: not those of fake and meta tensors, of freed memory, nor of a device in error."""
    return not (
        value.device.type == "meta"
        or torch_internals.is_fake(value)
        or value.device in BROKEN
        or torch_internals.is_freed(value)
    )


RESCUED_VALUES: dict[int, Tensor] = {}
"""Values on the CPU for tensors of a device in error, by the identity of their storage, as a flight record holds them from before the error."""


def in_place_of(value: Tensor) -> Tensor | None:
    """A tensor of the same layout that can be read: ``value``, or what was seen of it; None where there is none."""
    if has_data(value):
        return value
    seen = RESCUED_VALUES.get(torch_internals.storage_identity(value)) if value.device in BROKEN else None
    fits = seen is not None and (seen.shape, seen.stride()) == (value.shape, value.stride())
    return seen if fits else None


def wanted_exact(value: Tensor, exactness: Exactness) -> bool:
    if exactness is Exactness.EXACT:
        return True
    is_index = not (value.is_floating_point() or value.is_complex())
    return exactness is Exactness.SMALL and (is_index or value.numel() <= SMALL_ELEMENTS)


def content_without_data(dtype: torch.dtype) -> Content:
    """For a fake or meta tensor: standard normal numbers, integers 0 and 1 (a safe index)."""
    if is_opaque(dtype):
        return Content(Fill(FillKind.BYTES))
    if dtype is torch.bool:
        return Content(Fill(FillKind.BOOLS, (0.5,)))
    if dtype.is_floating_point or dtype.is_complex:
        return Content(Fill(FillKind.NORMAL, (0.0, 1.0)))
    return Content(Fill(FillKind.INTEGERS, (0, 2)))


def fitted_content(value: Tensor, view: ViewExpression, layout: StridedLayout, key: str) -> Content:
    seen = _seen_base(value, view, layout)
    is_small = math.prod(view.base) <= SMALL_ELEMENTS
    fill = fit(seen, literal=is_small) if seen is not None else fit(value, structured=False, literal=is_small)
    if fill.kind is FillKind.LITERAL or (is_small and value.numel() <= FEW_PLACES and not all_finite(value)):
        return Content(literal_fill(base_data(value, view, layout)))
    if _holds_all(fill, value):
        return Content(fill)
    return _with_places(fill, base_data(value, view, layout), key)


def _seen_base(value: Tensor, view: ViewExpression, layout: StridedLayout) -> Tensor | None:
    """The base ``[*view.base]`` itself, on the memory of ``value``, where ``value`` shows all of it; else None."""
    if not view.text or view.text.startswith(".to("):
        return value
    shown = [size for size, step in zip(layout.shape, layout.stride, strict=True) if step != 0]
    if ".as_strided" in view.text or math.prod(shown) != math.prod(view.base) or 0 in view.base:
        return None
    start = int(value.storage_offset()) - layout.offset
    return value.as_strided(view.base, StridedLayout(view.base, ()).contiguous_stride, start)


def exact_content(data: Tensor, key: str) -> Content:
    """The values of ``data``, the whole base: in the text when they are few or follow a rule, else stored under ``key``."""
    if is_opaque(data.dtype):
        return stored_content(data, key)
    fill = fit(data)
    ruled = fill.kind in _EXACT_AS_FITTED or (fill.kind is FillKind.COUNT and not data.is_floating_point())
    if ruled and not _has_negative_zero(data) and _holds_all(fill, data):
        return Content(fill)
    return Content(literal_fill(data)) if data.numel() <= SMALL_ELEMENTS else stored_content(data, key)


def _holds_all(fill: Fill, value: Tensor) -> bool:
    return all_finite(value) or not all(map(cmath.isfinite, fill.numbers))


def as_bytes(data: Tensor) -> Tensor:
    flat = torch.empty(data.numel(), dtype=data.dtype)
    if data.numel():
        flat.copy_(data.detach().reshape(-1))
    return flat.view(torch.uint8)


def base_data(value: Tensor, view: ViewExpression, layout: StridedLayout) -> Tensor:
    """The base ``[*view.base]`` that shows ``value`` through ``view``; zeros where ``value`` does not look.

    The rest of the user's storage is none of a script's business.
    """
    if not view.text or view.text.startswith(".to("):
        return value.contiguous()
    flat = torch.zeros(math.prod(view.base), dtype=value.dtype, device=value.device)
    put(flat, value, layout)
    return flat.view(view.base)


def put(flat: Tensor, value: Tensor, layout: StridedLayout) -> None:
    if value.numel() == 0:
        return
    # By index: copy_ refuses a target in which two elements share their memory.
    numbers = torch.arange(flat.numel(), device=flat.device)
    places = numbers.as_strided(layout.shape, layout.stride, layout.offset)
    target, source = flat, value
    if flat.dtype.itemsize == 1 or is_opaque(flat.dtype):
        target, source = flat.view(torch.uint8), value.contiguous().view(torch.uint8)
        if flat.dtype.itemsize != 1:
            target = target.view(-1, flat.dtype.itemsize)
            source = source.reshape(-1, flat.dtype.itemsize)
    target[places.reshape(-1)] = source.reshape(-1, *target.shape[1:])


def all_finite(value: Tensor) -> bool:
    """Whether ``value`` holds neither NaN nor infinity; one pass without a mask when it does not."""
    if value.numel() == 0 or not (value.is_floating_point() or value.is_complex()) or is_opaque(value.dtype):
        return True
    value = _wide(_once(value))
    # The sum of float16 values may overflow where none of them is infinite; it is taken in float32.
    total = value.sum(dtype=torch.float32) if value.dtype.itemsize == 2 else value.sum()
    return bool(total.isfinite()) or bool(value.isfinite().all())


def _once(value: Tensor) -> Tensor:
    for dimension, (size, step) in enumerate(zip(value.shape, value.stride(), strict=True)):
        if step == 0 and size > 1:
            value = value.narrow(dimension, 0, 1)
    return value


def _wide(value: Tensor) -> Tensor:
    if value.dtype is torch.complex32:
        return value.to(torch.complex64)
    return value.float() if value.dtype.itemsize == 1 else value


def _with_places(fill: Fill, data: Tensor, key: str) -> Content:
    wide = _wide(data)
    mask = ~wide.isfinite()
    if int(mask.sum()) <= FEW_PLACES:
        rows = [tuple(row) for row in mask.nonzero().tolist()]
        places = tuple((", ".join(map(str, row)) or "()", number(wide[row].item())) for row in rows)
        return Content(fill, places)
    return _with_stored_places(fill, data, mask, key)


def _with_stored_places(fill: Fill, data: Tensor, mask: Tensor, key: str) -> Content:
    if data.is_complex():
        return stored_content(data, key)
    places, stored, wide = [], {}, _wide(data)
    for name, found in (("nan", wide.isnan()), ("inf", wide.isposinf()), ("-inf", wide.isneginf())):
        if bool(found.any()):
            mask_key = f"{key} is {name}"
            stored[mask_key] = as_bytes(found)
            shape = ", ".join(map(str, wide.shape))
            places.append((f"stored({quoted(mask_key)}, torch.bool).view({shape})", f'float("{name}")'))
    return Content(fill, tuple(places), stored)


def _has_negative_zero(data: Tensor) -> bool:
    if not data.is_floating_point():
        return data.is_complex() and data.numel() > 0
    wide = _wide(data)
    return bool((wide.signbit() & (wide == 0)).any())


EXACT_READER = ValueReader(exact_content, fitted_content)
"""Short texts, fitted distributions, NaN and infinities in their places."""


LOOKED_AT = 32
"""Elements of a large float tensor."""


def stored_content(data: Tensor, key: str) -> Content:
    return Content(Fill(FillKind.STORED, text=key), stored={key: as_bytes(data)})


def glanced_content(value: Tensor, view: ViewExpression, layout: StridedLayout, key: str) -> Content:
    """Normal numbers of about the scale of ``value``; of one sign where it has one; equal ones where they are equal."""
    if is_opaque(value.dtype) or not (value.is_floating_point() or value.is_complex()) or not value.numel():
        return content_without_data(value.dtype)
    some = elements(value)
    numbers = [float(abs(one)) if isinstance(one, complex) else float(one) for one in some]
    finite = [one for one in numbers if math.isfinite(one)]
    if len(finite) < len(numbers):
        return Content(Fill(FillKind.NORMAL, (0.0, 1.0)) if finite else Fill(FillKind.FULL, (numbers[0],)))
    if min(finite) == max(finite) and not value.is_complex():
        return Content(Fill(FillKind.FULL, (finite[0],)))
    scale = float(f"{math.sqrt(sum(one * one for one in finite) / len(finite)):.1e}")
    if min(finite) >= 0 and not value.is_complex():
        return Content(Fill(FillKind.MAGNITUDE, (scale,)))
    return Content(Fill(FillKind.NORMAL, (0.0, scale)))


def elements(value: Tensor) -> list[float | complex]:
    step = max(1, value.numel() // LOOKED_AT)
    if value.is_contiguous() or StridedLayout(tuple(value.shape), value.stride()).span == value.numel():
        flat = value.as_strided((value.numel(),), (1,), value.storage_offset())
    else:
        flat = value.select(0, 0).reshape(-1) if value.ndim > 1 else value.reshape(-1)
        step = max(1, flat.numel() // LOOKED_AT)
    found = flat[::step][:LOOKED_AT]
    return list((found.float() if found.dtype.itemsize < 4 else found).tolist())


SAMPLED_READER = ValueReader(stored_content, glanced_content)


def shown_content(data: Tensor, key: str) -> Content:
    """The bytes of ``data``: its own memory where its elements lie there in order, for who reads them before anybody writes to it."""
    if data.device.type != "cpu" or not data.is_contiguous() or not torch_internals.has_plain_memory(data):
        return stored_content(data, key)
    flat = data.detach().reshape(-1).view(torch.uint8) if data.numel() else torch.empty(0, dtype=torch.uint8)
    return Content(Fill(FillKind.STORED, text=key), stored={key: flat})


IN_PLACE = ValueReader(shown_content, glanced_content)
"""For values that are read at once: what can be is not copied."""
