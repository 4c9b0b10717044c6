"""What a run leaves behind, leaf by leaf: outputs, inputs and gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from minidbg.torch_internals.tensors import in_memory, is_wrapped, is_zero_tensor

SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
Leaves = Mapping[str, "Leaf"]


class CannotCompare(ValueError):
    """A leaf has no plain values to compare (nested, fake): it is neither right nor wrong."""


class Leaf(NamedTuple):
    """One value that a run left behind; a tensor is detached and shares the run's memory."""

    role: str  # output, input or gradient
    value: Any
    requires_grad: bool = False


def collect_leaves(outputs: Any, inputs_after: Any = (), gradients: Any = ()) -> dict[str, Leaf]:
    """All that one run left, by label: ``output 0``, ``input x after the call``, ``gradient of x``.

    ``outputs`` may nest tuples, lists, dicts. ``inputs_after``, ``gradients``: sequences, or maps
    from name to value; give all tensor inputs, so that aliasing is seen. Nothing is copied.
    """
    leaves: dict[str, Leaf] = {}
    results = outputs if isinstance(outputs, (tuple, list, Mapping)) else (outputs,)
    for role, label, values in (
        ("output", "output {}", results),
        ("input", "input {} after the call", inputs_after),
        ("gradient", "gradient of {}", gradients),
    ):
        for name, value in values.items() if isinstance(values, Mapping) else enumerate(values):
            name = f"input {name}" if role == "gradient" and isinstance(name, int) else name
            parts = _named_parts(value)
            leaves |= {label.format(f"{name}{path}"): _leaf(role, part) for path, part in parts}
    return leaves


def _named_parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        items = [(f"[{index}]", item) for index, item in enumerate(value)]
    elif isinstance(value, Mapping):
        items = [(f"[{key!r}]", item) for key, item in value.items()]
    elif hasattr(value, "__tensor_flatten__"):  # a tensor subclass made of plain tensors
        items = [(f".{name}", getattr(value, name)) for name in value.__tensor_flatten__()[0]]
        items.append((".requires_grad", value.requires_grad))  # its parts have none
    # a masked tensor: what is hidden has no value
    elif hasattr(value, "get_mask") and value.layout is torch.strided:
        mask = value.get_mask()
        items = [(".mask", mask), (".data", value.get_data().detach().masked_fill(~mask, 0))]
    elif isinstance(value, torch.Tensor) and value.layout in SPARSE and value.device.type != "meta":
        items = [(".layout", _short_name(value.layout)), ("", value.to_dense())]
    elif isinstance(value, torch.Tensor) and value.is_quantized:
        form = f"{_short_name(value.dtype)}, {str(value.qscheme()).removeprefix('torch.')}"
        items = [(".quantization", form), ("", value.dequantize())]
    else:
        yield "", value
        return
    for path, item in items:
        yield from ((path + rest, part) for rest, part in _named_parts(item))


def _leaf(role: str, value: Any) -> Leaf:
    if isinstance(value, torch.Tensor):
        if is_wrapped(value):  # the level that it belonged to is closed: no op takes it
            return Leaf(role, value)
        elements = in_memory(value) if is_zero_tensor(value) else value.detach()
        return Leaf(role, elements, value.requires_grad)
    plain = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}.get(type(value))
    return Leaf(role, plain(value) if plain else value)


def _are_plain(a: Any, e: Any) -> bool:
    """Whether both are dense tensors with values, of one shape; also lazily conjugated ones."""
    dense = all(type(x) is torch.Tensor and x.layout is torch.strided for x in (a, e))
    if not dense or any(x.is_quantized or x.is_nested or is_wrapped(x) for x in (a, e)):
        return False
    return bool(a.shape == e.shape)


def _can_stand_for(value: Any, like: torch.Tensor) -> bool:
    """Whether ``value`` may be that leaf in another run: of its shape, and numbers of its kind."""
    if not _are_plain(value, like):
        return False
    kind, wanted = ((x.is_floating_point(), x.is_complex()) for x in (value, like))
    return kind == wanted


def _in_place_of(like: torch.Tensor, run: Leaves, where: str) -> Any:
    value = run[where].value if where in run else None
    is_number = value is None or isinstance(value, (int, float))
    return torch.full_like(like, value or 0) if is_number else value


def _short_name(of: torch.dtype | torch.layout) -> str:
    return str(of).removeprefix("torch.")
