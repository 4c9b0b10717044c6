"""Inputs of a graph as specs, and the code that makes them again.

``describe`` looks at live values, ``statements`` gives the text of a script's ``inputs()``, and ``materialise`` runs that very
text: script and judge cannot have different inputs.
"""

from __future__ import annotations

import ast
import contextlib
import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minidbg import torch_internals
from minidbg.backends.statements import edited
from minidbg.source import origins
from minidbg.source.expressions import number, quoted, rounded
from minidbg.source.fills import Fill, FillKind
from minidbg.source.specs import InputSpec
from minidbg.torch_internals.devices import generators_put_back, in_use

SEED = 0


# --- from specs to text ---


def main_device(specs: Sequence[InputSpec]) -> str:
    """The device that ``inputs(device=...)`` stands for: the accelerator when there is one, the most common if several."""
    devices = Counter(spec.device for spec in specs if spec.dtype is not None and spec.device != "meta")
    ranked = sorted(devices, key=lambda device: (device == "cpu", -devices[device]))
    return ranked[0] if ranked else "cpu"


def expression(spec: InputSpec, device: str = "device", *, explicit: bool = False) -> str:
    """One expression that makes the input, for a spec with a base of its own and no single places.

    ``device`` is the text of an expression; ``explicit`` writes float32 out, for scripts with another default dtype.
    """
    if spec.dtype is None or spec.fill.kind is FillKind.WRITTEN:
        return spec.fill.text
    return _finished(spec, _base_expression(spec, device, explicit=explicit), is_new=True)


def _base_expression(spec: InputSpec, device: str, *, explicit: bool) -> str:
    assert spec.base_dtype is not None
    return fill_expression(spec.fill, spec.base_shape, spec.base_dtype, device, explicit=explicit)


def statements(
    specs: Sequence[InputSpec], *, main: str | None = None, explicit: bool = False, mark: bool = True
) -> tuple[str, ...]:
    """The body of ``inputs(device=...)`` without its ``return``: seeding, then each input under its name.

    Names used: ``torch``, ``device`` (``main``'s stand-in), ``stored(key, dtype, device)``. ``mark`` adds maybe_mark_dynamic.
    """
    main = main or main_device(specs)
    # A base, or a statement read from a script, may serve several inputs: it stands once.
    lines = list(dict.fromkeys(line for spec in specs for line in _statements_of(spec, main, explicit)))
    if any(draws(line) for line in lines):
        lines.insert(0, f"torch.manual_seed({SEED})")
    marked = [(spec.name, dim) for spec in specs for dim in spec.dynamic_dims] if mark else []
    return (*lines, *(f"torch._dynamo.maybe_mark_dynamic({name}, {dim})" for name, dim in marked))


def imports_for(specs: Sequence[InputSpec]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line for spec in specs for line in spec.imports))


def _statements_of(spec: InputSpec, main: str, explicit: bool) -> Iterator[str]:
    if spec.fill.kind is FillKind.WRITTEN and not spec.same_as:
        yield from _split(spec.fill.text)
    elif spec.dtype is None:
        yield f"{spec.name} = {spec.fill.text}"
    elif spec.same_as:
        yield f"{spec.name} = {spec.same_as}"
    elif spec.fill.kind is FillKind.CONSTRUCTED:
        for part in spec.parts:
            yield from _statements_of(part, main, explicit)
        yield f"{spec.name} = {_finished(spec, spec.fill.text, is_new=True)}"
    elif spec.is_inference:
        body = textwrap.indent("\n".join(_tensor_statements(spec, main, explicit)), "    ")
        yield f"with torch.inference_mode():\n{body}"
    else:
        yield from _tensor_statements(spec, main, explicit)


def _split(text: str) -> Iterator[str]:
    lines = text.split("\n")
    for node in ast.parse(text).body:
        yield "\n".join(lines[node.lineno - 1 : node.end_lineno])


def _tensor_statements(spec: InputSpec, main: str, explicit: bool) -> Iterator[str]:
    device = "device" if spec.device == main else quoted(spec.device)
    if not spec.is_shared and not spec.places:
        yield f"{spec.name} = {expression(spec, device, explicit=explicit)}"
        return
    yield f"{spec.base} = {_base_expression(spec, device, explicit=explicit)}"
    for index, value in spec.places:
        yield f"{spec.base}[{index}] = {value}"
    finished = _finished(spec, spec.base, is_new=not spec.is_shared)
    if finished != spec.name:
        yield f"{spec.name} = {finished}"


def _outlives_an_op(spec: InputSpec) -> bool:
    like = torch.empty_strided(spec.shape, spec.stride, device="meta")
    return like.clone().stride() == like.stride() and not (spec.storage_offset or spec.is_conj)


def _finished(spec: InputSpec, text: str, *, is_new: bool) -> str:
    """The base's ``text`` seen as the input: its view, its lazy bits, Parameter, requires_grad, leafness.

    ``is_new``: the base is nobody else's, so it may be made to require grad itself.
    """
    view = spec.view + (".conj()" if spec.is_conj else "")
    if spec.requires_grad and not spec.is_leaf:
        if (
            not is_new or spec.fill.kind is FillKind.NO_MEMORY
        ):  # a view of a leaf, in the memory that it shares
            return f"{_with_grad(f'{text}.detach()')}{view or f'.view({_sizes(spec.shape)})'}"
        if view and not _outlives_an_op(spec):  # a view of a leaf: eager writes to none
            return f"{grouped(_with_grad(text))}{view}"
        return f"{_with_grad(grouped(text) + view if view else text)} * 1"  # the plainest op that keeps values and strides
    text = grouped(text) + view if view else text
    if spec.is_neg:
        text = f"torch._neg_view({text})"
    if spec.is_parameter:
        return f"torch.nn.Parameter({text}{'' if spec.requires_grad else ', requires_grad=False'})"
    if not spec.requires_grad:
        return text
    if not is_new and not view:
        text = f"{text}.detach()"
    return _with_grad(text)


def _with_grad(text: str) -> str:
    is_one_call = text.endswith(")") and text == grouped(text) and ")." not in text
    is_factory = is_one_call and text.startswith(_FACTORIES)
    return f"{text[:-1]}, requires_grad=True)" if is_factory else f"{grouped(text)}.requires_grad_()"


_FACTORIES = tuple(f"torch.{name}(" for name in ("randn", "rand", "zeros", "ones", "full", "tensor"))


def _sizes(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape)) or "()"


# --- from fills to text ---


_HAVE_RANDOM = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128),
)


def fill_expression(
    fill: Fill, size: tuple[int, ...], dtype: torch.dtype, device: str, *, explicit: bool = False
) -> str:
    """An expression that makes a contiguous tensor ``[*size]`` by ``fill``.

    ``device`` is the text of an expression; empty: none is written. ``explicit`` writes the dtype out also where it is
    float32, for scripts whose default dtype is another.
    """
    target = _Target(size, dtype, device, explicit)
    parts: tuple[Any, ...] = (fill.kind, *fill.numbers)
    match parts:
        case FillKind.NORMAL, mean, deviation:
            text = target.scaled("", deviation)
            if mean != 0:
                text += f" {'-' if mean.real < 0 else '+'} {rounded(abs(mean))}"
            return target.cast(text)
        case FillKind.UNIFORM, 0, 1:
            return target.cast(target.floats("rand"))
        case FillKind.UNIFORM, low, high:
            return target.cast(
                f"{target.floats('empty')}.uniform_({rounded(low.real)}, {rounded(high.real)})"
            )
        case FillKind.MAGNITUDE, scale:
            return target.cast(target.scaled(".abs()", scale))
        case FillKind.RECTIFIED, scale:
            return target.cast(target.scaled(".relu()", scale))
        case FillKind.PROBABILITIES, dim:
            return target.cast(f"{target.floats('randn')}.softmax({int(dim.real)})")
        case FillKind.TWO_VALUES, share, first, second:
            text = f"torch.where({target.mask(share)}, {number(first, dtype)}, {number(second, dtype)})"
            return text if dtype is torch.float32 and not explicit else f"{text}.to({dtype})"
        case FillKind.LOWER, diagonal, inside:
            return f"{target.full(inside)}.tril({int(diagonal.real) or ''})"
        case FillKind.UPPER, diagonal, inside:
            return f"{target.full(inside)}.triu({int(diagonal.real) or ''})"
        case FillKind.DISTINCT, low, high if math.prod(size) <= high.real - low.real:
            return target.distinct(int(low.real), int(high.real))
        case (
            (FillKind.INTEGERS | FillKind.DISTINCT),
            low,
            high,
        ):  # a base may have more elements than the input
            return target.call("randint", f"{int(low.real)}, {int(high.real)}, {size}", dtype, torch.int64)
        case FillKind.BOOLS, share:
            return target.mask(share)
        case FillKind.FULL, value:
            return target.full(value)
        case (FillKind.NO_MEMORY,):
            return target.call("_efficientzerotensor", str(size), dtype)
        case FillKind.COUNT, start, step:
            return target.count(int(start.real), int(step.real))
        case (FillKind.PERMUTATION,):
            return target.call("randperm", str(size[0]), dtype, torch.int64)
        case (FillKind.BYTES,):
            return target.bytes()
        case (FillKind.LITERAL,):
            return target.tensor(fill.text)
        case (FillKind.STORED,):
            text = f"stored({', '.join([quoted(fill.text), str(dtype), *([device] if device else [])])})"
            return text if len(size) == 1 else f"{text}.view({', '.join(map(str, size)) or '()'})"
    return fill.text


_RANDOM = ("rand", "randn", "randint", "randperm", "normal_", "uniform_")


def draws(text: str) -> bool:
    return any(name in text for name in _RANDOM) and any(_drawing_calls(text))


def with_generator(text: str, seed: int) -> str:
    """The expression ``text`` with random numbers of its own: the same at each evaluation, whatever came before."""
    ends = ((call.end_lineno or 1, (call.end_col_offset or 0) - 1) for call in _drawing_calls(text))
    generator = f", generator=torch.Generator().manual_seed({seed})"
    return edited(text, ((line, end, end, generator) for line, end in ends))


def _drawing_calls(text: str) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _RANDOM:
            yield node


@dataclass(frozen=True, slots=True)
class _Target:
    size: tuple[int, ...]
    dtype: torch.dtype
    device: str
    explicit: bool

    def sized(self, function: str, dtype: torch.dtype | None = None) -> str:
        size = ", ".join(map(str, self.size)) or "()"
        return self.call(function, size, dtype or self.dtype)

    def call(
        self, function: str, arguments: str, dtype: torch.dtype, usual: torch.dtype = torch.float32
    ) -> str:
        explicit = dtype is not usual or (self.explicit and usual is torch.float32)
        dtype_text = f", dtype={dtype}" if explicit else ""
        return f"torch.{function}({arguments}{dtype_text}{self.place})"

    @property
    def place(self) -> str:
        return f", device={self.device}" if self.device else ""

    def floats(self, function: str) -> str:
        if self.dtype is torch.complex32:  # it has random numbers, and no arithmetic to scale them with
            return self.sized(function, torch.complex64)
        return self.sized(function, self.dtype if self.dtype in _HAVE_RANDOM else torch.float32)

    def cast(self, text: str) -> str:
        return text if self.dtype in _HAVE_RANDOM else f"{grouped(text)}.to({self.dtype})"

    def scaled(self, method: str, scale: complex) -> str:
        text = self.floats("randn") + method
        return text if scale == 1 else f"{text} * {rounded(scale.real)}"

    def mask(self, share: complex) -> str:
        return f"{self.sized('rand', torch.float32)} < {rounded(share.real)}"

    def full(self, value: complex) -> str:
        if self.dtype is torch.bool:
            return self.sized("ones" if value else "zeros")
        if not self.size:
            return self.tensor(number(value, self.dtype))
        if value == 0 and math.copysign(1, value.real) > 0 and not isinstance(value, complex):
            return self.sized("zeros")
        if value == 1:
            return self.sized("ones")
        usual = torch.int64 if isinstance(value, int) else torch.float32
        return self.call("full", f"{self.size}, {number(value, self.dtype)}", self.dtype, usual)

    def tensor(self, items: str) -> str:
        usual = self.dtype if self.dtype in (torch.bool, torch.int64) else torch.float32
        return self.call("tensor", items, self.dtype, usual)

    def count(self, start: int, step: int) -> str:
        """A sequence along the last dimension, the same in each row."""
        *repeats, length = self.size
        stop = start + step * length
        bounds = [stop] if (start, step) == (0, 1) else [start, stop] if step == 1 else [start, stop, step]
        text = f"torch.arange({', '.join(map(str, bounds))}{self.place})"
        if set(repeats) <= {1}:
            text += ".unsqueeze(0)" * len(repeats)
        else:
            text += f".repeat({', '.join(map(str, [*repeats, 1]))})"
        return text if self.dtype is torch.int64 else f"{text}.to({self.dtype})"

    def distinct(self, low: int, high: int) -> str:
        """As many of the integers from ``low`` to below ``high`` as there are elements, in any order."""
        count = math.prod(self.size)
        text = f"torch.randperm({high - low}{self.place})" + (f"[:{count}]" if count < high - low else "")
        text = f"{text} + {low}" if low else text
        if len(self.size) != 1:
            text = f"{grouped(text)}.view({', '.join(map(str, self.size))})"
        return text if self.dtype is torch.int64 else f"{grouped(text)}.to({self.dtype})"

    def bytes(self) -> str:
        *outer, last = self.size or (1,)
        size = (*outer, last * self.dtype.itemsize)
        text = f"torch.randint(0, 256, {size}, dtype=torch.uint8{self.place}).view({self.dtype})"
        return text if self.size else f"{text}.view(())"


def grouped(text: str) -> str:
    """``text`` in parentheses, unless a method can be called on it as it stands."""
    depth = 0
    for character in text:
        depth += character in "([{"
        depth -= character in ")]}"
        if depth == 0 and character in " <":
            return f"({text})"
    return text if not text.startswith("-") else f"({text})"


# --- from specs to tensors ---


def materialise(specs: Sequence[InputSpec]) -> list[Any]:
    """The very values that the script's ``inputs(device)`` makes: the same text, seed and order.

    The RNG states are left as they were. Each tensor keeps its statements, so that it is written as it was made.
    """
    main = main_device(specs)
    lines = statements(specs, main=main, mark=False)
    data = {key: value for spec in specs for key, value in spec.stored.items()}
    namespace: dict[str, Any] = {
        "__name__": "__main__",  # the module of classes that the text makes
        "torch": torch,
        "device": main,
        "stored": _reader(data),
    }
    with as_scripts_do(spec.device for spec in specs):
        exec("\n".join([*imports_for(specs), *lines]), namespace)
    values = [namespace[spec.name] for spec in specs]
    for spec, value in zip(specs, values, strict=True):
        if isinstance(value, Tensor) and not spec.stored and not spec.same_as:
            made = origins.Recipe(spec.name, tuple(_statements_of(spec, main, False)))
            origins.remember(value, made)
    return values


def _reader(data: Mapping[str, Tensor]) -> Any:
    def stored(key: str, dtype: torch.dtype, device: str = "cpu") -> Tensor:
        return data[key].clone().view(dtype).to(device)

    return stored


@contextlib.contextmanager
def as_scripts_do(devices: Iterable[str] = ("cpu",)) -> Iterator[None]:
    """torch as it is when a script begins: no mode, default dtype, the scripts' seed. What was before comes back after.

    ``devices`` are those whose random numbers may be drawn.
    """
    dtype = torch.get_default_dtype()
    kinds = {torch.device(name).type for name in devices} - {"cpu", "meta"}
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch_internals.in_silence())
        stack.enter_context(torch_internals.without_modes())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        # manual_seed seeds every accelerator in use, also where none of its numbers is drawn.
        used = kinds | ({kind} if (kind := in_use()) is not None else set())
        count = {kind: torch.get_device_module(kind).device_count() for kind in used}
        names = [f"{kind}:{index}" for kind in used for index in range(count[kind])]
        stack.enter_context(generators_put_back(names))
        stack.callback(torch.set_default_dtype, dtype)
        torch.set_default_dtype(torch.float32)
        torch.manual_seed(SEED)
        yield
