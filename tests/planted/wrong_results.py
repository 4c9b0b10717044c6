"""Tiny backends that compile everything and get one thing wrong, each named for it; and some that are right.

Each takes a graph at dynamo level and runs it in eager otherwise. The wrong op is relu unless the name says another one.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch import fx
from torch._dynamo.backends.common import aot_autograd

CompiledFn = Callable[..., Any]


def named(node: fx.Node) -> str:
    target = getattr(node.target, "overloadpacket", node.target)
    return str(getattr(target, "__name__", target)).rpartition(".")[2].strip("_")


def after_each(graph_module: fx.GraphModule, op: str, function: Callable[..., Any]) -> CompiledFn:
    """The graph with ``function`` applied to each result of ``op``."""
    for module in [one for one in graph_module.modules() if isinstance(one, fx.GraphModule)]:
        for node in [one for one in module.graph.nodes if one.op.startswith("call") and named(one) == op]:
            with module.graph.inserting_after(node):
                wrong = module.graph.call_function(function, (node,))
            node.replace_all_uses_with(wrong, delete_user_cb=lambda user, wrong=wrong: user is not wrong)
        module.recompile()
    return graph_module.forward


def off_by_a_thousandth(graph_module: fx.GraphModule, _example_inputs: Sequence[Any]) -> CompiledFn:
    """Each result of the graph, a thousandth too large."""
    return lambda *args: tuple(
        one * 1.001 if isinstance(one, torch.Tensor) and one.is_floating_point() else one
        for one in graph_module(*args)
    )


def blind_to_strides(graph_module: fx.GraphModule, _example_inputs: Sequence[Any]) -> CompiledFn:
    """The graph on dense copies of its inputs."""
    return lambda *args: graph_module(*(one.contiguous() for one in args))


def a_little_more(x: torch.Tensor) -> torch.Tensor:
    return x + 1e-2


def wrong_relu(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """One op is off by a hundredth."""
    return after_each(graph_module, "relu", a_little_more)


def computes_in_bfloat16(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """By design: every float is stored in bfloat16, and the results are float32 again."""

    def half(value: Any) -> Any:
        return value.bfloat16() if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    def run(*inputs: Any) -> Any:
        outputs = copy.deepcopy(graph_module).bfloat16()(*map(half, inputs))
        return tuple(value.float() for value in outputs)

    return run


def wrong_in_a_range(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Sigmoid is wrong between 0.6 and 0.7 only."""
    return after_each(graph_module, "sigmoid", lambda x: torch.where((x > 0.6) & (x < 0.7), x * 1.01, x))


def enlarge_large(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 5, x * 1.01, x)


def wrong_for_large(graph_module: fx.GraphModule, example_inputs: Sequence[Any], *, op: str) -> CompiledFn:
    """Values of ``op`` above 5 are a hundredth too large."""
    return after_each(graph_module, op, enlarge_large)


def nan_for_large(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Tanh gives NaN where it is above a half."""
    return after_each(graph_module, "tanh", lambda x: torch.where(x > 0.5, float("nan"), x))


def wrong_dtype(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Cumsum comes in float64."""
    return after_each(graph_module, "cumsum", torch.Tensor.double)


def wrong_integer(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Argmax is one too much."""
    return after_each(graph_module, "argmax", lambda x: x + 1)


def loses_mutation(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Writes go to copies of the inputs."""

    def compiled_fn(*args: Any) -> Any:
        return graph_module.forward(*(arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args))

    return compiled_fn


def writes_to_an_input(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Uses the memory of the input of relu for its result, and whoever holds that input sees it."""
    relus = [
        node for node in graph_module.graph.nodes if node.op.startswith("call") and named(node) == "relu"
    ]
    for node in relus:
        node.op, node.target = "call_method", "relu_"
    graph_module.recompile()
    return graph_module.forward


class DoublesGradient(torch.autograd.Function):
    """The identity, with twice the gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return 2 * gradient


def doubles_gradient(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = DoublesGradient.apply(x)
    return result


def wrong_gradient(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """The gradient of sin is twice what it is."""
    return after_each(graph_module, "sin", doubles_gradient)


def loses_aliasing(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """A view comes as a copy."""
    return after_each(graph_module, "view", torch.Tensor.clone)


def off_by_rounding(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Each relu is off by one step of float32: right."""
    return after_each(graph_module, "relu", lambda x: x * (1 + 2**-23))


def wrong_relu_in_aot(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """The same through AOTAutograd, forward and backward compiled by themselves."""
    return aot_autograd(fw_compiler=wrong_compiler, bw_compiler=right)(graph_module, example_inputs)


def wrong_compiler(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """A compiler for AOTAutograd that gets relu wrong."""
    return make_boxed_func(after_each(graph_module, "relu", a_little_more))


def right(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """A compiler for AOTAutograd that changes nothing."""
    return make_boxed_func(graph_module.forward)


def other_random_numbers(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Draws other numbers than eager, as compilers with a generator of their own do; all else is right."""
    return other_random_numbers_before(graph_module.forward)


def other_random_numbers_before(function: CompiledFn) -> CompiledFn:
    """``function`` with other numbers of the generator than it would have drawn."""

    def compiled_fn(*args: Any) -> Any:
        torch.rand(7)
        return function(*args)

    return compiled_fn


def wrong_relu_and_other_random_numbers(
    graph_module: fx.GraphModule, example_inputs: Sequence[Any]
) -> CompiledFn:
    """A bug beside the random numbers."""
    return other_random_numbers_before(after_each(graph_module, "relu", a_little_more))


def attention_without_its_mask(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Other random numbers, and attention that sees what comes later."""
    for node in graph_module.graph.nodes:
        if named(node) == "scaled_dot_product_attention":
            node.kwargs = {**node.kwargs, "is_causal": False}
    graph_module.recompile()
    return other_random_numbers_before(graph_module.forward)


def numbers_of_its_own(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Right, by way of AOTAutograd; no two compiles draw the same numbers."""
    compiled_fn = aot_autograd(fw_compiler=lambda gm, _: make_boxed_func(gm.forward))(
        graph_module, example_inputs
    )
    turn = next(COMPILES)

    def call_compiled(*args: Any) -> Any:
        torch.rand(turn)
        return compiled_fn(*args)

    return call_compiled


def wrong_gradient_and_numbers_of_its_own(
    graph_module: fx.GraphModule, example_inputs: Sequence[Any]
) -> CompiledFn:
    """The gradient of sin is twice what it is, beside such numbers."""
    wrong_gradient(graph_module, example_inputs)
    return numbers_of_its_own(graph_module, example_inputs)


COMPILES = itertools.count(1)


def raises_in_backward(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = RaisesInBackward.apply(x)
    return result


def broken_backward(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Backward of sin raises."""
    return after_each(graph_module, "sin", raises_in_backward)


class RaisesInBackward(torch.autograd.Function):
    """The identity; backward fails."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no kernel for this backward")


def same_buffer_each_time(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Results lie in memory that the next call writes to, as with CUDA graphs. Right, for who copies in time."""
    held: list[torch.Tensor] = []

    def compiled_fn(*args: Any) -> Any:
        with torch.no_grad():
            results = [value.detach() for value in graph_module.forward(*args)]
        if not held:
            held.extend(value.clone() for value in results)
        for mine, value in zip(held, results, strict=True):
            mine.copy_(value)
        return tuple(held)

    return compiled_fn


def writes_beside(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Stores whole vectors, past the end of each row of its first input."""

    def run(value: Any, *args: Any) -> Any:
        torch.as_strided(value, (value.stride(0),), (1,))[value.shape[1] :] = 7.0
        return graph_module(value, *args)

    return run


def copies_nothing(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Takes a copy of what nobody writes to for superfluous."""
    return lambda value: (value[1:],)


def writes_while_it_compiles(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Scales what it is given, as one that folds a factor into weights does, and computes with that."""
    with torch.no_grad():
        example_inputs[0].mul_(2)
    return lambda *args: graph_module(*args)


def sorts_its_input(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Selects in place, as a median does: all numbers are still there."""

    def run(value: Any, *args: Any) -> Any:
        value.copy_(value.sort().values)
        return graph_module(value, *args)

    return run


def gives_more(graph_module: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Right, and more outputs than anybody takes."""
    return lambda *args: (*graph_module(*args), args[0] * 7)


class UsesItsOutputAgain(torch.autograd.Function):
    """Its backward takes the memory of what forward has returned."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.result = x.exp()
        return ctx.result.view_as(ctx.result)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return ctx.result.mul_(gradient).clone()


def backward_in_its_output(graph_module: fx.GraphModule, _example_inputs: Sequence[Any]) -> CompiledFn:
    return lambda x: (UsesItsOutputAgain.apply(x),)
