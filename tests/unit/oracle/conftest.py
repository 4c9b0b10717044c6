from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx

from minidbg.case import BackendRef, Case
from minidbg.graphs import capture_by_dynamo


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def sin_relu_add(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.sin(x)) + 1


@pytest.fixture(scope="session")
def relu_graph() -> tuple[fx.GraphModule, tuple[Any, ...]]:
    """sin, relu, add, over one float input of shape [3, 4]."""
    generator = torch.Generator().manual_seed(0)
    return capture_by_dynamo(sin_relu_add, (torch.randn(3, 4, generator=generator),))


@pytest.fixture
def case_of(relu_graph: tuple[fx.GraphModule, tuple[Any, ...]]) -> Callable[..., Case]:
    """``case_of(backend, **fields)``: the relu graph with that backend, live."""

    def make(backend: Any, **fields: Any) -> Case:
        name = backend if isinstance(backend, str) else getattr(backend, "__name__", "backend")
        given = {"graph_module": relu_graph[0], "inputs": relu_graph[1], "compiler": backend, **fields}
        return Case(backend=BackendRef(name, repr(name)), **given)

    return make
