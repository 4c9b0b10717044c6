"""Which errors of a backward are the backend's, and what is remembered of the forward call."""

from __future__ import annotations

import gc
import signal

import pytest
import torch
from torch import fx

from minidbg.core.outcome import Direction, Kind
from minidbg.wrapper import graph_state
from minidbg.wrapper.chain import Link


def raised_below(name: str | None) -> Exception:
    """An error that passed through a function called ``name``, as AOTAutograd's own are called."""

    def plain() -> None:
        raise ValueError("x")

    namespace = {"plain": plain}
    if name is not None:
        exec(f"def {name}(): plain()", namespace)
    try:
        namespace[name or "plain"]()
    except ValueError as error:
        return error
    raise AssertionError("it did not fail")


def test_a_bug_of_ours_does_not_take_the_place_of_the_users_exception() -> None:
    def broken(error: Exception, phase: str) -> None:
        raise ZeroDivisionError

    graph_state.heard(raised_below("get_or_compile"), broken)


def test_what_a_signal_handler_raises_while_a_failure_is_handled_reaches_the_program() -> None:
    def out_of_time(*_: object) -> None:
        raise TimeoutError("the program's own limit")

    before = signal.signal(signal.SIGUSR1, out_of_time)
    try:
        with pytest.raises(TimeoutError, match="own limit"):
            graph_state.heard(raised_below("get_or_compile"), lambda *_: signal.raise_signal(signal.SIGUSR1))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_remembered_call_keeps_no_tensor_alive() -> None:
    graph = fx.symbolic_trace(lambda x, y, n: (x * y * n,))
    x, y = torch.ones(2), torch.ones(2)
    for node, name in zip(graph.graph.nodes, "xyn", strict=False):
        node.meta["example_value"] = f"example of {name}"
    made_of = graph_state.remembered(graph, Link("eager"), (x, y, 3), ())
    del y
    gc.collect()
    failure = made_of(ValueError("x"), "compile")
    assert failure.inputs[0] is x
    assert list(failure.inputs[1:]) == ["example of y", 3]
    assert (failure.kind, failure.direction) == (Kind.COMPILE, Direction.BACKWARD)
    assert failure.context.grad
