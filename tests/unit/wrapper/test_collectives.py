"""Graphs in which other ranks take part: no call of them is made twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import wrong_results
from torch import distributed, fx
from torch.distributed import _functional_collectives as collectives
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

import minidbg
from minidbg.fx.ranks import collective_name
from minidbg.repro import crash_records


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    """Rank 0 of 2, whose fake collectives give back what they get."""
    distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield
    distributed.destroy_process_group()


X = torch.arange(3.0)


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


def raises_after_the_sum(gm: fx.GraphModule, example_inputs: Any) -> Any:
    def run(x: torch.Tensor) -> Any:
        collectives.all_reduce(x, "sum", distributed.group.WORLD).add(1)
        raise RuntimeError("no kernel")

    return run


def test_eager_does_not_take_over_once_a_collective_has_taken_place(tmp_path: Path) -> None:
    """It would take part in the collective once more, and the others would not."""
    with pytest.raises(RuntimeError, match="no kernel"):
        compiled(raises_after_the_sum, tmp_path, on_failure="fallback")(X)


def test_the_record_says_that_a_rank_waits_while_others_are_asked(tmp_path: Path) -> None:
    """What is found of a rank that was killed there is not taken for a hang of its backend."""

    class Looks(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            ((_, name),) = crash_records.records(tmp_path)
            seen.append((collective_name(func), str(name.step)))
            return func(*args, **kwargs or {})

    seen: list[tuple[str | None, str]] = []
    run = compiled(lambda gm, _: lambda *args: gm(*args), tmp_path, verify="never")
    with Looks():
        run(X)
    assert seen == [(None, "run"), ("all_reduce", "waiting"), ("wait_tensor", "waiting"), (None, "run")]


def test_a_graph_that_talks_to_other_ranks_is_not_verified_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compiled(wrong_results.wrong_relu, tmp_path)(X)
    assert "a graph is not verified: it talks to other ranks (all_reduce_default)" in caplog.text


@pytest.mark.parametrize("autocast", [False, True])
def test_a_rank_in_inference_mode_computes_what_it_does_alone(autocast: bool, tmp_path: Path) -> None:
    """In a mode that calls it whole, an operator that eager makes of others knows neither a conjugate tensor nor autocast."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("ij,kj->ik", x, x) if autocast else torch.fft.hfft2(x)

    graph_module, x = graph_of_a_sum(), torch.randn(4, 6)
    (doubled,) = graph_module.graph.find_nodes(op="call_function", target=torch.mul)
    doubled.target, doubled.args = program, (doubled.args[0],)
    graph_module.recompile()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        wrapped = minidbg.wrap(lambda gm, _: lambda *args: gm(*args), repro_dir=tmp_path)
        (found,) = wrapped(graph_module, [x])(x)
        expected = program(x) + 1
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)
