"""aot_eager with one bug: what relu gives is wrong, or relu cannot be run. At any depth of nested graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.debugging import aot_eager

CompiledFn = Callable[..., Any]


def after_relus(gm: fx.GraphModule, function: Callable[..., Any]) -> fx.GraphModule:
    """``gm`` with ``function`` applied to each result of a relu, by whatever name it is called."""
    for module in [one for one in gm.modules() if isinstance(one, fx.GraphModule)]:
        for node in [one for one in module.graph.nodes if one.op.startswith("call") and is_relu(one)]:
            with module.graph.inserting_after(node):
                changed = module.graph.call_function(function, (node,))
            changed.meta.update({key: node.meta[key] for key in ("example_value", "val") if key in node.meta})
            node.replace_all_uses_with(
                changed, delete_user_cb=lambda user, changed=changed: user is not changed
            )
        module.recompile()
    return gm


def is_relu(node: fx.Node) -> bool:
    return str(getattr(node.target, "__name__", node.target)).strip("_").startswith("relu")


def one_more(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def wrong(gm: fx.GraphModule, example_inputs: Sequence[Any], **more: Any) -> CompiledFn:
    """One is added."""
    return aot_eager(after_relus(gm, one_more), example_inputs, **more)


class NoKernel(Exception):
    """There is none for relu."""


def refuses(gm: fx.GraphModule, example_inputs: Sequence[Any], **more: Any) -> CompiledFn:
    """It does not compile."""
    graphs = [one for one in gm.modules() if isinstance(one, fx.GraphModule)]
    if any(node.op.startswith("call") and is_relu(node) for one in graphs for node in one.graph.nodes):
        raise NoKernel("no kernel for relu")
    return aot_eager(gm, example_inputs, **more)
