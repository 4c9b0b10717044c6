"""The graph that dynamo makes of a function or module, with its inputs, without running it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import fx

from minidbg import _torch
from minidbg.errors import MinidbgError
from minidbg.graphs.copying import copy_graph_module


class NoGraph(MinidbgError):
    """Dynamo made no single graph of the function: it computes nothing, or not all of it can be captured."""


class _Captured(BaseException):
    """Ends the call once the graph and its inputs are known. No user code may catch it."""

    def __init__(self, inputs: tuple[Any, ...]) -> None:
        self.inputs = inputs


def capture_by_dynamo(
    function: Callable[..., Any], args: Sequence[Any], *, dynamic: bool | None = None
) -> tuple[fx.GraphModule, tuple[Any, ...]]:
    """The whole graph of ``function(*args)`` and the values of its placeholders in order.

    The inputs are the live tensors (parameters of a module among them) and plain numbers. The graph is
    not run. Raises NoGraph when there is no single graph, and whatever dynamo raises on code that it
    cannot trace.
    """
    graphs: list[fx.GraphModule] = []

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., NoReturn]:
        graphs.append(copy_graph_module(gm))
        return stop

    def stop(*inputs: Any) -> NoReturn:
        raise _Captured(inputs)

    compiled = torch.compile(function, backend=backend, fullgraph=True, dynamic=dynamic)
    with _torch.many_recompiles():
        try:
            compiled(*args)
        except _Captured as captured:
            return graphs[-1], captured.inputs
    raise NoGraph(
        "torch.compile made no graph of it: it has no operation on tensors, or dynamo is switched off; "
        "give a function that computes something"
    )
