"""A case on its way to another process: the same there, whatever its graph, its values and its record are."""

from __future__ import annotations

import torch
from support.travelled import assert_same_case, case_over, described, travelled
from torch import fx

from minidbg.codegen import transport
from minidbg.core.run_spec import BackendRef, Provenance, RunSpec
from minidbg.fx.case import Case

STORY = Provenance(
    7, 2, "train.py:41", "y = f(x)", 'a "message"\n\ud800 of two lines', notes=("one", "two"), suspects=("add_2 mul",)
)  # fmt: skip


class Owner(torch.nn.Module):
    """A graph with tensors of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(300.0).view(100, 3).t())
        self.scale = torch.nn.Parameter(torch.tensor(-0.0))
        self.tied = self.scale


def test_constants_come_back_and_may_share_the_memory_of_an_input() -> None:
    """As do the story, and names that a script would change: the nodes that a child suspects are looked for in the graph of who has asked."""
    owner, graph = Owner(), fx.Graph()
    value = graph.placeholder("L_self_modules_fc_parameters_weight_")
    for constant, name in zip(("table", "scale", "tied"), ("fc_weight", "g", "weird__name_3"), strict=True):
        value = graph.create_node("call_function", torch.add, (value, graph.get_attr(constant)), {}, name)
    for name in ("root", "graph_module", "constants"):
        value = graph.create_node("call_function", torch.sin, (value,), {}, name)
    graph.output((value,))
    spec = RunSpec(BackendRef("eager", '"eager"'))
    case = Case(fx.GraphModule(owner, graph), (owner.table.t(),), spec, STORY)
    there = travelled(case)
    assert_same_case(case, there)
    module = there.graph_module
    assert module.scale is module.tied
    assert module.table.data_ptr() == there.inputs[0].data_ptr()
    mine = [owner.table, owner.scale]
    assert list(map(described, [module.table, module.scale])) == list(map(described, mine))


def test_values_without_room_stay_and_others_of_their_kind_stand_in() -> None:
    """Those that a capture has: small ones and integers are sent, of the others the distribution. What is sent is not copied before."""
    torch.manual_seed(1)
    large, indices, small = torch.randn(4000) * 5, torch.randint(0, 9, (100,)), torch.randn(3)
    case = case_over(large, indices, small)
    whole = transport.pack(case)
    assert whole.left_out_bytes == 0
    assert large.data_ptr() in [data.data_ptr() for data in whole.storages.values()]
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
