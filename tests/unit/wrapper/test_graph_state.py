"""One graph by itself, without dynamo: which link answers a call, what is put back before the next one runs, and what the caller gets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from support.new_process import warnings_of
from torch import fx

from minidbg.core.run_spec import Level
from minidbg.core.settings import OnFailure, Settings, Verify
from minidbg.fx.copying import copy_graph_module
from minidbg.wrapper import Report
from minidbg.wrapper.capture import Failure
from minidbg.wrapper.chain import Link
from minidbg.wrapper.graph_state import GraphState
from minidbg.wrapper.process import PROCESS, own_report, set_report

REPORT = Report("3 -> 1 nodes; run: python r.py")


@pytest.fixture(autouse=True)
def answered() -> Iterator[list[Failure]]:
    """The failures that were to be reduced."""
    found: list[Failure] = []
    PROCESS.__init__(responder=lambda case, settings, same_as: REPORT)
    PROCESS.listeners.append(lambda failure, report: found.append(failure))
    yield found
    PROCESS.__init__()


class Broken(Exception):
    """What the backends here raise."""


def plus_one() -> fx.GraphModule:
    return fx.symbolic_trace(lambda x: (x + 1,))


def eager(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
    return lambda *args: gm.forward(*args)


def state(graph: fx.GraphModule, *backends: Any, **settings: Any) -> GraphState:
    settings.setdefault("verify", Verify.NEVER)
    own = Settings(crash_records=False, **settings)
    return GraphState(graph, [Link(one) for one in backends], own)


def compiled(made: GraphState, *inputs: Any) -> Any:
    return made.compile(copy_graph_module(made.untouched), list(inputs))


FALLBACK = {"on_failure": OnFailure.FALLBACK}


def test_the_next_link_compiles_what_the_first_refuses_on_an_untouched_graph(
    answered: list[Failure], caplog: pytest.LogCaptureFixture
) -> None:
    def spoils(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        gm.graph.erase_node(gm.graph.output_node())
        raise Broken

    run = compiled(state(plus_one(), spoils, eager), torch.ones(2))
    assert torch.equal(run(torch.ones(2))[0], torch.full((2,), 2.0))
    (said,) = warnings_of(caplog)
    assert "going on with eager" in said
    assert REPORT.line in said
    assert len(answered) == 1


def test_a_report_that_a_wrapper_below_has_made_is_passed_on(answered: list[Failure]) -> None:
    below = Report("from below")

    def reported(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        set_report(error := Broken(), below)
        raise error

    with pytest.raises(Broken) as raised:
        compiled(state(plus_one(), reported), torch.ones(2))
    assert own_report(raised.value) is below
    assert answered == []


# ---- compared with eager


def test_wrong_results_of_a_call_that_cannot_be_repeated_are_kept_and_later_calls_run_in_eager(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Autograd has had the written tensor in its graph since."""

    def writes(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        def run(x: torch.Tensor, w: torch.Tensor) -> Any:
            return (gm.forward(x, w)[0] + 1,)

        return run

    graph = fx.symbolic_trace(lambda x, w: (x.mul_(w) * 2,))
    made = state(graph, writes, verify=Verify.FIRST, **FALLBACK)
    w = torch.ones(2, requires_grad=True)
    x = w * 1
    run = compiled(made, x, w)
    with torch.enable_grad():
        result = run(x, w)
    assert torch.equal(result[0], torch.full((2,), 3.0)), "the backend's"
    assert made.position == 1
    assert "these results, and eager in later calls" in warnings_of(caplog)[-1]


# ---- graphs of AOTAutograd


class AtenState(GraphState):
    level = Level.ATEN


def test_a_boxed_function_that_fails_is_replaced_by_eager_in_its_own_convention() -> None:
    def fails(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        def run(args: list[Any]) -> Any:
            raise Broken

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    own = Settings(crash_records=False, verify=Verify.NEVER, on_failure=OnFailure.FALLBACK)
    run = compiled(AtenState(plus_one(), [Link(fails, level=Level.ATEN)], own), torch.ones(2))
    for _ in range(2):
        assert torch.equal(run([torch.ones(2)])[0], torch.full((2,), 2.0))


# ---- when minidbg is at work itself


def test_a_call_with_fake_tensors_is_a_tracers_and_settles_nothing() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    made = state(plus_one(), eager, verify=Verify.FIRST)
    run = compiled(made, torch.ones(2))
    with FakeTensorMode() as mode:
        run(mode.from_tensor(torch.ones(2)))
    assert (made.good_calls, made.settled) == (0, False)
