"""A case on its way to another process: the same there, whatever its graph, its values and its record are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from support.travelled import assert_same_case, case_over, described, travelled
from torch import distributed, fx
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from minidbg.fx.case import Case
from minidbg.source import transport
from minidbg.words.run_spec import BackendRef, Provenance, RunSpec

SPEC = RunSpec(BackendRef("eager", '"eager"'))


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    distributed.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
    yield DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))
    distributed.destroy_process_group()


def test_a_dtensor_comes_back_in_the_group_that_it_needs(mesh: DeviceMesh) -> None:
    case = case_over(DTensor.from_local(torch.randn(3, 4), mesh, [Shard(0), Replicate()], run_check=False))
    there = travelled(case)
    assert_same_case(case, there)
    assert any("init_process_group" in line for line in there.backend.setup)
    assert there.inputs[0].placements == case.inputs[0].placements


class Owner(torch.nn.Module):
    """A graph with tensors of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(300.0).view(100, 3).t())
        self.scale = torch.nn.Parameter(torch.tensor(-0.0))
        self.tied = self.scale


def test_constants_come_back_and_may_share_the_memory_of_an_input() -> None:
    owner, graph = Owner(), fx.Graph()
    value = graph.placeholder("x")
    for name in ("table", "scale", "tied"):
        value = graph.call_function(torch.add, (value, graph.get_attr(name)))
    graph.output((value,))
    case = Case(fx.GraphModule(owner, graph), (owner.table.t(),), SPEC)
    there = travelled(case)
    assert_same_case(case, there)
    assert there.graph_module.scale is there.graph_module.tied
    assert there.graph_module.table.data_ptr() == there.inputs[0].data_ptr()
    for name in ("table", "scale"):
        mine, theirs = (
            one.graph_module.get_parameter(name) if name != "table" else one.graph_module.table
            for one in (case, there)
        )
        assert described(theirs) == described(mine)


def test_names_that_a_script_would_change_stay_as_they_are() -> None:
    """The nodes that a child suspects are looked for in the graph of who has asked."""
    graph = fx.Graph()
    x = graph.placeholder("L_self_modules_fc_parameters_weight_")
    for name in ("fc_weight", "g", "root", "graph_module", "constants", "weird__name_3"):
        x = graph.create_node("call_function", torch.sin, (x,), {}, name)
    graph.output((x,))
    case = Case(fx.GraphModule({}, graph), (torch.randn(2),), SPEC)
    assert_same_case(case, travelled(case))


def test_the_story_of_a_case_travels() -> None:
    story = Provenance(
        7,
        2,
        "train.py:41",
        "y = f(x)",
        'a "message"\n\ud800 of two lines',
        notes=("one", "two"),
        suspects=("add_2 mul",),
    )
    case = replace(case_over(torch.randn(2)), provenance=story)
    assert_same_case(case, travelled(case))


def test_values_without_room_stay_and_others_of_their_kind_stand_in() -> None:
    """Those that a capture has: small ones and integers are sent, of the others the distribution."""
    torch.manual_seed(1)
    large, indices, small = torch.randn(4000) * 5, torch.randint(0, 9, (100,)), torch.randn(3)
    case = case_over(large, indices, small)
    assert transport.pack(case).left_out_bytes == 0
    parcel = transport.pack(case, room_bytes=2000)
    assert parcel.left_out_bytes == large.nbytes + indices.nbytes
    assert sum(data.numel() for data in parcel.storages.values()) <= 2000
    there = travelled(case, room_bytes=2000)
    assert [described(one) for one in there.inputs[1:]] == [described(one) for one in case.inputs[1:]]
    assert not torch.equal(there.inputs[0], large)
    assert 4 < there.inputs[0].std() < 6
    seeded = travelled(case, room_bytes=0)
    assert seeded.inputs[1].max() < 9
    assert not transport.pack(case, room_bytes=0).storages


def test_what_is_sent_is_not_copied_before() -> None:
    value = torch.randn(1000)
    (data,) = transport.pack(case_over(value)).storages.values()
    assert data.data_ptr() == value.data_ptr()
