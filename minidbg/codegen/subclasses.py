"""Tensors of a subclass: their class's constructor, called with the tensors they are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minidbg import torch_internals
from minidbg.codegen.expressions import Expressions
from minidbg.core.errors import CannotWrite
from minidbg.fx.ranks import TENSOR, shared_text


@dataclass(frozen=True, slots=True)
class Construction:
    """``text``: an expression, with ``{name}`` for each of ``parts``: tensors, and a mesh."""

    parts: Mapping[str, Any]
    text: str
    imports: tuple[str, ...] = ()


def is_constructed(value: Any) -> bool:
    is_plain = type(value) in (Tensor, torch.nn.Parameter)
    return isinstance(value, Tensor) and not is_plain and not torch_internals.is_fake(value)


def construction_of(value: Tensor, part: str) -> Construction:
    """How to make ``value``, of a subclass. Raises CannotWrite, with ``part``, naming the class."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    try:
        return CONSTRUCTORS.get(kind, _by_unflatten)(value)
    except CannotWrite as refusal:
        raise CannotWrite(part, f"{refusal.part}: {refusal.why}") from refusal
    except (AttributeError, NotImplementedError, TypeError) as error:
        raise CannotWrite(
            part,
            f"a {kind} is a tensor subclass that cannot be taken apart ({type(error).__name__}: "
            f"{error}); __tensor_flatten__ and __tensor_unflatten__ would let it be written",
        ) from error


def _dtensor(value: Any) -> Construction:
    placements = Expressions().value(list(value.placements))
    # shards may be of unequal size, so that the whole is not as many times one of them
    rest = f"run_check=False, shape=torch.Size({list(value.shape)}), stride={tuple(value.stride())}"
    text = f"{TENSOR}.DTensor.from_local({{local}}, {{mesh}}, {placements}, {rest})"
    texts = filter(None, map(shared_text, [value.device_mesh, *value.placements]))
    imports = (f"import {TENSOR}", *sorted({f"import {module}" for _, module in texts if module}))
    parts = {"local": value.to_local().detach(), "mesh": value.device_mesh}
    return Construction(parts, text, imports)


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
    return Construction(parts, text)


def _by_unflatten(value: Any) -> Construction:
    """By the class's own ``__tensor_unflatten__``; one without parts by ``as_subclass``."""
    if not hasattr(value, "__tensor_flatten__") and all(
        getattr(type(value), name) is getattr(Tensor, name) for name in ("__torch_dispatch__", "__new__")
    ):  # a plain tensor of another type, and no wrapper around others
        return _as_subclass(value)
    names, context = value.__tensor_flatten__()
    write = Expressions()
    kind = write.reference(type(value))
    parts = {name.strip("_") or name: getattr(value, name) for name in names}
    inner = ", ".join(f'"{name}": {{{name.strip("_") or name}}}' for name in names)
    known = write.value(context).replace("{", "{{").replace("}", "}}")
    size, stride = list(map(int, value.shape)), tuple(map(int, value.stride()))
    text = f"{kind}.__tensor_unflatten__({{{{{inner}}}}}, {known}, torch.Size({size}), {stride})"
    return Construction(parts, text, tuple(sorted(write.imports)))


OF_EVERY_CLASS = {"__module__", "__doc__", "__dict__", "__static_attributes__", "__firstlineno__"}


def _as_subclass(value: Any) -> Construction:
    kind, write = type(value), Expressions()
    says_nothing = kind.__bases__ == (Tensor,) and not vars(kind).keys() - OF_EVERY_CLASS
    # its module may lie where no script finds it
    written = f'type("{kind.__name__}", (torch.Tensor,), {{{{}}}})'
    text = f"{{data}}.as_subclass({written if says_nothing else write.reference(kind)})"
    data = value.detach().as_subclass(Tensor)
    return Construction({"data": data}, text, tuple(sorted(write.imports)))


CONSTRUCTORS: Mapping[str, Callable[[Any], Construction]] = {
    "torch.distributed.tensor.DTensor": _dtensor,
    "torch.distributed.tensor._api.DTensor": _dtensor,
    "torch.nested._internal.nested_tensor.NestedTensor": _jagged,
}
"""Classes whose public constructor says more than ``__tensor_unflatten__``."""


def plain_stand_in(value: Tensor) -> Tensor | None:
    """What a quantised one stands for, else the first tensor it is made of; None without."""
    found: list[Any] = []
    with suppress(RuntimeError, TypeError):  # most cannot
        found.append(value.detach().dequantize())
    with suppress(CannotWrite):
        found += construction_of(value, "an input").parts.values()
    return next((one.detach().clone() for one in found if type(one) is Tensor), None)
