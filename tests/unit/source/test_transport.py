"""A case on its way to another process: the same there, whatever its graph, its values and its record are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.travelled import assert_same_case, described, travelled
from torch import Tensor, distributed, fx
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.testing._internal.two_tensor import TwoTensor

from minidbg.fx.case import Case
from minidbg.source import transport
from minidbg.words.errors import CannotWrite
from minidbg.words.run_spec import BackendRef, Provenance, RunSpec

SPEC = RunSpec(BackendRef("eager", '"eager"'))


def case_over(*inputs: Any, **fields: Any) -> Case:
    """A graph that adds its inputs, in nodes of all kinds of names."""
    graph = fx.Graph()
    placeholders = [graph.placeholder(f"L_x_{number}_") for number in range(len(inputs))]
    value: Any = 1
    for node in placeholders:
        value = graph.call_function(torch.add, (value, node))
        value.meta["stack_trace"] = '  File "/home/me/train.py", line 7, in forward\n    y = x + 1\n'
    graph.output((value,))
    return Case(fx.GraphModule({}, graph), inputs, replace(SPEC, **fields))


def with_grad_history() -> Tensor:
    return torch.randn(4, 3, requires_grad=True) * 1


def in_inference() -> Tensor:
    with torch.inference_mode():
        return torch.randn(3)


def sharing() -> tuple[Any, ...]:
    base, weight = torch.randn(40), torch.nn.Parameter(torch.randn(4, 5))
    return (
        base.view(5, 8),
        base[3:7],
        base.view(torch.int32)[2:5],
        weight,
        weight.t(),
        weight.detach(),
        weight,
    )


VALUES: dict[str, Callable[[], Any]] = {
    "numbers": lambda: (3, 2.5, True, None, torch.randn(2)),
    "plain": lambda: torch.randn(5, 7),
    "one number": lambda: torch.tensor(3.0),
    "nothing": lambda: torch.randn(3, 0),
    "nan and negative zero": lambda: torch.tensor([float("nan"), -0.0, float("inf"), 1e-45]),
    "bits": lambda: torch.randint(0, 256, (6,), dtype=torch.uint8).view(torch.bits8),
    "bfloat16": lambda: torch.randn(5).bfloat16(),
    "float8": lambda: torch.randn(5).to(torch.float8_e5m2),
    "bool": lambda: torch.randn(9) > 0,
    "complex32": lambda: torch.randn(4, dtype=torch.complex64).to(torch.complex32),
    "permuted": lambda: torch.randn(3, 4, 5).permute(2, 0, 1),
    "with an offset": lambda: torch.randn(8, 8)[2:5, 1:7],
    "every second": lambda: torch.randn(20)[::2],
    "overlapping": lambda: torch.randn(10).unfold(0, 4, 1),
    "expanded": lambda: torch.randn(3, 1, 1).expand(3, 4, 5),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "parameter": lambda: torch.nn.Parameter(torch.randn(4, 3).t()),
    "no leaf": with_grad_history,
    "inference": in_inference,
    "conjugated": lambda: torch.randn(3, 3, dtype=torch.complex64).conj(),
    "negated": lambda: torch.randn(3, 3, dtype=torch.complex64).conj().imag,
    "zero tensor": lambda: torch._efficientzerotensor((2, 3)),
    "sharing": sharing,
    "subclass": lambda: TwoTensor(torch.randn(2, 3), torch.randn(2, 3)),
    "parameter of a subclass": lambda: torch.nn.Parameter(TwoTensor(torch.randn(2), torch.randn(2))),
    "jagged": lambda: torch.nested.nested_tensor_from_jagged(torch.randn(6, 3), torch.tensor([0, 2, 6])),
}


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("make", VALUES.values(), ids=list(VALUES))
def test_inputs_come_back_as_they_are(make: Callable[[], Any]) -> None:
    values = make()
    case = case_over(*(values if isinstance(values, tuple) else (values,)))
    before = [described(value) for value in case.inputs]
    assert_same_case(case, travelled(case))
    assert [described(value) for value in case.inputs] == before


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


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8),
        lambda: object(),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_has_no_text_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(CannotWrite):
        transport.pack(case_over(make()))


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
