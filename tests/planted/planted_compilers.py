"""Tiny compilers for ``aot_autograd`` with one bug each, named for it. Each takes an ATen graph with fake inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch import fx

CompiledFn = Callable[..., Any]


class NoKernel(Exception):
    """What the compilers here raise."""


def targets(graph_module: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph_module.graph.nodes if node.op == "call_function"]


def needs_fake_inputs(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> None:
    """As real compilers do: read the fake value of each node."""
    for node in graph_module.graph.nodes:
        if node.op != "output":
            assert "val" in node.meta, f"{node.name} has no fake value"
    for value in example_inputs:
        assert not isinstance(value, torch.Tensor) or type(value) is not torch.Tensor


def works_boxed(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Healthy; clears the list that it is given, as compiled code does to free memory early."""
    needs_fake_inputs(graph_module, example_inputs)

    def compiled_fn(args: list[Any]) -> Any:
        values = tuple(args)
        args.clear()
        return graph_module(*values)

    compiled_fn._boxed_call = True  # type: ignore[attr-defined]
    return compiled_fn


def works_unboxed(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Healthy, with its inputs one by one."""
    return graph_module.forward


def raises_on_relu(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Fails to compile where relu is computed, in whichever graph."""
    needs_fake_inputs(graph_module, example_inputs)
    if any("relu" in target for target in targets(graph_module)):
        raise NoKernel("no kernel for relu")
    return make_boxed_func(graph_module.forward)


def raises_on_relu_backward(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Fails to compile the derivative of relu."""
    if any("threshold_backward" in target for target in targets(graph_module)):
        raise NoKernel("no kernel for threshold_backward")
    return make_boxed_func(graph_module.forward)


def raises_in_run_on_relu(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Compiles relu, clears its inputs, and fails when called."""
    bad = any("relu" in target for target in targets(graph_module))

    def compiled_fn(args: list[Any]) -> Any:
        values = tuple(args)
        args.clear()
        if bad:
            raise RuntimeError(f"kernel of relu failed for {len(values)} inputs")
        return graph_module(*values)

    compiled_fn._boxed_call = True  # type: ignore[attr-defined]
    return compiled_fn


def adds_one_to_relu(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Gives wrong values."""
    for node in list(graph_module.graph.nodes):
        if "relu" in str(node.target):
            with graph_module.graph.inserting_after(node):
                wrong = graph_module.graph.call_function(torch.ops.aten.add.Scalar, (node, 1))
            node.replace_all_uses_with(wrong, delete_user_cb=lambda user, wrong=wrong: user is not wrong)
    graph_module.recompile()
    return make_boxed_func(graph_module.forward)


def chooses_its_own_strides(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Healthy: saves activations in another layout, as inductor does."""

    def compiled_fn(args: list[Any]) -> Any:
        results = graph_module(*args)
        return [
            one.t().contiguous().t() if isinstance(one, torch.Tensor) and one.dim() == 2 and place else one
            for place, one in enumerate(results)
        ]

    compiled_fn._boxed_call = True  # type: ignore[attr-defined]
    return compiled_fn


def raises_on_symbolic_relu(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Fails to compile relu of a tensor whose size is a symbol."""
    for node in graph_module.graph.nodes:
        if "relu" in str(node.target) and any(isinstance(n, torch.SymInt) for n in node.meta["val"].shape):
            raise NoKernel("relu needs sizes that are known")
    return make_boxed_func(graph_module.forward)


class Family:
    """Compilers that are methods."""

    def __init__(self, level: int) -> None:
        self.level = level

    def compile(self, graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
        if self.level > 1:
            return raises_on_relu(graph_module, example_inputs)
        return works_boxed(graph_module, example_inputs)


FAMILY = Family(2)
