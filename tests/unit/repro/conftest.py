"""Small cases to write and read."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from minidbg.core.outcome import Kind, Signature
from minidbg.core.run_spec import BackendRef, Context, Provenance, RunSpec
from minidbg.fx.case import Case

STORY = Provenance(
    nodes=812,
    inputs=214,
    captured_from="train.py:41",
    line="y = x.relu()",
    message="ValueError: no relu here",
    torch_version="2.13.0+cpu",
    python_version="3.11.7",
    reduced=True,
    certified=True,
)
SIGNATURE = Signature(Kind.COMPILE, types=("ValueError",), frames=("pkg.mod:lower",), message="no relu here")


def graph_of_one_relu() -> fx.GraphModule:
    """``x.relu()``."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_method("relu", (x,)),))
    return fx.GraphModule(torch.nn.Module(), graph)


@pytest.fixture
def make_case() -> Callable[..., Case]:
    """A case of one relu; keyword arguments replace its fields."""

    def make(graph_module: fx.GraphModule | None = None, inputs: tuple[Any, ...] = (), **fields: Any) -> Case:
        graph_module = graph_module or graph_of_one_relu()
        own = {name: fields.pop(name) for name in ("provenance", "compiler") if name in fields}
        given = {"context": Context(), "signature": SIGNATURE, **fields}
        torch.manual_seed(0)
        backend = given.pop("backend", BackendRef(name="eager", expression='"eager"'))
        return Case(
            graph_module,
            inputs or (torch.randn(4, 8),),
            RunSpec(backend, **given),
            **{"provenance": STORY, **own},
        )

    return make


@pytest.fixture
def relu_graph() -> Callable[[], fx.GraphModule]:
    """Makes the graph of ``make_case``."""
    return graph_of_one_relu
