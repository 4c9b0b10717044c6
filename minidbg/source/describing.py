"""From live values to input specs, storages that several inputs share included."""

from __future__ import annotations

import itertools
import keyword
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from minidbg import torch_internals
from minidbg.fx.ranks import imports_of, shared_text
from minidbg.source import origins
from minidbg.source.contents import (
    EXACT_READER,
    SMALL_ELEMENTS,
    Content,
    ValueReader,
    base_data,
    content_without_data,
    has_data,
    in_place_of,
    put,
    wanted_exact,
)
from minidbg.source.expressions import literal
from minidbg.source.fills import Fill, FillKind
from minidbg.source.specs import (
    CROP_BYTES,
    Exactness,
    InputSpec,
    StridedLayout,
    ViewExpression,
    all_imports_of,
    construction_of,
    exactness_of_part,
    generic_view,
    is_constructed,
    view_into,
    view_of,
)
from minidbg.words.errors import CannotWrite

RESERVED = ("torch", "device", "stored", "inputs", "float", "complex")
"""Names that the text of ``inputs()`` uses itself."""


def describe(
    values: Sequence[Any],
    names: Sequence[str],
    exactness: Exactness = Exactness.SEEDED,
    stored_sink: MutableMapping[str, Tensor] | None = None,
    *,
    dynamic_dims: Sequence[Sequence[int]] = (),
    contents: ValueReader = EXACT_READER,
) -> tuple[InputSpec, ...]:
    """A spec for each value, in order; the values are only read. ``contents`` says how they are looked at.

    ``stored_sink`` receives what must lie in the .safetensors file: uint8 ``[n]`` by key. Raises CannotWrite for a value that
    has no form in a script (a tensor subclass, an object): it is never silently replaced by another.
    """
    # A warning of torch's about a dtype, turned into an error by the user's filters, would take the place of the failure.
    with torch.no_grad(), torch_internals.without_modes(), torch_internals.in_silence():
        hints = [torch_internals.hint(value) for value in values]
        specs = list(_describe_all(hints, usable_names(names), _Look(exactness, contents), {}))
    if dynamic_dims:
        dims = map(tuple, dynamic_dims)
        specs = [replace(spec, dynamic_dims=some) for spec, some in zip(specs, dims, strict=True)]
    if stored_sink is not None:
        for spec in specs:
            stored_sink.update(spec.stored)
    return tuple(specs)


def bytes_to_store(values: Sequence[Any], exactness: Exactness) -> int:
    """About how many bytes of ``values`` a script of that exactness stores, before any is copied."""
    sizes: dict[int, int] = {}
    for value in values:
        if is_constructed(value):
            with suppress(CannotWrite):  # which describe() says, by the input's name
                parts = construction_of(value, "an input").parts
                sizes[id(value)] = bytes_to_store(list(parts.values()), exactness)
        elif isinstance(value, Tensor) and value.layout is torch.strided and wanted_exact(value, exactness):
            size = value.numel() * value.dtype.itemsize if value.numel() > SMALL_ELEMENTS else 0
            storage = torch_internals.storage_identity(value)
            sizes[storage] = max(sizes.get(storage, 0), size)
    return sum(sizes.values())


def usable_names(names: Sequence[str]) -> tuple[str, ...]:
    usable: list[str] = []
    for name in names:
        while keyword.iskeyword(name) or name in RESERVED or name in usable:
            name += "_"
        usable.append(name)
    return tuple(usable)


@dataclass(frozen=True, slots=True)
class _Look:
    exactness: Exactness
    contents: ValueReader

    def recipe(self, value: Tensor) -> origins.Recipe | None:
        return None if wanted_exact(value, self.exactness) else origins.recall(value)

    def content(self, value: Tensor, view: ViewExpression, layout: StridedLayout, key: str) -> Content:
        if torch_internals.is_zero_tensor(value):
            return Content(Fill(FillKind.NO_MEMORY))
        readable = in_place_of(value)
        if readable is None:
            return content_without_data(value.dtype)
        try:
            if wanted_exact(value, self.exactness):
                return self.contents.exact(base_data(readable, view, layout), key)
            return self.contents.fitted(readable, view, layout, key)
        except torch.OutOfMemoryError:  # where the failure is that its device is full, it is read elsewhere
            if value.device.type == "cpu":
                raise
            return self.content(value.cpu(), view, layout, key)


def _describe_all(
    values: Sequence[Any], names: Sequence[str], look: _Look, made: dict[int, tuple[Any, str]]
) -> Iterator[InputSpec]:
    """``made`` has the variables of parts that an earlier input brought: nested tensors share their offsets."""
    shared = _shared_bases(values, names, look)
    first_names: dict[int, str] = {}
    for index, (name, value) in enumerate(zip(names, values, strict=True)):
        if not isinstance(value, Tensor):
            try:
                text = known[0] if (known := shared_text(value)) else literal(value)
                yield InputSpec(name, Fill(FillKind.PYTHON, text=text), imports=imports_of([value]))
            except CannotWrite as refusal:
                raise CannotWrite(f"input {name}", f"it holds {refusal.part}") from refusal
            continue
        facts = _facts(name, value)
        first = first_names.setdefault(id(value), name)
        if first != name:
            yield replace(facts, same_as=first)
        elif index in shared:
            yield _member(facts, value, shared[index])
        elif (recipe := look.recipe(value)) is not None:
            text = "\n".join(recipe.named(name).statements)
            yield replace(facts, fill=Fill(FillKind.WRITTEN, text=text), imports=all_imports_of([value]))
        elif is_constructed(value):
            yield _constructed(facts, value, names, look, made)
        else:
            layout = StridedLayout(facts.shape, facts.stride, facts.storage_offset)
            view = view_of(layout)
            content = look.content(_plain(value), view, layout, name)
            facts = replace(facts, base_shape=view.base, view=view.text)
            yield replace(facts, fill=content.fill, places=content.places, stored=content.stored)


def _facts(name: str, value: Tensor) -> InputSpec:
    facts = InputSpec(
        name=name,
        fill=Fill(FillKind.CONSTRUCTED),
        dtype=value.dtype,
        device=_device(value.device),
        requires_grad=value.requires_grad,
        is_leaf=value.is_leaf,
        is_parameter=isinstance(value, torch.nn.Parameter),
        base=name,
    )
    if is_constructed(value):
        return facts
    if value.is_quantized or value.is_nested or value.layout is not torch.strided:
        kind = "nested" if value.is_nested else f"of layout {value.layout}"
        raise CannotWrite(f"input {name}", f"the tensor is {'quantized' if value.is_quantized else kind}")
    layout = _layout(value)
    return replace(
        facts,
        fill=Fill(FillKind.FULL, (0,)),
        shape=layout.shape,
        stride=layout.stride,
        storage_offset=layout.offset,
        is_inference=value.is_inference(),
        is_conj=value.is_conj(),
        is_neg=value.is_neg(),
        base_dtype=value.dtype,
    )


def _constructed(
    facts: InputSpec, value: Tensor, names: Sequence[str], look: _Look, made: dict[int, tuple[Any, str]]
) -> InputSpec:
    construction = construction_of(value, f"input {facts.name}")
    wanted = [f"{facts.name}_{part}" for part in construction.parts]
    variables = dict(zip(construction.parts, usable_names([*names, *wanted])[len(names) :], strict=True))
    parts: list[InputSpec] = []
    for name, part in construction.parts.items():
        if id(part) in made:
            variables[name] = made[id(part)][1]
        else:
            made[id(part)] = part, variables[name]  # the part itself, so that its id stays its own
            part_look = replace(look, exactness=exactness_of_part(part, look.exactness))
            parts += _describe_all([part], [variables[name]], part_look, {})
    stored = {key: data for part in parts for key, data in part.stored.items()}
    fill = Fill(FillKind.CONSTRUCTED, text=construction.text.format(**variables))
    imports = all_imports_of([value])
    return replace(facts, fill=fill, parts=tuple(parts), imports=imports, stored=stored)


def _device(device: torch.device) -> str:
    # The first device of a kind goes by the kind's name, as in hand-written code.
    return str(device) if device.index else device.type


def _layout(value: Tensor) -> StridedLayout:
    shape, stride = (
        tuple(int(torch_internals.hint(one)) for one in many) for many in (value.shape, value.stride())
    )
    layout = StridedLayout(shape, stride, int(torch_internals.hint(value.storage_offset())))
    return layout.cropped(value.dtype.itemsize)


def _plain(value: Tensor) -> Tensor:
    value = value.detach()
    if value.is_conj():
        value = value.conj()
    return torch_internals.negated_view(value) if value.is_neg() else value


# --- inputs that share a storage ---


@dataclass(frozen=True, slots=True)
class _Shared:
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    content: Content


def _shared_bases(values: Sequence[Any], names: Sequence[str], look: _Look) -> dict[int, _Shared]:
    members: dict[int, list[int]] = {}
    first = {id(value): index for index, value in reversed([*enumerate(values)]) if isinstance(value, Tensor)}
    for index in sorted(first.values()):
        value = values[index]
        if value.layout is torch.strided and not (
            is_constructed(value) or torch_internals.is_zero_tensor(value)
        ):
            members.setdefault(torch_internals.storage_identity(values[index]), []).append(index)
    found: dict[int, _Shared] = {}
    numbered = itertools.chain(["storage"], map("storage_{}".format, itertools.count(2)))
    free = (name for name in numbered if name not in names)
    for indexes in members.values():
        group = [values[index] for index in indexes]
        if len(group) > 1 and not all(map(look.recipe, group)) and not _far_apart(group):
            plain = [_plain(value) for value in group]
            found.update(dict.fromkeys(indexes, _shared_base(next(free), plain, look)))
    return found


def _extent(value: Tensor) -> tuple[int, int]:
    layout = _moved(value, 0)
    return layout.offset * value.dtype.itemsize, layout.span * value.dtype.itemsize


def _far_apart(group: Sequence[Tensor]) -> bool:
    """Whether these are small pieces of one huge storage (flattened parameters) that do not overlap."""
    extents = sorted(_extent(value) for value in group)
    span = extents[-1][1] - extents[0][0]
    used = sum(stop - start for start, stop in extents)
    overlap = any(left[1] > right[0] for left, right in itertools.pairwise(extents))
    return span > CROP_BYTES and span > 4 * used and not overlap


def _shared_base(name: str, group: Sequence[Tensor], look: _Look) -> _Shared:
    largest = max(group, key=lambda value: value.numel() * value.dtype.itemsize)
    start = min(_extent(value)[0] for value in group)
    # 1024: what every dtype's alignment divides. A base begins at the storage's begin, as it was, unless that is far away.
    start = start // 1024 * 1024 if start > CROP_BYTES else 0
    size = -(-(max(_extent(value)[1] for value in group) - start) // largest.dtype.itemsize)
    shape: tuple[int, ...] = (size,)
    layout = _moved(largest, start)
    if layout == StridedLayout(layout.shape, layout.contiguous_stride) and layout.span == size:
        shape = layout.shape
    if not has_data(largest):
        content = content_without_data(largest.dtype)
    elif any(wanted_exact(value, look.exactness) for value in group):
        data = _shared_data(group, start, size * largest.dtype.itemsize).view(largest.dtype).view(shape)
        content = look.contents.exact(data, name)
    else:
        content = look.contents.fitted(largest, view_into(shape, layout), layout, name)
    return _Shared(name, shape, largest.dtype, start, content)


def _shared_data(group: Sequence[Tensor], start: int, size: int) -> Tensor:
    flat = torch.zeros(size, dtype=torch.uint8, device=group[0].device)
    for value in group:
        put(flat.view(value.dtype), value, _moved(value, start))
    return flat


def _moved(value: Tensor, start: int) -> StridedLayout:
    offset = int(value.storage_offset()) - start // value.dtype.itemsize
    return StridedLayout(tuple(value.shape), tuple(value.stride()), offset)


def _member(facts: InputSpec, value: Tensor, shared: _Shared) -> InputSpec:
    layout = _moved(_plain(value), shared.start)
    if value.dtype is shared.dtype:
        view = view_into(shared.shape, layout).text
    else:
        flat = "" if len(shared.shape) == 1 else ".flatten()"
        view = f"{flat}.view({value.dtype}){generic_view(layout, shared.shape).text}"
    return replace(
        facts,
        storage_offset=layout.offset,
        base=shared.name,
        base_shape=shared.shape,
        base_dtype=shared.dtype,
        view=view,
        fill=shared.content.fill,
        places=shared.content.places,
        stored=shared.content.stored,
    )
