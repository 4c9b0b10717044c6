"""Collectives of a call are recorded once and replayed from memory afterwards: eager beside the backend asks no other rank."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import wrong_results
from functorch.compile import make_boxed_func
from torch import distributed, fx
from torch._dynamo.backends.common import aot_autograd
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import minidbg
from minidbg.fx.ranks import collective_name
from minidbg.judge.snapshot import CannotCompare
from minidbg.words.settings import Settings
from minidbg.wrapper.collectives import CollectiveRecorder, Replay, single_rank_graph
from minidbg.wrapper.flight import Record


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    """Rank 0 of 2, whose fake collectives give back what they get."""
    distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    distributed.destroy_process_group()


@pytest.fixture
def recorder(tmp_path: Path) -> CollectiveRecorder:
    record = Record(fx.GraphModule({}, fx.Graph()), Settings(repro_dir=tmp_path, flight_recorder=False))
    return CollectiveRecorder(record, limit_bytes=1 << 20)


def summed(x: torch.Tensor) -> torch.Tensor:
    return collectives.all_reduce(x * 2, "sum", distributed.group.WORLD) + 1


def largest(x: torch.Tensor) -> torch.Tensor:
    return collectives.all_reduce(x * 2, "max", distributed.group.WORLD)


X = torch.arange(3.0)


def call(recorder: CollectiveRecorder, function: Any, x: Any = X) -> Replay:
    with recorder:
        function(x)
    return Replay(recorder)


def test_eager_gets_what_the_others_gave_to_the_backend_and_its_own_part_is_a_result(
    recorder: CollectiveRecorder,
) -> None:
    replay = call(recorder, summed)
    recorder.collectives[0].results = [torch.tensor([10.0, 20, 30])]  # what a real sum over ranks might be
    output, given = replay.run(summed, (X,))
    assert output.tolist() == [11, 21, 31]
    assert given.tolist() == [0, 2, 4]
    assert "gives to all_reduce (collective 1 of 1)" in replay.names_of_given(2)["output 1"]


def test_a_run_in_float64_is_answered_in_float64(recorder: CollectiveRecorder) -> None:
    replay = call(recorder, summed)
    replay.run(summed, (X,))
    assert {one.dtype for one in replay.run(summed, (X.double(),))} == {torch.float64}


def test_collectives_other_than_the_backends_are_not_compared(recorder: CollectiveRecorder) -> None:
    replay = call(recorder, summed)
    with pytest.raises(
        CannotCompare, match="exchanges other values between ranks than eager does in all_reduce"
    ):
        replay.run(largest, (X,))


def test_a_collective_that_the_backend_merged_with_its_twin_answers_both(
    recorder: CollectiveRecorder,
) -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        return summed(x) - summed(x)

    (output, *given) = call(recorder, summed).run(twice, (X,))
    assert output.tolist() == [0, 0, 0]
    assert len(given) == 2


def test_of_two_alike_each_gets_the_answer_to_what_it_gave(recorder: CollectiveRecorder) -> None:
    with recorder:
        later, first = summed(X + 5), summed(X)  # a compiler may reorder them

    def both(x: torch.Tensor) -> Any:
        return summed(x), summed(x + 5)

    assert [one.tolist() for one in Replay(recorder).run(both, (X,))[:2]] == [first.tolist(), later.tolist()]


def test_collectives_inside_operations_on_dtensors_are_heard_and_answered(
    recorder: CollectiveRecorder,
) -> None:
    mesh = DeviceMesh("cpu", [0, 1])
    sharded = DTensor.from_local(X, mesh, [Shard(0)], run_check=False)

    def whole(x: DTensor) -> torch.Tensor:
        return (x + 1).redistribute(placements=[Replicate()]).to_local()

    replay = call(recorder, whole, sharded)
    assert [one.name for one in recorder.collectives] == ["all_gather_into_tensor"]
    recorder.collectives[0].results = [torch.arange(6.0)]
    output, given = replay.run(whole, (sharded,))
    assert output.tolist() == [0, 1, 2, 3, 4, 5]
    assert given.tolist() == [1, 2, 3]


def test_what_is_too_large_to_remember_is_not_compared(recorder: CollectiveRecorder) -> None:
    recorder.left_bytes = 8
    with pytest.raises(CannotCompare, match="value_limit_bytes"):
        call(recorder, summed).run(summed, (X,))


def test_an_operator_that_writes_or_gives_no_tensor_is_not_compared(recorder: CollectiveRecorder) -> None:
    def in_place(x: torch.Tensor) -> torch.Tensor:
        distributed.all_reduce(x)
        return x

    with pytest.raises(CannotCompare, match="cannot be answered from memory"):
        call(recorder, in_place, X.clone()).run(in_place, (X,))


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        (torch.ops._c10d_functional.all_reduce_.default, "all_reduce"),
        (torch.ops._c10d_functional.all_gather_into_tensor_out, "all_gather_into_tensor"),
        (torch.ops.aten.add.Tensor, None),
        (torch.add, None),
    ],
)
def test_a_collective_has_one_name_wherever_it_writes(operator: Any, name: str | None) -> None:
    assert collective_name(operator) == name


def test_other_peoples_collectives_are_known_by_their_names() -> None:
    with torch.library._scoped_library("engine", "DEF") as library:
        library.define("all_reduce_quantised(Tensor x) -> Tensor")
        assert collective_name(torch.ops.engine.all_reduce_quantised.default) == "all_reduce_quantised"


def graph_of_a_sum() -> fx.GraphModule:
    """``all_reduce(x * 2) + 1``, as dynamo hands it over."""
    made = fx.Graph()
    x = made.placeholder("x")
    doubled = made.call_function(torch.mul, (x, 2))
    asked = made.call_function(torch.ops._c10d_functional.all_reduce.default, (doubled, "sum", "0"))
    done = made.call_function(torch.ops._c10d_functional.wait_tensor.default, (asked,))
    made.output((made.call_function(torch.add, (done, 1)),))
    for node in (x, doubled):
        node.meta["example_value"] = X
    return fx.GraphModule({}, made)


def compiled(backend: Any, folder: Path, **settings: Any) -> Any:
    return minidbg.wrap(backend, reduce="later", repro_dir=folder, **settings)(graph_of_a_sum(), [X])


def moves_the_scale(gm: fx.GraphModule, example_inputs: Any) -> Any:
    """Multiplies after the sum instead of before it, which is the same; everything else in eager."""
    if not any(collective_name(node.target) for node in gm.graph.nodes):
        return gm.forward
    return lambda x: (collectives.all_reduce(x, "sum", distributed.group.WORLD) * 2 + 1,)


def test_a_wrong_part_of_this_rank_is_its_failure_and_needs_no_collective(tmp_path: Path) -> None:
    backend = functools.partial(wrong_results.wrong_for_large, op="mul")
    with pytest.raises(minidbg.AccuracyError, match="what this rank gives to all_reduce") as caught:
        compiled(backend, tmp_path)(X + 9)
    report = minidbg.report_of(caught.value)
    assert "all_reduce.default" not in report.capture.read_text()


def raises_after_the_sum(gm: fx.GraphModule, example_inputs: Any) -> Any:
    def run(x: torch.Tensor) -> Any:
        collectives.all_reduce(x, "sum", distributed.group.WORLD).add(1)
        raise RuntimeError("no kernel")

    return run


def test_eager_does_not_take_over_once_a_collective_has_taken_place(tmp_path: Path) -> None:
    """It would take part in the collective once more, and the others would not."""
    with pytest.raises(RuntimeError, match="no kernel"):
        compiled(raises_after_the_sum, tmp_path, on_failure="fallback")(X)


def test_arithmetic_that_moved_across_a_collective_is_no_alarm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert compiled(moves_the_scale, tmp_path)(X)[0].tolist() == [1, 3, 5]
    assert "moved arithmetic from one side of a collective to the other" in caplog.text


def test_without_its_collectives_a_graph_takes_their_results_and_returns_what_it_gave(
    recorder: CollectiveRecorder,
) -> None:
    module = graph_of_a_sum()
    replay = call(recorder, module.forward)
    replay.run(module.forward, (X,))
    fed = single_rank_graph(module, (X,), replay.taken)
    assert not [node for node in fed.graph_module.graph.nodes if collective_name(node.target)]
    output, given = fed.graph_module(X, torch.zeros(3))
    assert (output.tolist(), given.tolist()) == ([1, 1, 1], [0, 2, 4])
    assert len(fed.inputs) == 2


def wrong_threshold(graph_module: fx.GraphModule, example_inputs: Any) -> Any:
    """A compiler of backwards that gets the gradient of relu wrong."""
    return make_boxed_func(
        wrong_results.after_each(graph_module, "threshold_backward", wrong_results.a_little_more)
    )


@pytest.mark.parametrize("compiler", [wrong_threshold, wrong_results.right])
def test_gradients_beside_collectives_are_judged_where_the_compilers_are_wrapped(
    compiler: Any, tmp_path: Path
) -> None:
    """The backward has a collective of its own, which takes place once."""
    wrapped = minidbg.wrap_compiler(compiler, reduce="later", repro_dir=tmp_path)
    backend = aot_autograd(fw_compiler=wrong_results.right, bw_compiler=wrapped)

    def function(x: torch.Tensor) -> torch.Tensor:
        gathered = collectives.all_gather_tensor_autograd(x.relu() * 2, 0, distributed.group.WORLD)
        return gathered.square().sum()  # of a plain sum, torch 2.11 refuses the expanded gradient

    x = X.clone().requires_grad_()
    result = torch.compile(function, backend=backend)(x)
    if compiler is wrong_results.right:
        result.backward()
        assert minidbg.stats().verified == 1
        return
    with pytest.raises(minidbg.AccuracyError, match="wrong_threshold gives wrong results"):
        result.backward()
    (capture,) = tmp_path.glob(".minidbg/captures/*.py")
    assert "reduce_scatter_tensor.default" not in capture.read_text()
