"""``InputSpec``: what one input of a graph is; its shape, stride and offset as a base tensor and a view of it; a tensor of a subclass by what it is made of."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from minidbg import torch_internals
from minidbg.fx.effects import walk
from minidbg.fx.ranks import TENSOR, imports_of
from minidbg.source.expressions import Expressions
from minidbg.source.fills import Fill
from minidbg.source.names import reference_to
from minidbg.words.errors import CannotWrite

CROP_BYTES = 1 << 20
"""A view that starts this far into a much larger storage is moved to its beginning, keeping its alignment."""
ALIGNMENT = 64
"""Elements; an offset is moved by multiples of this."""


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

    @property
    def contiguous_stride(self) -> tuple[int, ...]:
        sizes = (max(size, 1) for size in reversed(self.shape[1:]))
        return tuple(itertools.accumulate(sizes, operator.mul, initial=1))[::-1] if self.shape else ()

    def cropped(self, itemsize: int) -> StridedLayout:
        """This layout without the unused gigabytes before it."""
        used = self.span - self.offset
        if self.offset * itemsize <= CROP_BYTES or self.offset < 4 * used:
            return self
        return StridedLayout(self.shape, self.stride, self.offset % ALIGNMENT)


@dataclass(frozen=True, slots=True)
class ViewExpression:
    base: tuple[int, ...]
    text: str


def view_of(layout: StridedLayout) -> ViewExpression:
    if layout.offset == 0 and layout.stride == layout.contiguous_stride:
        return ViewExpression(layout.shape, "")
    return next((view for view in _candidates(layout) if _gives(view, layout)), generic_view(layout))


def generic_view(layout: StridedLayout, base: tuple[int, ...] | None = None) -> ViewExpression:
    """``as_strided`` of a flat base (or of ``base``): right for every layout."""
    offset = f", {layout.offset}" if layout.offset else ""
    text = f".as_strided({tuple(layout.shape)}, {tuple(layout.stride)}{offset})"
    return ViewExpression(base or (layout.span if 0 in layout.shape else max(layout.span, 1),), text)


def view_into(base: tuple[int, ...], layout: StridedLayout) -> ViewExpression:
    """The most readable view that gives ``layout`` on a base that other inputs share."""
    size = ", ".join(map(str, layout.shape)) or "()"
    texts = ["", f".view({size})", ".t()", *_slice_texts(base, layout)]
    if layout.stride == layout.contiguous_stride and layout.shape:
        flat = "" if len(base) == 1 else ".flatten()"
        part = f"{flat}[{layout.offset or ''}:{layout.span}]"
        texts.append(part if len(layout.shape) == 1 else f"{part}.view({size})")
    views = (ViewExpression(base, text) for text in texts)
    return next((view for view in views if _gives(view, layout)), generic_view(layout, base))


def _gives(view: ViewExpression, layout: StridedLayout) -> bool:
    base = torch.empty(view.base, device="meta")
    try:
        found: Tensor = eval(f"base{view.text}", {"torch": torch, "base": base})
    except (RuntimeError, IndexError):
        return False
    return StridedLayout(tuple(found.shape), found.stride(), int(found.storage_offset())) == layout


def _candidates(layout: StridedLayout) -> Iterator[ViewExpression]:
    shape = layout.shape
    yield ViewExpression(shape, "")
    if len(shape) in (4, 5):
        kind = "channels_last" if len(shape) == 4 else "channels_last_3d"
        yield ViewExpression(shape, f".to(memory_format=torch.{kind})")
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
    steps = StridedLayout(tuple(base), ()).contiguous_stride
    for size, whole, step in zip(layout.shape, base, steps, strict=True):
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
        return self.dtype is not None and self.base != self.name


# --- tensors that only a constructor of their class makes ---


@dataclass(frozen=True, slots=True)
class Construction:
    """``parts`` are the tensors (and a mesh) inside, by a name; ``text`` is the expression, with ``{name}`` for each part."""

    parts: Mapping[str, Any]
    text: str
    imports: tuple[str, ...] = ()


def is_constructed(value: Any) -> bool:
    is_plain = type(value) in (Tensor, torch.nn.Parameter)
    return isinstance(value, Tensor) and not is_plain and not torch_internals.is_fake(value)


def construction_of(value: Tensor, part: str) -> Construction:
    """How to make ``value`` again, a tensor of a subclass. Raises CannotWrite, with ``part``, that names the class."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    try:
        return CONSTRUCTORS.get(kind, _by_unflatten)(value)
    except CannotWrite as refusal:
        raise CannotWrite(part, f"{refusal.part}: {refusal.why}") from refusal
    except (AttributeError, NotImplementedError, TypeError) as error:
        raise CannotWrite(
            part,
            f"a {kind} is a tensor subclass that cannot be taken apart "
            f"({type(error).__name__}: {error}); __tensor_flatten__ and __tensor_unflatten__ would let it be written",
        ) from error


def _dtensor(value: Any) -> Construction:
    from torch.distributed.tensor import DTensor

    local = value.to_local().detach()
    plain = DTensor.from_local(local, value.device_mesh, value.placements, run_check=False)
    write = _Values()
    keywords = ["run_check=False"]
    if plain.shape != value.shape or plain.stride() != value.stride():  # shards of unequal size
        keywords += [f"shape=torch.Size({list(value.shape)})", f"stride={tuple(value.stride())}"]
    given = ", ".join(["{local}", "{mesh}", write.value(list(value.placements)), *keywords])
    text = f"{TENSOR}.DTensor.from_local({given})"
    imports = (f"import {TENSOR}", *imports_of([value.device_mesh, *value.placements]))
    return Construction({"local": local, "mesh": value.device_mesh}, text, imports)


def _jagged(value: Any) -> Construction:
    names, context = value.__tensor_flatten__()
    known = {name.strip("_"): getattr(value, name) for name in names}
    parts = {name: part for name, part in known.items() if name in ("values", "offsets", "lengths")}
    given = ["{values}", "{offsets}", *(["lengths={lengths}"] if "lengths" in parts else [])]
    given.append(f"jagged_dim={context.get('ragged_idx', 1)}")
    for name in ("min_seqlen", "max_seqlen"):
        if f"{name}_tensor" in known:  # its first size is the number
            given.append(f"{name}={known[f'{name}_tensor'].shape[0]}")
    text = f"torch.nested.nested_tensor_from_jagged({', '.join(given)})"
    return Construction(parts, text, ())


def _masked(value: Any) -> Construction:
    parts = {"data": value.get_data().detach(), "mask": value.get_mask()}
    return Construction(parts, "torch.masked.masked_tensor({data}, {mask})", ("import torch.masked",))


def _by_unflatten(value: Any) -> Construction:
    """By the class's own ``__tensor_unflatten__``, with what its ``__tensor_flatten__`` gives; one without parts by ``as_subclass``."""
    if not hasattr(value, "__tensor_flatten__") and _holds_its_data(type(value)):
        return _as_subclass(value)
    names, context = value.__tensor_flatten__()
    write = _Values()
    kind = write.reference(type(value))
    parts = {name.strip("_") or name: getattr(value, name) for name in names}
    inner = ", ".join(f'"{name}": {{{name.strip("_") or name}}}' for name in names)
    known = write.value(context).replace("{", "{{").replace("}", "}}")
    size, stride = tuple(map(int, value.shape)), tuple(map(int, value.stride()))
    text = f"{kind}.__tensor_unflatten__({{{{{inner}}}}}, {known}, torch.Size({list(size)}), {stride})"
    return Construction(parts, text, tuple(sorted(write.imports)))


def _holds_its_data(kind: type) -> bool:
    """Whether tensors of ``kind`` are plain ones of another type, and no wrappers around others."""
    inherited = (getattr(kind, name) is getattr(Tensor, name) for name in ("__torch_dispatch__", "__new__"))
    return all(inherited)


SAID_BY_EVERY_CLASS = {"__module__", "__doc__", "__dict__", "__static_attributes__", "__firstlineno__"}


def _as_subclass(value: Any) -> Construction:
    kind, write = type(value), _Values()
    says_nothing = kind.__bases__ == (Tensor,) and not vars(kind).keys() - SAID_BY_EVERY_CLASS
    # its module may lie where no script finds it
    written = f'type("{kind.__name__}", (torch.Tensor,), {{{{}}}})'
    name = written if says_nothing else write.reference(kind)
    data = value.detach().as_subclass(Tensor)
    return Construction({"data": data}, f"{{data}}.as_subclass({name})", tuple(sorted(write.imports)))


CONSTRUCTORS: Mapping[str, Callable[[Any], Construction]] = {
    "torch.distributed.tensor.DTensor": _dtensor,
    "torch.distributed.tensor._api.DTensor": _dtensor,
    "torch.nested._internal.nested_tensor.NestedTensor": _jagged,
    "torch.masked.maskedtensor.core.MaskedTensor": _masked,
}
"""Classes whose public constructor says more than ``__tensor_unflatten__``."""


class _Values(Expressions):
    """Writes what a subclass keeps beside its tensors; plain dataclasses by their constructor."""

    def reference(self, value: Any) -> str:
        found = reference_to(value)
        module = found.imports.removeprefix("import ")
        if module and walk(sys.modules.get(found.root), found.text.partition(".")[2]) is not value:
            name = found.text.removeprefix(f"{module}.")
            self.imports.add(f"from {module} import {name.partition('.')[0]}")
            return name
        return super().reference(value)

    def _torch_value(self, value: Any) -> str:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            given = {one.name: getattr(value, one.name) for one in dataclasses.fields(value) if one.init}
            inside = ", ".join(f"{name}={self.value(one)}" for name, one in given.items())
            return f"{self.reference(type(value))}({inside})"
        return super()._torch_value(value)


def plain_stand_in(value: Tensor) -> Tensor | None:
    """A plain tensor for one of a subclass: a DTensor's local shard, what a quantised one stands for, a bare one's data; None where nothing does."""
    for way in ("to_local", "dequantize", "values"):
        if hasattr(type(value), way) and way != ("values" if not value.is_nested else ""):
            try:
                found = getattr(value.detach(), way)()
            except (RuntimeError, NotImplementedError, TypeError):
                continue
            if type(found) is Tensor:
                return found.detach().clone()
    if not hasattr(value, "__tensor_flatten__"):
        return value.detach().as_subclass(Tensor).clone() if _holds_its_data(type(value)) else None
    names, _ = value.__tensor_flatten__()
    plain = (one for one in (getattr(value, name) for name in names) if type(one) is Tensor)
    return next((one.detach().clone() for one in plain if one.shape == value.shape), None)


def exactness_of_part(value: Any, exactness: Exactness) -> Exactness:
    """How exactly a part is written: offsets and indices hold the form of the whole, codes of 8 bits are values like others."""
    is_index = isinstance(value, Tensor) and not value.is_floating_point() and value.dtype.itemsize > 1
    return Exactness.SMALL if is_index and exactness is Exactness.SEEDED else exactness


def all_imports_of(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line for value in values for line in _imports(value)))


def _imports(value: Any) -> Iterator[str]:
    if not is_constructed(value):
        yield from imports_of([value])
        return
    construction = construction_of(value, "an input")
    yield from construction.imports
    yield from all_imports_of(construction.parts.values())
