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
    if what == "compile" and calls_of(gm, op):
        raise NotSupported(f"cannot lower {op}")
    return changed_after(gm, op, CHANGES[what]) if what != "compile" else gm.forward


def calls_of(gm: fx.GraphModule, op: str) -> list[fx.Node]:
    return [node for node in all_nodes(gm) if node.op.startswith("call") and name_of(node) == op]


def changed_after(gm: fx.GraphModule, op: str, change: Callable[[torch.Tensor], Any]) -> CompiledFn:
    """The graph with ``change`` applied to each tensor of floats that ``op`` gives."""
    for node in calls_of(gm, op):
        with node.graph.inserting_after(node):
            changed = node.graph.call_function(to_each_float(change), (node,))
        node.replace_all_uses_with(changed, delete_user_cb=lambda user, new=changed: user is not new)
    for module in gm.modules():
        if isinstance(module, fx.GraphModule):
            module.recompile()
    return gm.forward


def to_each_float(change: Callable[[torch.Tensor], Any]) -> Callable[[Any], Any]:
    """A function, since a node's target needs a name, that applies ``change`` to each tensor of floats in a value."""

    def one(value: Any) -> Any:
        return change(value) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    def changed(value: Any) -> Any:
        return torch.utils._pytree.tree_map(one, value)

    return changed


def through_inductor(op: str, what: str) -> functools.partial[CompiledFn]:
    """As ``on_op``, and inductor compiles the graph that is wrong then."""
    return functools.partial(inductor_wrong_on_op, op=op, what=what)


def inductor_wrong_on_op(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, op: str, what: str
) -> CompiledFn:
    from torch._inductor.compile_fx import compile_fx

    wrong_on_op(gm, example_inputs, op=op, what=what)
    return compile_fx(gm, list(example_inputs))


def off_by(op: str, share: float) -> functools.partial[CompiledFn]:
    """Each float of ``op`` is too large by ``share`` of itself: a difference that is large, small, or none at all."""
    return functools.partial(off_by_a_share, op=op, share=share)


def off_by_a_share(gm: fx.GraphModule, example_inputs: Sequence[Any], *, op: str, share: float) -> CompiledFn:
    return changed_after(gm, op, functools.partial(larger, share=share))


def larger(value: torch.Tensor, share: float) -> torch.Tensor:
    return value * (1 + share)
