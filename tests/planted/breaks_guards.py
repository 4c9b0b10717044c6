"""Backends that return well and leave dynamo unable to build its guards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from odd_backends import has
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._guards import TracingContext
from torch.fx.experimental.symbolic_shapes import DimDynamic

CompiledFn = Callable[..., Any]


def own_symbol(size: int, name: str) -> Any:
    """A symbol that belongs to no input, as tracing a graph once more on real tensors makes them."""
    fake_mode = TracingContext.get().fake_mode
    env: Any = fake_mode.shape_env if fake_mode is not None else None
    return env.create_symintnode(
        env.create_symbol(size, ConstantSource(name), dynamic_dim=DimDynamic.DYNAMIC), hint=size
    )


def guards_on_its_own_symbol(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Dynamo raises ``IndexError: list index out of range`` for relu."""
    if has(gm, "relu"):
        bool(own_symbol(7, "own_7") % 7 == 0)
    return fx.Interpreter(gm).run


def compares_its_own_symbols(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Dynamo raises ``AssertionError: sources must not be empty for symbol s75`` for relu."""
    if has(gm, "relu"):
        bool(own_symbol(7, "own_7") < own_symbol(9, "own_9"))
    return fx.Interpreter(gm).run


def names_what_no_guard_knows(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Dynamo builds a guard for relu that refers to ``own_0``: ``name 'own_0' is not defined``."""
    if has(gm, "relu"):
        size = next(value for value in example_inputs if isinstance(value, torch.SymInt))
        bool(size < own_symbol(900, "own_0"))
    return fx.Interpreter(gm).run


def guards_on_an_input(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Healthy: it compiles for small inputs only, and says so by a guard."""
    for value in example_inputs:
        if isinstance(value, torch.SymInt):
            bool(value % 2 == 1)
    return fx.Interpreter(gm).run
