"""What a program could notice after a call, found by tests/transparency: what a failed call has written, what is kept alive, who was compiled.

The answer to a failure is a stub here; ``torch.compile`` and the backends are real. No C++ compiler is used.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy
import pytest
import torch
import wrong_results as planted
from support.new_process import Answers, as_in_a_new_process  # noqa: F401 - a fixture for all tests here
from torch import fx, nn
from torch._dynamo.backends.debugging import aot_eager
from torch._dynamo.convert_frame import compile_lock
from torch._dynamo.utils import counters

from minidbg import AccuracyError, stats, wrap

pytestmark = pytest.mark.usefixtures("answers")


def writes_and_draws_then_raises(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    def compiled_fn(*args: Any) -> Any:
        gm(*args)
        torch.rand(3)
        raise RuntimeError("kernel failed after writing")

    return compiled_fn


@pytest.mark.parametrize("calls_before", [0, 1])
def test_a_failed_call_leaves_what_the_backend_left(calls_before: int, answers: Answers) -> None:
    """The case is captured as before the call; who catches the exception finds what he would have found without us."""

    def left(wrapped: bool) -> list[Any]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        x = torch.zeros(3)
        backend = wrap(writes_and_draws_then_raises) if wrapped else writes_and_draws_then_raises
        compiled = torch.compile(lambda x: x.add_(1) * 2, backend=backend)
        for _ in range(calls_before + 1):
            with pytest.raises(RuntimeError, match="kernel failed"):
                compiled(x)
        return [x.tolist(), torch.rand(1).item()]

    assert left(wrapped=True) == left(wrapped=False)
    assert answers.inputs[0][0].tolist() == [0.0] * 3


def test_what_only_autograd_refuses_is_the_programs_own_error(answers: Answers) -> None:
    """An inference tensor cannot be saved for backward: in eager, with gradients on, it is refused as well."""
    own = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    with torch.inference_mode():
        made = torch.randn(2, 3)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        torch.compile(own, backend=wrap("aot_eager"))(made)
    assert not answers.cases
    assert own[1].num_batches_tracked == 1, "as without us: the compiled forward had run"


def test_an_array_is_freed_when_the_program_lets_go_of_it() -> None:
    """Dynamo's own note of an argument holds arrays and numbers; the copy of the graph kept it."""
    compiled = torch.compile(lambda x: x * 2 + 1, backend=wrap("aot_eager"))
    array = numpy.ones(3)
    assert compiled(array).tolist() == [3.0] * 3
    assert stats().verified == 1
    freed = weakref.ref(array)
    del array
    assert freed() is None


def test_compiles_of_our_own_keep_others_out_and_are_not_counted(answers: Answers) -> None:
    """Tracing keeps its state in globals: a compile in another thread would fail beside one that does not hold dynamo's lock."""
    alone: list[bool] = []

    def wrong(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        alone.append(compile_lock._is_owned())  # type: ignore[attr-defined]
        return aot_eager(fx.GraphModule(gm, planted_graph(gm)), example_inputs)

    counters.clear()
    with pytest.raises(AccuracyError, match="gives wrong results: "):
        torch.compile(lambda x: torch.relu(x.sin()).cos(), backend=wrap(wrong))(torch.ones(3))
    assert len(alone) > 1
    assert all(alone)
    assert counters["aot_autograd"]["total"] == 1


def planted_graph(gm: fx.GraphModule) -> fx.Graph:
    planted.wrong_relu(gm, ())
    return gm.graph
