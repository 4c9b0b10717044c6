"""Backends with habits that torch's own minifier does not stand, each for one of its measured weaknesses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from fails_on import NotSupported, all_nodes, name_of
from torch import fx

CompiledFn = Callable[..., Any]


def has(gm: fx.GraphModule, name: str) -> bool:
    return any(name_of(node) == name for node in all_nodes(gm) if node.op.startswith("call"))


def fails_by_option(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> CompiledFn:
    """Fails on relu at level 3 only."""
    if dict(options or {}).get("level") == 3 and has(gm, "relu"):
        raise NotSupported("relu at level 3")
    return gm.forward


class Compiler:
    """An instance that is called as a backend."""

    def __init__(self, level: int = 0) -> None:
        self.level = level

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
        if self.level and has(gm, "relu"):
            raise NotSupported(f"relu at level {self.level}")
        return gm.forward


compiler = Compiler(3)


class OneError(Exception):
    """Without a message."""


class OtherError(Exception):
    """Without a message, too."""


def fails_in_two_silent_ways(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Every graph fails; those with relu by another type, and none says a word."""
    raise OneError if has(gm, "relu") else OtherError


def fails_on_a_value(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledFn:
    """Runs, unless some element of an input is 41.5."""

    def compiled_fn(*args: Any) -> Any:
        if has(gm, "sin") and any(bool((arg == 41.5).any()) for arg in args if isinstance(arg, torch.Tensor)):
            raise NotSupported("41.5 does not fit")
        return gm(*args)

    return compiled_fn
