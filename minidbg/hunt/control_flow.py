"""Steps of random programs that are more than one op: control flow, and arithmetic on sizes.

Each is a Python function into which dynamo traces: a program's graph then has torch's own control-flow ops, and symbolic sizes
where sizes are symbolic. In eager the same values come from plain Python.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from minidbg import _torch

ROUNDS_OF_LOOP = 3
SIZES = ("half", "mean", "arange", "rows", "square", "padded", "last")


def chain(value: torch.Tensor, names: Sequence[str]) -> torch.Tensor:
    """``value`` through ops that keep shape and dtype."""
    for name in names:
        value = getattr(torch, name)(value)
    return value


def cond(value: torch.Tensor, one: Sequence[str], other: Sequence[str]) -> torch.Tensor:
    """One chain or the other, by the sum of the values."""
    positive = value.sum() > 0
    if torch.compiler.is_dynamo_compiling():
        return torch.cond(  # type: ignore[no-any-return]
            positive, lambda value: chain(value, one), lambda value: chain(value, other), (value,)
        )
    return chain(value, one if positive else other)


def while_loop(value: torch.Tensor, names: Sequence[str]) -> torch.Tensor:
    """The chain, a few times."""
    if torch.compiler.is_dynamo_compiling():
        start = torch.zeros((), dtype=torch.int64)
        loop = _torch.loop_functions()["while_loop"]
        return loop(  # type: ignore[no-any-return]
            lambda turn, value: turn < ROUNDS_OF_LOOP,
            lambda turn, value: (turn + 1, chain(value, names)),
            (start, value),
        )[1]
    for _ in range(ROUNDS_OF_LOOP):
        value = chain(value, names).clone()
    return value


def mapped(value: torch.Tensor, names: Sequence[str]) -> torch.Tensor:
    """The chain over each row."""
    if torch.compiler.is_dynamo_compiling():
        return _torch.loop_functions()["map"](lambda row: chain(row, names), value)  # type: ignore[no-any-return]
    return torch.stack([chain(row, names) for row in value.unbind(0)])


def scanned(value: torch.Tensor, names: Sequence[str]) -> torch.Tensor:
    """The sums of the rows so far, each through the chain."""
    if torch.compiler.is_dynamo_compiling():

        def step(carry: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            result = chain(carry + row, names)
            return result, result.clone()

        return _torch.loop_functions()["scan"](step, torch.zeros_like(value[0]), value)[1]  # type: ignore[no-any-return]
    rows, carry = [], torch.zeros_like(value[0])
    for row in value.unbind(0):
        carry = chain(carry + row, names)
        rows.append(carry)
    return torch.stack(rows)


def sized(value: torch.Tensor, what: str) -> torch.Tensor:
    """Something that is made with the sizes of ``value``."""
    rows = value.size(0)
    if what == "half":
        return value[: rows // 2]
    if what == "mean":
        return value.sum(0) / rows
    if what == "arange":
        return torch.arange(value.numel()).reshape(value.shape)
    if what == "rows":
        return value.reshape(rows, value.numel() // rows)
    if what == "square":
        return value.new_ones(rows, rows).tril()
    if what == "padded":
        return torch.nn.functional.pad(value, (0, rows))
    return value.narrow(0, rows - 1, 1)
