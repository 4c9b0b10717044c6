"""Backends that get one op wrong, whichever it is: ``on_op("softmax", "values")`` is a ``functools.partial``.

A graph without the op of that name runs in eager.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from dies import WAYS as WAYS_TO_DIE
from fails_on import NotSupported, all_nodes, name_of
from torch import fx
from wrong_results import doubles_gradient, raises_in_backward

CompiledFn = Callable[..., Any]


def a_hundredth_more(value: torch.Tensor) -> torch.Tensor:
    return value * 1.01 + 0.01


def nan_above_the_mean(value: torch.Tensor) -> torch.Tensor:
    return torch.where(value >= value.mean(), float("nan"), value)


def of_another_shape(value: torch.Tensor) -> torch.Tensor:
    return value[None]


def raises_when_run(value: torch.Tensor) -> torch.Tensor:
    raise NotSupported("the kernel cannot be launched")


def dies_by(way: str, value: torch.Tensor) -> torch.Tensor:
    WAYS_TO_DIE[way]()
    return value


CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "values": a_hundredth_more,
    "nan": nan_above_the_mean,
    "dtype": torch.Tensor.double,
    "shape": of_another_shape,
    "gradient": doubles_gradient,
    "run": raises_when_run,
    "backward": raises_in_backward,
    **{way: functools.partial(dies_by, way) for way in WAYS_TO_DIE},
}


def on_op(op: str, what: str) -> functools.partial[CompiledFn]:
    """``what`` goes wrong with ``op``: "compile", or one of CHANGES."""
    return functools.partial(wrong_on_op, op=op, what=what)


def wrong_on_op(gm: fx.GraphModule, example_inputs: Sequence[Any], *, op: str, what: str) -> CompiledFn:
    found = [node for node in all_nodes(gm) if node.op.startswith("call") and name_of(node) == op]
    if found and what == "compile":
        raise NotSupported(f"cannot lower {op}")
    for node in found:
        with node.graph.inserting_after(node):
            changed = node.graph.call_function(
                functools.partial(to_each_float, change=CHANGES[what]), (node,)
            )
        node.replace_all_uses_with(changed, delete_user_cb=lambda user, new=changed: user is not new)
    for module in gm.modules():
        if isinstance(module, fx.GraphModule):
            module.recompile()
    return gm.forward


def to_each_float(value: Any, *, change: Callable[[torch.Tensor], Any]) -> Any:
    """``value`` with ``change`` applied to each tensor of floats in it."""

    def changed(one: Any) -> Any:
        return change(one) if isinstance(one, torch.Tensor) and one.is_floating_point() else one

    return torch.utils._pytree.tree_map(changed, value)
