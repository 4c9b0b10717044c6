"""Values of a job of several ranks, and tensor subclasses, as the text of a script."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.graphs_to_write import read
from support.travelled import assert_same_case, case_over, described, travelled
from torch import distributed, fx
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from minidbg.codegen.inputs import Exactness, materialise, write_inputs
from minidbg.codegen.module_text import write_module
from minidbg.core.errors import CannotWrite
from minidbg.core.run_spec import BackendRef, RunSpec
from minidbg.core.settings import Settings
from minidbg.fx import ranks
from minidbg.fx.case import Case
from minidbg.reduction import minimize
from minidbg.reduction.publishing import Reduced, forms
from minidbg.repro import Form, render
from minidbg.wrapper.verify_runs import refusal


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """Of rank 1 of 4, alone."""
    distributed.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
    yield DeviceMesh("cpu", [0, 1, 2, 3])
    distributed.destroy_process_group()


def made_again(value: Any, exactness: Exactness = Exactness.EXACT) -> tuple[Any, str]:
    """What a script would make of ``value``, and its text."""
    text = write_inputs([value], ["x"], exactness)
    return materialise(text)[0], "\n".join([*text.imports, *text.lines])


# ---- values


SHARDS: list[tuple[list[Any], dict[str, Any]]] = [
    ([Shard(0), Replicate()], {}),
    ([Partial("sum"), Shard(1)], {}),
    ([Replicate(), Partial("avg")], {}),
    ([Shard(0), Replicate()], {"shape": torch.Size([7, 4]), "stride": (4, 1)}),  # of unequal size
]


@pytest.mark.usefixtures("mesh")
@pytest.mark.parametrize(("placements", "whole"), SHARDS)
def test_a_dtensor_is_written_with_its_mesh_placements_and_local_shard(placements: Any, whole: Any) -> None:
    """So it comes to another process, in the group that it needs."""
    mesh = DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))
    value = DTensor.from_local(torch.randn(3, 4), mesh, placements, run_check=False, **whole)
    made, text = made_again(value.requires_grad_())
    assert (type(made), made.placements, made.shape) == (DTensor, tuple(placements), value.shape)
    assert described(made) == described(value)
    assert 'mesh_dim_names=("dp", "tp")' in text.replace("'", '"')
    case = case_over(value)
    there = travelled(case)
    assert_same_case(case, there)
    assert any("init_process_group" in line for line in there.backend.setup)


def test_nested_tensors_that_share_their_offsets_still_do() -> None:
    one = torch.nested.nested_tensor_from_jagged(torch.randn(6, 3), torch.tensor([0, 2, 6]))
    first, second = materialise(write_inputs([one, one.sin()], ["a", "b"]))
    assert (first + second).is_nested  # eager refuses to add those of other offsets
    assert first.offsets().tolist() == [0, 2, 6]


class NotTakenApart(torch.Tensor):
    """A wrapper that does not say what it is made of."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


def test_a_subclass_that_cannot_be_taken_apart_is_refused_by_its_name() -> None:
    with pytest.raises(CannotWrite, match=r"input x .*NotTakenApart.*__tensor_flatten__"):
        made_again(torch.Tensor._make_wrapper_subclass(NotTakenApart, (2,)))


def test_a_mesh_among_other_inputs_leaves_their_shared_storage_alone(mesh: DeviceMesh) -> None:
    whole = torch.zeros(4)
    made, x, y = materialise(write_inputs([mesh, whole, whole[:2]], ["mesh", "x", "y"]))
    assert made == mesh
    assert x.data_ptr() == y.data_ptr()


# ---- graphs

all_reduce = torch.ops._c10d_functional.all_reduce.default


def graph_of(*calls: tuple[Any, tuple[Any, ...]]) -> fx.GraphModule:
    """``x`` through one call after the other."""
    graph = fx.Graph()
    value = graph.placeholder("x")
    for target, more in calls:
        value = graph.call_function(target, (value, *more))
    graph.output((value,))
    return fx.GraphModule({}, graph)


def redistribute(value: DTensor, placements: Any) -> DTensor:
    return value.redistribute(placements=placements)


def case_of(graph_module: fx.GraphModule, value: Any) -> Case:
    return Case(graph_module, (value,), RunSpec(BackendRef("eager", '"eager"')))


@pytest.mark.usefixtures("mesh")
def test_placements_in_arguments_are_read_back_as_they_were_written() -> None:
    graph_module = graph_of((redistribute, ((Shard(-1), Replicate()),)))
    (call,) = read(write_module(graph_module)).graph.find_nodes(op="call_function", target=redistribute)
    assert call.args[1] == (Shard(-1), Replicate())


@pytest.mark.usefixtures("mesh")
def test_a_script_makes_the_groups_that_its_collectives_name() -> None:
    name = distributed.new_group([0, 1]).group_name
    case = case_of(graph_of((all_reduce, ("sum", name))), torch.ones(2))
    text = render(case, Form.CAPTURE).text
    assert 'init_process_group("fake", rank=1, world_size=4' in text
    assert f'_register_process_group("{name}", distributed.new_group([0, 1]))' in text


@pytest.mark.usefixtures("mesh")
def test_a_smaller_case_without_collectives_loses_the_process_group() -> None:
    case = ranks.with_group(case_of(graph_of((all_reduce, ("sum", "0"))), torch.ones(2)))
    assert ranks.FAKE_GROUP in case.backend.setup
    smaller = case.with_graph(graph_of((torch.relu, ())), (torch.ones(2),))
    assert ranks.with_group(smaller).backend.setup == ()


def test_a_backend_that_asks_for_its_rank_finds_the_one_of_the_failure() -> None:
    """A group that no node needs, and that stays however small the graph becomes."""
    case = case_of(graph_of((torch.relu, ()), (torch.tanh, ())), torch.ones(2))
    assert ranks.on_its_rank(case) is None, "one process has nothing to ask for"
    case = replace(case, provenance=replace(case.provenance, notes=("seen on rank 2 of 4",)))
    tried = [ranks.is_asked_for_its_rank(form) for form, *_ in forms(Reduced(case), case)]
    assert tried[:2] == [False, True], "only where the first form does not fail"
    asked = ranks.on_its_rank(case)
    smaller = asked.with_graph(graph_of((torch.relu, ())), (torch.ones(2),))
    assert ranks.on_its_rank(smaller) is None
    text = render(smaller, Form.CAPTURE).text
    assert 'init_process_group("fake", rank=2, world_size=4' in text


def test_a_graph_over_dtensors_is_not_verified(mesh: DeviceMesh) -> None:
    """Any operation on one may move data between the ranks."""
    value = DTensor.from_local(torch.randn(2), mesh, [Shard(0)], run_check=False)
    why = refusal(graph_of((torch.relu, ())), [value], frozenset(), Settings())
    assert "talks to other ranks (x)" in str(why)


@pytest.mark.parametrize("needs_dtensor", [False, True])
def test_local_shards_stand_in_for_dtensors_where_the_bug_lets_them(
    needs_dtensor: bool, mesh: DeviceMesh
) -> None:
    value = DTensor.from_local(torch.randn(2, 3), mesh, [Shard(0)], run_check=False)

    def fails(graph_module: fx.GraphModule, inputs: Any) -> bool:
        has_relu = any(node.target is torch.relu for node in graph_module.graph.nodes)
        return has_relu and (not needs_dtensor or any(isinstance(one, DTensor) for one in inputs))

    result = minimize(graph_of((torch.relu, ()), (torch.tanh, ())), [value], fails, simplify=True)
    (left,) = result.inputs
    assert type(left) is (DTensor if needs_dtensor else torch.Tensor)


@pytest.mark.parametrize(
    ("calls", "said", "in_vain"),
    [
        ("all_reduce", "[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1000ms for recv", True),
        ("all_reduce", "[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:5022", True),
        ("all_reduce", "kernel failed", False),
        ("relu", "Connection closed by peer", False),
    ],
)
def test_a_rank_that_does_not_come_is_told_from_a_failure_of_the_backend(
    calls: str, said: str, in_vain: bool
) -> None:
    graph_module = graph_of((all_reduce, ("sum", "0")) if calls == "all_reduce" else (torch.relu, ()))
    assert ranks.is_waiting_in_vain(RuntimeError(said), graph_module, [torch.ones(2)]) is in_vain
