"""The links of a chain: what two places may say of one backend, when two are the same, and a later link's compile outside dynamo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from minidbg.core.run_spec import Level
from minidbg.wrapper.chain import Link, backend_hash, compile_at_run_time, merged_links


def test_a_value_that_is_unlike_itself_is_no_conflict() -> None:
    nan = float("nan")
    assert merged_links({"a": nan}, None, {"a": nan}, None)[0] == {"a": nan}


def backend(gm: fx.GraphModule, inputs: Sequence[Any], level: int = 0) -> Callable[..., Any]:
    return gm.forward


class Unhashable:
    """Equal by value, as a dataclass is that somebody has made a backend of."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unhashable)


def test_a_backend_that_nothing_hashes_has_the_hash_of_its_class() -> None:
    assert backend_hash(Unhashable()) == backend_hash(Unhashable())


def test_an_aot_autograd_backend_is_named_after_its_compiler_for_people() -> None:
    from torch._dynamo.backends.common import aot_autograd

    link = Link(aot_autograd(fw_compiler=backend))
    assert "backend" in link.name
    assert link.name != link.__name__


def doubled(x: fx.Node, graph: fx.Graph) -> fx.GraphModule:
    graph.output((graph.call_function(torch.mul, (x, 2)),))
    return fx.GraphModule(torch.nn.Module(), graph)


def graph_over(example: Any = None) -> fx.GraphModule:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = example
    return doubled(x, graph)


class Counts:
    """A backend that remembers the shapes it has compiled for, and what was called with which."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.graphs: list[fx.GraphModule] = []
        self.called: list[Any] = []

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.shapes.append(tuple(inputs[0].shape) if isinstance(inputs[0], torch.Tensor) else inputs[0])
        self.graphs.append(gm)

        def compiled_fn(value: Any) -> Any:
            self.called.append(value)
            return gm.forward(value)

        return compiled_fn


def test_a_static_graph_is_compiled_once_and_on_a_copy() -> None:
    graph, counts = graph_over(), Counts()
    compiled = compile_at_run_time(Link(counts), graph, (torch.ones(2),))
    assert torch.equal(compiled(torch.ones(3))[0], torch.full((3,), 2.0))
    assert counts.shapes == [(2,)]
    assert counts.graphs[0] is not graph


def dynamic_graph() -> fx.GraphModule:
    return graph_over(ShapeEnv().create_unbacked_symint())


def test_a_dynamic_graph_is_compiled_for_one_form_of_its_inputs_and_others_run_in_eager() -> None:
    counts = Counts()
    compiled = compile_at_run_time(Link(counts), dynamic_graph(), (torch.ones(2, 3),))
    alike = torch.ones(2, 3)
    for value in (alike, torch.ones(3, 2).t(), torch.eye(2).to_sparse(), 3):
        compiled(value)
    assert counts.shapes == [(2, 3)]
    assert [value is alike for value in counts.called] == [True]


def test_a_later_link_below_aot_autograd_gets_fake_inputs_as_from_there() -> None:
    seen: list[bool] = []

    def compiler(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        seen.append(type(inputs[0]).__name__ == "FakeTensor")
        return gm.forward

    for level in (Level.DYNAMO, Level.ATEN):
        compile_at_run_time(Link(compiler, level=level), graph_over(), (torch.ones(2),))
    assert seen == [False, True]
