"""The text of a script's ``inputs()``: one object writes it, value by value, and what it makes.

``materialise`` runs the very lines of a script: script and judge cannot have different inputs.
"""

from __future__ import annotations

import contextlib
import enum
import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from minidbg import torch_internals
from minidbg.codegen.expressions import Expressions, number_text, quoted
from minidbg.codegen.factories import TensorFactory, all_finite, grouped, is_index, wide
from minidbg.codegen.layouts import StridedLayout, layout_of, start_of, view_into, view_of
from minidbg.codegen.names import Names
from minidbg.codegen.subclasses import construction_of, is_constructed
from minidbg.core.errors import CannotWrite
from minidbg.torch_internals.devices import BROKEN, KEPT_ON_CPU, place_here, restoring_random_numbers

INPUT_SEED = 0
SMALL_ELEMENTS = 64
"""A tensor of this many elements or fewer is small: its values may stand in the text."""
FEW_PLACES = 8
"""NaN and infinities up to this number are written singly; more come where a drawn mask says."""
SPECIAL = (math.nan, math.inf, -math.inf)
INPUTS_RESERVED = ("torch", "device", "stored", "inputs", "float", "complex")
"""Names that the text of ``inputs()`` uses itself."""
DRAWS = re.compile(r"\b(rand|randn|randint|randperm|uniform_)\(")


class Exactness(enum.StrEnum):
    """How faithful a script's inputs are. Seeded first: a private model's weights stay put."""

    SEEDED = "seeded"
    """Random values of the same distribution and range."""
    SMALL = "small"
    """Integers, booleans and small tensors as they were, the rest seeded."""
    EXACT = "exact"
    """All values as they were."""


@dataclass(slots=True)
class InputsText:
    """Statements that make values again under ``names``, the imports they need, and what they read
    from the .safetensors file.

    Names used: ``torch``, ``device`` (which stands for ``device``), ``stored(key, dtype,
    device=)``. A value is written in the first of these ways that fits: as the same object as an
    earlier one, as a view of a storage that several share, by the constructor of its subclass (its
    parts first), as a view of a base that is stored, literal or drawn. ``raw``: nobody reads the
    text, and values that are wanted exactly are stored as they are, in their memory if plain.
    """

    exactness: Exactness = Exactness.SEEDED
    device: str = ""
    explicit: bool = False
    raw: bool = False
    on_cpu: bool = False
    """Values of all devices are looked at on the CPU, which has room for them."""
    generator: str = ""
    names: tuple[str, ...] = ()
    lines: list[str] = field(default_factory=list)
    imports: dict[str, None] = field(default_factory=dict)
    stored: dict[str, Tensor] = field(default_factory=dict)
    """By key: uint8 ``[n]`` on the cpu."""
    made: dict[int, tuple[Any, str]] = field(default_factory=dict)
    """By identity what was written, so that its id stays its own, and its name."""
    bases: dict[int, tuple[str, Tensor, int]] = field(default_factory=dict)
    """By storage that several show parts of: the name of a flat tensor, one like it on meta, the
    bytes before it that are left out."""
    taken: Names = field(default_factory=lambda: Names(INPUTS_RESERVED))

    def value(self, name: str, value: Any, *, is_part: bool = False) -> None:
        """Write ``name = ...``. Raises CannotWrite: nothing is silently replaced."""
        if isinstance(value, Tensor) and id(value) in self.made:
            self.lines.append(f"{name} = {self.made[id(value)][1]}")
            return
        if not isinstance(value, Tensor):
            write = Expressions()
            try:
                self.lines.append(f"{name} = {write.value(value)}")
            except CannotWrite as refusal:
                raise CannotWrite(f"input {name}", f"it holds {refusal.part}") from refusal
            self.imports |= dict.fromkeys(sorted(write.imports))
        elif is_constructed(value):
            construction = construction_of(value, f"input {name}")
            variables: dict[str, str] = {}
            for part, inner in construction.parts.items():
                if id(inner) not in self.made:  # nested tensors share their offsets
                    self.value(self.taken.free(f"{name}_{part}"), inner, is_part=True)
                variables[part] = self.made[id(inner)][1]
            self.imports |= dict.fromkeys(construction.imports)
            text = construction.text.format(**variables)
            self.lines.append(f"{name} = {flagged(value, text)}")
        elif not is_strided(value):
            kind = "nested" if value.is_nested else f"of layout {value.layout}"
            kind = "quantized" if value.is_quantized else kind
            raise CannotWrite(f"input {name}", f"the tensor is {kind}")
        elif storage_of(value) in self.bases:
            text, flat, start = self.bases[storage_of(value)]
            if value.dtype is not flat.dtype:
                text, flat = f"{text}.view({value.dtype})", flat.view(value.dtype)
            view = view_into(flat.numel(), layout_of(value, start))
            self.emit(value, name, flagged(value, text, view, is_new=False))
        else:
            # offsets and indices hold the form of the whole; codes of 8 bits are values like others
            is_form = is_part and is_index(value) and value.dtype.itemsize > 1
            is_exact = is_form or wanted_exact(value, self.exactness)
            size, view = view_of(layout := layout_of(value, start_of([value])))
            base = self.base(name, value, size, layout, is_exact=is_exact)
            self.emit(value, name, flagged(value, base, view))
        self.made[id(value)] = value, name

    def emit(self, value: Tensor, name: str, text: str, *more: str) -> None:
        if text != name:
            lines = [f"{name} = {text}", *more]
            if value.is_inference():
                body = (textwrap.indent(line, "    ") for line in lines)
                lines = ["with torch.inference_mode():", *body]
            self.lines += lines

    def storages(self, values: Iterable[Any]) -> None:
        """Write the bases of the storages that several of ``values`` lie in."""
        groups: dict[int, dict[int, Tensor]] = {}
        for value in values:
            if isinstance(value, Tensor) and not is_constructed(value) and is_strided(value):
                groups.setdefault(storage_of(value), {})[id(value)] = value
        for storage, by_identity in groups.items():
            if len(group := list(by_identity.values())) < 2:
                continue
            name = self.taken.free("storage")
            largest = max(group, key=lambda value: value.numel() * value.dtype.itemsize)
            unit, start = max(value.dtype.itemsize for value in group), start_of(group)
            stop = max(layout_of(value, start).span * value.dtype.itemsize for value in group)
            size = -(-stop // unit) * unit // largest.dtype.itemsize
            self.bases[storage] = name, torch.empty(size, dtype=largest.dtype, device="meta"), start
            whole, layout = largest, layout_of(largest, start)
            wanted = any(wanted_exact(value, self.exactness) for value in group)
            if is_exact := wanted and readable(largest) is largest:
                whole, layout = largest.new_zeros(size), StridedLayout((size,), (1,))
                for value in group:
                    place = layout_of(value, start).seen_in(whole.view(value.dtype))
                    copy(place, plain_tensor(value))
            self.emit(largest, name, self.base(name, whole, (size,), layout, is_exact=is_exact))

    # --- the values of a base ---

    def base(
        self, name: str, value: Tensor, size: tuple[int, ...], layout: StridedLayout, *, is_exact: bool
    ) -> str:
        """An expression of the base ``[*size]`` of ``value``; ``name`` where that was written."""
        # the first device of a kind goes by the kind's name, as in hand-written code
        device = "device" if device_name(value) == self.device else quoted(device_name(value))
        place = f", device={device}" if self.device else ""
        factory = TensorFactory(size, value.dtype, place, self.explicit, self.generator)
        if torch_internals.is_zero_tensor(value):
            return factory.call("_efficientzerotensor", str(size))
        seen = readable(value)
        if seen is None or (self.raw and not is_exact):
            return factory.like(None)
        value = plain_tensor(seen).cpu() if self.on_cpu else plain_tensor(seen)
        if is_exact or layout.shows_all:
            data = base_data(value, size, layout)
            text = None if self.raw else factory.exact(data, SMALL_ELEMENTS if is_exact else 0)
            if text is not None:
                return text
            if is_exact:
                self.stored[name] = data.detach().reshape(-1).cpu().view(torch.uint8)
                shape = f".view({', '.join(map(str, size)) or '()'})" if len(size) != 1 else ""
                return f"stored({quoted(name)}, {data.dtype}{place}){shape}"
        if not all_finite(value):
            self.odd(name, factory, value, layout)
            return name
        return factory.like(value)

    def odd(self, name: str, factory: TensorFactory, value: Tensor, layout: StridedLayout) -> None:
        """Write ``name``, a base of drawn numbers that gets the NaN and infinities of ``value``."""
        data = wide(base_data(value, factory.size, layout))
        odd = ~data.isfinite()
        if int(odd.sum()) > FEW_PLACES:  # so many as there were, and nobody's weights beside them
            parts = [(x, data.isnan() if x != x else data == x) for x in SPECIAL]
            shares = [(x, part.float().mean().item()) for x, part in parts if part.any()]
            places = [(factory.mask(share), x) for x, share in shares]
        else:
            numbers = zip(odd.nonzero().tolist(), data[odd].tolist(), strict=True)
            places = [(", ".join(map(str, at)) or "()", x) for at, x in numbers]
        put_in = [f"{name}[{place}] = {number_text(x)}" for place, x in places]
        self.emit(value, name, factory.like(value), *put_in)


def write_inputs(
    values: Sequence[Any],
    names: Sequence[str],
    exactness: Exactness = Exactness.SEEDED,
    *,
    explicit: bool = False,
    raw: bool = False,
) -> InputsText:
    """The text of ``values``, which are only read; ``explicit`` writes float32 out, for scripts
    with another default dtype. Raises CannotWrite, naming the input that has no such form."""
    # A torch warning about a dtype that the user's filters raise would take the failure's place.
    with torch.no_grad(), torch_internals.without_modes(), torch_internals.without_warnings():
        hints = [torch_internals.hint(value) for value in values]
        devices = Counter(
            device_name(value) for value in hints if isinstance(value, Tensor) and not value.is_meta
        )
        # what ``device`` stands for: the accelerator when there is one, the most common if several
        device = max(devices, key=lambda name: (name != "cpu", devices[name]), default="cpu")
        for on_cpu in (False, True):
            text = InputsText(exactness, device, explicit, raw, on_cpu)
            text.names = tuple(map(text.taken.free, names))
            try:
                text.storages(hints)
                for name, value in zip(text.names, hints, strict=True):
                    text.value(name, value)
                break
            except torch.OutOfMemoryError:  # the failure may be that its device is full
                if on_cpu:
                    raise
    if any(map(DRAWS.search, text.lines)):
        text.lines.insert(0, f"torch.manual_seed({INPUT_SEED})")
    return text


def write_constant(
    key: str, value: Tensor, exactness: Exactness, stored: dict[str, Tensor], *, seed: int, explicit: bool
) -> str:
    """The expression in ``__init__`` for a tensor of the graph; no device: the module moves whole.

    Integers and small tensors are part of the program, so they are exact even where inputs are
    seeded. Random ones are the same in each instance of the module. What the text reads from the
    file is put into ``stored``.
    """
    faithful = Exactness.SMALL if exactness is Exactness.SEEDED else exactness
    with torch.no_grad(), torch_internals.without_modes(), torch_internals.without_warnings():
        value = value.detach()
        if is_constructed(value) or not is_strided(value):
            kind = f"a {type(value).__name__} of {value.layout}"
            raise CannotWrite(f"the constant {key!r}", f"{kind} has no literal form")
        seeded = f", generator=torch.Generator().manual_seed({seed})"
        text = InputsText(faithful, explicit=explicit, stored=stored, on_cpu=True, generator=seeded)
        size, view = view_of(layout := layout_of(value, start_of([value])))
        base = text.base(key, value, size, layout, is_exact=wanted_exact(value, faithful))
        if text.lines:  # NaN in its place takes a statement
            base = text.base(key, value, size, layout, is_exact=True)
        return flagged(value, base, view)


def bytes_to_store(values: Sequence[Any], exactness: Exactness) -> int:
    """About how many bytes of ``values`` a script of that exactness stores, before any copy."""
    sizes: dict[int, int] = {}
    for value in values:
        if is_constructed(value):
            with suppress(CannotWrite):  # which write_inputs() says, by the input's name
                parts = construction_of(value, "an input").parts
                sizes[id(value)] = bytes_to_store(list(parts.values()), exactness)
        elif isinstance(value, Tensor) and is_strided(value) and wanted_exact(value, exactness):
            size = value.numel() * value.dtype.itemsize if value.numel() > SMALL_ELEMENTS else 0
            sizes[storage_of(value)] = max(sizes.get(storage_of(value), 0), size)
    return sum(sizes.values())


def wanted_exact(value: Tensor, exactness: Exactness) -> bool:
    is_small = is_index(value) or value.numel() <= SMALL_ELEMENTS
    return exactness is Exactness.EXACT or (exactness is Exactness.SMALL and is_small)


def device_name(value: Tensor) -> str:
    if value.device.type == "cpu" and (device := KEPT_ON_CPU.get()):
        return device
    return str(value.device) if value.device.index else value.device.type


def is_strided(value: Tensor) -> bool:
    return value.layout is torch.strided and not (value.is_quantized or value.is_nested)


def storage_of(value: Tensor) -> int:
    is_zero = torch_internals.is_zero_tensor(value)
    return id(value) if is_zero else torch_internals.storage_identity(value)


# --- flags ---


def flagged(value: Tensor, text: str, view: str = "", *, is_new: bool = True) -> str:
    """The base's ``text`` seen as ``value``: view, lazy bits, Parameter, requires_grad, leafness.
    ``is_new``: nobody else's, so it may be made to require grad itself."""
    is_inner = value.requires_grad and not value.is_leaf
    if is_inner and is_new:  # the plainest op that keeps values
        text = f"{grouped(text)}.requires_grad_() * 1"
    elif is_inner:  # a view of a leaf, in memory that others share: eager writes to none
        text, view = f"{text}.detach().requires_grad_()", view or f".view({tuple(value.shape)})"
    is_lazy = not is_constructed(value)  # of a subclass, its parts are
    view += ".conj()" if is_lazy and value.is_conj() else ""
    seen = grouped(text) + view if view else text
    if is_lazy and value.is_neg():
        seen = f"torch._neg_view({seen})"
    if isinstance(value, torch.nn.Parameter):
        return f"torch.nn.Parameter({seen}{'' if value.requires_grad else ', requires_grad=False'})"
    if is_inner or not value.requires_grad:
        return seen
    return f"{grouped(seen if is_new or view else f'{text}.detach()')}.requires_grad_()"


# --- memory ---


def readable(value: Tensor) -> Tensor | None:
    """``value``; None where there are no numbers: fake, meta, freed, of a device in error."""
    has_none = value.device in BROKEN or value.is_meta or torch_internals.is_fake(value)
    return None if has_none or torch_internals.is_freed(value) else value


def plain_tensor(value: Tensor) -> Tensor:
    value = value.detach()
    value = value.conj() if value.is_conj() else value
    return torch_internals.negated_view(value) if value.is_neg() else value


def base_data(value: Tensor, size: tuple[int, ...], layout: StridedLayout) -> Tensor:
    """The base ``[*size]`` that shows ``value`` by ``layout``; zeros where ``value`` does not look,
    since the rest of the user's storage is none of a script's business."""
    if layout.shows_all and math.prod(size) == layout.span and value.stride() == layout.stride:
        contiguous = torch.empty(size, device="meta").stride()
        return value.as_strided(size, contiguous, int(value.storage_offset()))
    flat = value.new_zeros(math.prod(size))
    copy(layout.seen_in(flat), value)
    return flat.view(size)


def copy(target: Tensor, value: Tensor) -> None:
    """``target.copy_(value)``, which refuses a target in which elements share their memory."""
    try:
        target.copy_(value)
    except RuntimeError:
        for one, other in zip(target, value, strict=True):
            copy(one, other)


# --- from text to tensors ---


def materialise(text: InputsText) -> list[Any]:
    """The very values that the script's ``inputs(device)`` makes. RNG states stay as they were."""

    def stored(key: str, dtype: torch.dtype, device: str = "cpu") -> Tensor:
        return text.stored[key].clone().view(dtype).to(device)

    # "__main__": the module of classes that the text makes
    device = place_here(text.device)
    namespace = {"__name__": "__main__", "torch": torch, "device": device, "stored": stored}
    with as_scripts_do():
        exec("\n".join([*text.imports, *text.lines]), namespace)
    return [namespace[name] for name in text.names]


@contextlib.contextmanager
def as_scripts_do() -> Iterator[None]:
    """torch as it is when a script begins: no mode, default dtype, the scripts' seed."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch_internals.without_warnings())
        stack.enter_context(torch_internals.without_modes())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(restoring_random_numbers())
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        torch.manual_seed(INPUT_SEED)
        yield
