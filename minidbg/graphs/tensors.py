"""Inputs of a graph as specs, and the code that makes them again.

``describe`` looks at live values, ``statements`` gives the text of a script's ``inputs()``, and ``materialise`` runs that very
text: script and oracle cannot have different inputs.
"""

from __future__ import annotations

import ast
import contextlib
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from minidbg import _torch
from minidbg.devices import generators_put_back, in_use
from minidbg.graphs import origins
from minidbg.graphs.expressions import quoted
from minidbg.graphs.fill_text import draws, fill_expression, grouped
from minidbg.graphs.fills import How
from minidbg.graphs.specs import InputSpec

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
    if spec.dtype is None or spec.fill.how is How.WRITTEN:
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
    if mark:
        lines.extend(
            f"torch._dynamo.maybe_mark_dynamic({spec.name}, {dim})"
            for spec in specs
            for dim in spec.dynamic_dims
        )
    return tuple(lines)


def imports_for(specs: Sequence[InputSpec]) -> tuple[str, ...]:
    """The import statements that the text of ``specs`` needs."""
    return tuple(dict.fromkeys(line for spec in specs for line in spec.imports))


def _statements_of(spec: InputSpec, main: str, explicit: bool) -> Iterator[str]:
    if spec.fill.how is How.WRITTEN and not spec.same_as:
        yield from _split(spec.fill.text)
    elif spec.dtype is None:
        yield f"{spec.name} = {spec.fill.text}"
    elif spec.same_as:
        yield f"{spec.name} = {spec.same_as}"
    elif spec.fill.how is How.CONSTRUCTED:
        for part in spec.parts:
            yield from _statements_of(part, main, explicit)
        yield f"{spec.name} = {_finished(spec, spec.fill.text, is_new=True)}"
    elif spec.is_inference:
        body = textwrap.indent("\n".join(_tensor_statements(spec, main, explicit)), "    ")
        yield f"with torch.inference_mode():\n{body}"
    else:
        yield from _tensor_statements(spec, main, explicit)


def _split(text: str) -> Iterator[str]:
    """The statements in ``text``, each as it is written."""
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
    """Whether the result of an op on the input has its layout."""
    like = torch.empty_strided(spec.shape, spec.stride, device="meta")
    return like.clone().stride() == like.stride() and not (spec.storage_offset or spec.is_conj)


def _finished(spec: InputSpec, text: str, *, is_new: bool) -> str:
    """The base's ``text`` seen as the input: its view, its lazy bits, Parameter, requires_grad, leafness.

    ``is_new``: the base is nobody else's, so it may be made to require grad itself.
    """
    view = spec.view + (".conj()" if spec.is_conj else "")
    if spec.requires_grad and not spec.is_leaf:
        if not is_new:  # a view of a leaf, in the memory that it shares
            return f"{_with_grad(f'{text}.detach()')}{view or f'.view({_sizes(spec.shape)})'}"
        if view and not _outlives_an_op(spec):  # a view of a leaf: eager writes to none
            return f"{grouped(_with_grad(text))}{view}"
        return f"{_with_grad(grouped(text) + view if view else text)} * 1"  # the plainest op that keeps values and strides
    text = grouped(text) + view if view else text
    if spec.is_neg:
        text = f"torch._neg_view({text})"
    if spec.is_parameter:
        return (
            f"torch.nn.Parameter({text})"
            if spec.requires_grad
            else f"torch.nn.Parameter({text}, requires_grad=False)"
        )
    if not spec.requires_grad:
        return text
    if not is_new and not view:
        text = f"{text}.detach()"
    return _with_grad(text)


def _with_grad(text: str) -> str:
    is_factory = (
        text.startswith(_FACTORIES) and text.endswith(")") and text == grouped(text) and ")." not in text
    )
    return f"{text[:-1]}, requires_grad=True)" if is_factory else f"{grouped(text)}.requires_grad_()"


_FACTORIES = tuple(f"torch.{name}(" for name in ("randn", "rand", "zeros", "ones", "full", "tensor"))


def _sizes(shape: tuple[int, ...]) -> str:
    return ", ".join(map(str, shape)) or "()"


# --- from specs to tensors ---


def materialise(specs: Sequence[InputSpec]) -> list[Any]:
    """The very values that the script's ``inputs(device)`` makes: the same text, seed and order.

    The RNG states are left as they were. Each tensor keeps its statements, so that it is written as it was made.
    """
    main = main_device(specs)
    lines = statements(specs, main=main, mark=False)
    data = {key: value for spec in specs for key, value in spec.stored.items()}
    namespace: dict[str, Any] = {"torch": torch, "device": main, "stored": _reader(data)}
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
        stack.enter_context(_torch.in_silence())
        stack.enter_context(_torch.without_modes())
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
