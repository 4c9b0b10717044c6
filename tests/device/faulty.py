"""Backends for the acceptance run: each runs the graph in eager, with one fault at gelu where that runs on an accelerator."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

MOMENTS: list[float] = []
"""When the fault showed, seconds of the monotonic clock."""
Backend = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def is_gelu(node: fx.Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "gelu"


def runs(graph_module: fx.GraphModule) -> Callable[..., Any]:
    """What a backend has compiled: its own function, so that the graph is not handed back."""
    return lambda *args: graph_module(*args)


def compile_failure(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    there = any(isinstance(one, Tensor) and one.device.type != "cpu" for one in example_inputs)
    if there and any(map(is_gelu, graph_module.graph.nodes)):
        MOMENTS.append(time.monotonic())
        raise NotImplementedError("no kernel for gelu")
    return runs(graph_module)


def behind_gelu(change: Callable[[Tensor], Tensor]) -> Backend:
    """A backend that applies ``change`` to what gelu gives on an accelerator."""

    def there(x: Tensor) -> Tensor:
        if x.device.type == "cpu":
            return x
        MOMENTS.append(time.monotonic())
        return change(x)

    def backend(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        for node in filter(is_gelu, list(graph_module.graph.nodes)):
            with graph_module.graph.inserting_after(node):
                new = graph_module.graph.call_function(there, (node,))
            node.replace_all_uses_with(new, delete_user_cb=lambda user, new=new: user is not new)
        graph_module.recompile()
        return graph_module.forward

    backend.__name__ = backend.__qualname__ = change.__name__
    return backend


@behind_gelu
def run_time_failure(x: Tensor) -> Tensor:
    raise RuntimeError(f"gelu kernel refuses shape {list(x.shape)}")


@behind_gelu
def wrong_result(x: Tensor) -> Tensor:
    return x * 1.25


@behind_gelu
def wrong_gradient(x: Tensor) -> Tensor:
    return x + (x - x.detach())


@behind_gelu
def not_a_number(x: Tensor) -> Tensor:
    return torch.where(x == x.amax(), float("nan"), x)


@behind_gelu
def illegal_memory_access(x: Tensor) -> Tensor:
    if x.device.type == "acme":
        torch.ops.acme_runtime.break_later(
            x.device.index, "acme error 700: an illegal memory access was encountered"
        )
    else:
        import out_of_bounds

        out_of_bounds.write(x)
    return x


@behind_gelu
def device_side_assert(x: Tensor) -> Tensor:
    if x.device.type == "acme":
        torch.ops.acme_runtime.break_later(x.device.index, "acme error 710: device-side assert triggered")
        return x
    beyond = torch.full((1,), x.shape[0] + 7, device=x.device)
    return x + x[beyond].sum() * 0


@behind_gelu
def endless_kernel(x: Tensor) -> Tensor:
    if x.device.type == "acme":
        torch.ops.acme_runtime.never_ready(x.device.index)
    else:
        torch.cuda._sleep(1 << 60)  # cycles: some ten years
    return x


@behind_gelu
def out_of_memory(x: Tensor) -> Tensor:
    return x + torch.empty(1 << 50, dtype=torch.uint8, device=x.device).sum()


def launches_kernel(graph_module: fx.GraphModule) -> bool:
    return any("triton" in str(node.target) for node in graph_module.graph.nodes)


def refuses_kernels(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Fails to compile a graph that launches a user's Triton kernel."""
    if launches_kernel(graph_module):
        raise NotImplementedError("no way to launch a Triton kernel")
    return runs(graph_module)


def wrong_behind_kernels(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """All results of a graph that launches a user's Triton kernel are wrong."""
    if not launches_kernel(graph_module):
        return graph_module.forward
    return lambda *args: tuple(one * 1.25 for one in graph_module(*args))
