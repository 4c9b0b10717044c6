"""Backends that lower one op wrongly, as real ones did: ``lowers("layer norm's eps")`` is a ``functools.partial``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from fails_on import name_of
from torch import Tensor, fx
from torch.nn import functional as F

BUGS: dict[str, tuple[str, Callable[..., Any]]] = {
    "matmul accumulated in bfloat16": ("matmul", lambda a, b: (a.bfloat16() @ b.bfloat16()).float()),
    "sum accumulated in bfloat16": ("sum", lambda x, *dims: torch.sum(x.bfloat16(), *dims).float()),
    "a square weight transposed": ("linear", lambda x, w, b: F.linear(x, w.t(), b)),
    "layer norm's eps": ("layer_norm", lambda *args: F.layer_norm(*args, eps=1e-3)),
    "RMS norm's eps": ("rms_norm", lambda *args: F.rms_norm(*args, eps=1e-3)),
    "zeros of a fallback: cumsum": ("cumsum", lambda x, dim: torch.zeros_like(x)),
    "zeros of a fallback: gelu": ("gelu", lambda x: torch.zeros_like(x)),
    "softmax over another dimension": ("softmax", lambda x, dim: torch.softmax(x, dim - 1)),
}
"""The op, and what is run for it."""


def lowers(bug: str) -> functools.partial[Callable[..., Any]]:
    return functools.partial(lower_wrongly, bug=bug)


def lower_wrongly(gm: fx.GraphModule, example_inputs: Sequence[Tensor], *, bug: str) -> Callable[..., Any]:
    op, wrong = BUGS[bug]
    for node in gm.graph.nodes:
        if node.op.startswith("call") and name_of(node) == op:
            node.op, node.target = "call_function", wrong
    gm.recompile()
    return gm.forward
