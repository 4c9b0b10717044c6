"""Programs for ``minidbg nodes``, each with a backend and the op of the first bad row; and backends that hand nodes on."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

import torch
from fails_on import name_of
from one_op import on_op
from torch import Tensor, fx
from torch._inductor.compile_fx import compile_fx
from torch.utils.checkpoint import checkpoint

CompiledFn = Callable[..., Any]


def returns_what_it_got(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    return lambda *inputs: (inputs[0],) if "add" in gm.code else gm(*inputs)


def gives_softmax_to_inductor(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    if "softmax" in gm.code:
        return compile_fx(gm, list(example_inputs))
    return lambda *inputs: gm(*inputs)


def always_inductor(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    return compile_fx(gm, list(example_inputs))


def hands_back(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    return gm.forward


class WritesWrongly(fx.Interpreter):
    """One more in what the op writes to."""

    op = ""

    def run_node(self, node: fx.Node) -> Any:
        value = super().run_node(node)
        if node.op.startswith("call") and name_of(node) == self.op:
            self.fetch_args_kwargs_from_env(node)[0][0].add_(1.0)
        return value


def writing_wrongly(gm: fx.GraphModule, example_inputs: Sequence[Any], *, op: str) -> CompiledFn:
    interpreter = WritesWrongly(gm)
    interpreter.op = op
    return interpreter.run


COMPILED: list[fx.GraphModule] = []


def forgets_itself(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Wrong from the third graph of a process on."""
    COMPILED.append(gm)
    return lambda *inputs: tuple(value + (len(COMPILED) > 2) for value in gm(*inputs))


def dies_of_many(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Ends its process at the third graph."""
    COMPILED.append(gm)
    if len(COMPILED) > 2:
        os.kill(os.getpid(), signal.SIGSEGV)
    return lambda *inputs: gm(*inputs)


def spoils_its_input(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    def run(*inputs: Any) -> Any:
        results = gm(*inputs)
        inputs[0].detach().zero_()
        return results

    return run


def on_meta(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    return lambda *inputs: tuple(value.to("meta") for value in gm(*inputs))


def writes_by(op: str) -> functools.partial[CompiledFn]:
    return functools.partial(writing_wrongly, op=op)


def slice_written(x: Tensor) -> Tensor:
    y = x.clone()
    y[0] = 5.0
    return y * 2


def cache_written(cache: Tensor, x: Tensor) -> Tensor:
    cache[0] = x
    return x + 1


def in_place(x: Tensor) -> Tensor:
    y = torch.relu(x)
    y.add_(1)
    return y.sin()


def checkpointed(x: Tensor) -> Any:
    return checkpoint(lambda y: y.cos() * 2, x * 2, use_reentrant=False)


def six(x: Tensor) -> Tensor:
    return x.sin().tanh().sin().cos().tanh().sin()


def without_memory(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, torch.zeros(2, device="meta") * 2


X = torch.linspace(-2, 2, 24).reshape(4, 6)
Z = torch.complex(X, X.flip(0))
CACHE = torch.zeros(2, 4, 6)
TABLES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], Any, str, str]] = {
    "a slice is written": (slice_written, (X,), writes_by("setitem"), "isolated", "setitem"),
    "an input is written": (cache_written, (CACHE, X), writes_by("setitem"), "isolated", "setitem"),
    "an input, at the end": (
        cache_written,
        (CACHE, X),
        writes_by("setitem"),
        "accumulated",
        "after the call",
    ),
    "in place": (in_place, (X,), writes_by("add_"), "isolated", "add_"),
    "in place, at the end": (in_place, (X,), writes_by("add_"), "accumulated", "add_"),
    "a part of a number": (lambda z: z.real.clone(), (Z,), on_op("getattr", "values"), "isolated", "getattr"),
    "inside a checkpoint": (
        checkpointed,
        (X,),
        on_op("cos", "values"),
        "isolated",
        "tag_activation_checkpoint",
    ),
    "an input that is spoiled": (six, (X,), spoils_its_input, "accumulated", "after the call"),
    "on no device": (six, (X,), on_meta, "isolated", "sin"),
    "an op that is refused": (six, (X,), on_op("cos", "compile"), "accumulated", "cos"),
    "a tensor without memory": (without_memory, (X,), on_op("none", "values"), "isolated", ""),
}
