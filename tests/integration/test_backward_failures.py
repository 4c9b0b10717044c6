"""A failure that only the backward shows: found whatever way its graph came about, and reduced only as far as it stays one."""

from __future__ import annotations

import gc
import signal
import weakref
from collections.abc import Callable
from typing import Any

import planted_backends as planted
import pytest
import torch
from functorch.compile import make_boxed_func
from support.new_process import as_in_a_new_process  # noqa: F401 - a fixture for all tests here
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch.utils.checkpoint import checkpoint

from minidbg import backends, oracle, torch_internals
from minidbg.core.outcome import Direction, Kind, Verdict
from minidbg.core.run_spec import RunSpec
from minidbg.fx.case import Case
from minidbg.reduction import context_passes
from minidbg.wrapper import wrap
from minidbg.wrapper.process import PROCESS


def forward_works(gm: fx.GraphModule, example_inputs: Any) -> Any:
    return make_boxed_func(gm.forward)


def backward_fails(gm: fx.GraphModule, example_inputs: Any) -> Any:
    def broken(*args: Any) -> Any:
        raise RuntimeError("backward kernel failed")

    return make_boxed_func(broken)


BROKEN = aot_autograd(fw_compiler=forward_works, bw_compiler=backward_fails)


def checkpointed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = checkpoint(lambda z: z.sin().cos(), x, use_reentrant=False)
    return result


def in_two_graphs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    torch._dynamo.graph_break()
    return x.cos()


def written_and_returned(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return y.mul_(x.sin())


FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "a view": lambda x, y: x.sin().t(),
    "a checkpoint": checkpointed,
    "two graphs": in_two_graphs,
    "a written input": written_and_returned,
}


@pytest.mark.slow
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_backward_is_heard_whatever_its_forward_returns(
    function: Callable[..., torch.Tensor], cases: list[Case]
) -> None:
    compiled = torch.compile(function, backend=wrap(BROKEN, verify="never"))
    loss = compiled(torch.randn(3, 3, requires_grad=True), torch.randn(3, 3)).sum()
    with pytest.raises(RuntimeError, match="backward kernel") as caught:
        loss.backward()
    (case,) = cases
    assert case.spec.backward
    assert (case.kind, case.signature.direction) == (Kind.RUNTIME, Direction.BACKWARD)
    assert caught.value.__notes__ == ["minidbg: report 1"]


def test_a_backward_that_shows_in_a_written_input_only_is_heard(cases: list[Case]) -> None:
    def writes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.mul_(x.sin())
        return x.detach() + 1

    y = torch.randn(3)
    torch.compile(writes, backend=wrap(BROKEN, verify="never"))(torch.randn(3, requires_grad=True), y)
    with pytest.raises(RuntimeError, match="backward kernel"):
        y.sum().backward()
    assert len(cases) == 1


def test_the_backward_of_another_compiled_graph_is_not_taken_for_ours(cases: list[Case]) -> None:
    """Our graph returns a view of its input, which came out of a graph that nobody wrapped."""
    x = torch.compile(lambda x: x.sin(), backend=BROKEN)(torch.randn(3, 3, requires_grad=True))
    loss = torch.compile(lambda x: x.t(), backend=wrap("aot_eager", verify="never"))(x).sum()
    with pytest.raises(RuntimeError, match="backward kernel"):
        loss.backward()
    assert not cases


class TimeIsUp(Exception):
    """The program's own limit."""


@pytest.mark.parametrize(("raised", "arrives"), [(ZeroDivisionError, RuntimeError), (TimeIsUp, TimeIsUp)])
def test_what_is_raised_while_a_backward_is_answered(
    raised: type[Exception], arrives: type[Exception]
) -> None:
    """A bug of ours leaves the backward's own exception; what a signal handler raises reaches the program."""

    def out_of_time(*_: object) -> None:
        raise TimeIsUp

    def respond(*_: object, **__: object) -> Any:
        if raised is TimeIsUp:
            signal.raise_signal(signal.SIGUSR1)
        raise raised

    PROCESS.responder = respond
    loss = torch.compile(lambda x: x.sin(), backend=wrap(BROKEN, verify="never"))(
        torch.randn(3, requires_grad=True)
    ).sum()
    before = signal.signal(signal.SIGUSR1, out_of_time)
    try:
        with pytest.raises(arrives, match="backward kernel" if arrives is RuntimeError else None):
            loss.backward()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_backward_that_is_awaited_keeps_no_input_alive(cases: list[Case]) -> None:
    x, y = torch.randn(3, requires_grad=True), torch.randn(3)
    loss = torch.compile(lambda x, y: x.sin() + y, backend=wrap(BROKEN, verify="never"))(x, y).sum()
    freed = weakref.ref(y)
    del y
    gc.collect()
    assert freed() is None
    with pytest.raises(RuntimeError, match="backward kernel"):
        loss.backward()
    (case,) = cases
    assert case.inputs[0] is x
    assert case.inputs[1].shape == (3,)


def test_the_next_number_of_aot_autograd_is_read_without_taking_it() -> None:
    torch.compile(lambda x: x.sin(), backend="aot_eager")(torch.ones(2))
    assert torch_internals.next_aot_id() == torch_internals.next_aot_id() > 0


@pytest.mark.slow
def test_what_needs_neither_backward_nor_gradients_loses_them() -> None:
    graph, inputs = fx.symbolic_trace(lambda x: (torch.relu(x),)), (torch.randn(3, requires_grad=True),)
    backend = planted.raises_on_relu
    case = Case(graph, inputs, RunSpec(backends.find_reference(backend), backward=True), compiler=backend)
    case = case.with_spec(signature=oracle.ask(case, seconds=60).signature)

    def fails(candidate: Case) -> bool:
        return oracle.ask(candidate, seconds=60).verdict is Verdict.REPRODUCES

    simple = context_passes.simplify(case, fails)
    assert not simple.spec.backward
    assert not simple.inputs[0].requires_grad
