"""What a program has let go of is freed: no table of the process keeps a backend, its weights or a graph alive.

Each backend here is another object that holds a tensor, as one with constants or a loaded model of its own does. Nothing is reduced.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from support.new_process import as_in_a_new_process  # noqa: F401 - a fixture for all tests here
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd

import minidbg
from minidbg.repro import crash_records
from minidbg.wrapper.process import PROCESS

TIMES = 3


class HoldsWeights:
    """Runs what AOTAutograd gives it; ``fails`` when it compiles, or by its results."""

    __name__ = "holds_weights"

    def __init__(self, fails: str) -> None:
        self.fails = fails
        self.weights = torch.zeros(1 << 20)

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        if self.fails == "compile":
            raise ValueError("no kernel")
        return aot_autograd(fw_compiler=self.compile)(gm, example_inputs)

    def compile(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        def compiled_fn(*args: Any) -> Any:
            held = self.weights[:0].sum() if self.fails != "accuracy" else self.weights[:1].sum() + 1
            return [value + held if isinstance(value, torch.Tensor) else value for value in gm(*args)]

        return make_boxed_func(compiled_fn)


def compiled_once(fails: str, repro_dir: Path, *, backward: bool, by_name: bool) -> list[weakref.ref[Any]]:
    """What must not be alive once a program has compiled a model with a backend of its own and let go of both."""
    backend, model = HoldsWeights(fails), nn.Linear(3, 3)
    given: dict[str, Any] = {
        "reference": "planted_backends:raises_on_relu",
        "on_failure": "fallback",
        "reduce": "later",
        "repro_dir": str(repro_dir),
    }
    wrapped: Any = (
        {"backend": "minidbg", "options": {"backend": backend, **given}}
        if by_name
        else {"backend": minidbg.wrap(backend, **given)}
    )
    out = torch.compile(model, **wrapped)(torch.randn(2, 3))
    if backward:
        out.sum().backward()
    return [weakref.ref(one) for one in (backend, backend.weights, model.weight)]


def reachable(start: object) -> Iterator[object]:
    """What ``start`` keeps alive by way of data, without classes, modules and functions."""
    waiting, known = [start], set()
    while waiting:
        one = waiting.pop()
        if id(one) not in known and not isinstance(one, type | type(gc) | type(reachable)):
            known.add(id(one))
            yield one
            waiting += gc.get_referents(one)


@pytest.mark.parametrize(
    "by_name", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["wrap", "by name"]
)
@pytest.mark.parametrize(
    "backward", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["backward", "no backward"]
)
@pytest.mark.parametrize(
    "fails", ["accuracy", *(pytest.param(fails, marks=pytest.mark.slow) for fails in ("", "compile"))]
)
def test_a_backend_and_its_weights_are_freed_when_the_program_lets_go_of_them(
    fails: str, backward: bool, by_name: bool, tmp_path: Path
) -> None:
    held = [
        one
        for _ in range(TIMES)
        for one in compiled_once(fails, tmp_path, backward=backward, by_name=by_name)
    ]
    assert minidbg.stats().graphs == TIMES
    torch._dynamo.reset()  # torch itself keeps every backend until then
    gc.collect()
    assert [one() for one in held if one() is not None] == []
    holders = (torch.Tensor, fx.GraphModule, HoldsWeights)
    assert [one for one in reachable(PROCESS) if isinstance(one, holders)] == []
    assert PROCESS.records == {}
    assert list(crash_records.records(tmp_path)) == [], (
        "nothing can happen any more with a graph that is gone"
    )
    assert minidbg.stats().graphs == TIMES, "what is known of them is counted all the same"
