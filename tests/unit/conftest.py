from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from minidbg import backends
from minidbg.core.run_spec import BackendRef, RunSpec
from minidbg.fx.case import Case
from minidbg.fx.copying import capture_by_dynamo


def sin_relu_add(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.sin(x)) + 1


@pytest.fixture(scope="session")
def relu_graph() -> tuple[fx.GraphModule, tuple[Any, ...]]:
    """sin, relu, add, over one float input of shape [3, 4]."""
    generator = torch.Generator().manual_seed(0)
    captured = capture_by_dynamo(sin_relu_add, (torch.randn(3, 4, generator=generator),))
    torch._dynamo.reset()
    return captured


@pytest.fixture
def case_of(relu_graph: tuple[fx.GraphModule, tuple[Any, ...]]) -> Callable[..., Case]:
    """``case_of(backend, **fields)``: the relu graph with that backend, live; a fresh process finds those that a module defines."""

    def make(backend: Any, **fields: Any) -> Case:
        name = backend if isinstance(backend, str) else getattr(backend, "__name__", "backend")
        own = {one: fields.pop(one) for one in ("graph_module", "inputs", "provenance") if one in fields}
        home = sys.modules.get(getattr(backend, "__module__", ""))
        known = home is not None and getattr(home, name, None) is backend
        spec = RunSpec(backends.find_reference(backend) if known else BackendRef(name, repr(name)), **fields)
        given = {"graph_module": relu_graph[0], "inputs": relu_graph[1], "spec": spec, "compiler": backend}
        return Case(**{**given, **own})

    return make
