"""One graph by itself, without dynamo: which link answers a call, what is put back before the next one runs, and what the caller gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.new_process import warnings_of
from torch import fx

from minidbg.fx.copying import copy_graph_module
from minidbg.words.errors import AccuracyError
from minidbg.words.kinds import Kind
from minidbg.words.run_spec import Level
from minidbg.words.settings import OnFailure, Settings, Verify
from minidbg.wrapper import Report, handle
from minidbg.wrapper.capture import Failure
from minidbg.wrapper.chain import Link
from minidbg.wrapper.graph_state import STALE, GraphState, state_of
from minidbg.wrapper.process import PROCESS
from minidbg.wrapper.reports import own_report, set_report

REPORT = Report("3 -> 1 nodes; run: python r.py")


@pytest.fixture(autouse=True)
def answered(monkeypatch: pytest.MonkeyPatch) -> list[Failure]:
    """The failures that were to be captured and reduced."""
    found: list[Failure] = []

    def answer(failure: Failure, settings: Settings) -> Report:
        found.append(failure)
        return REPORT

    monkeypatch.setattr(handle, "handle", answer)
    return found


class Broken(Exception):
    """What the backends here raise."""


def plus_one() -> fx.GraphModule:
    return fx.symbolic_trace(lambda x: (x + 1,))


def counts_itself() -> fx.GraphModule:
    """It writes to its input."""
    return fx.symbolic_trace(lambda x: (x.add_(1) * 2,))


def refuses(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
    raise Broken


def eager(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
    return lambda *args: gm.forward(*args)


def fails_in_call(number: int, before: Callable[..., object] = lambda *args: None) -> Any:
    """A backend whose result raises in its call of that number, after it has done what comes ``before``."""

    def backend(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        calls = 0

        def run(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number:
                before(*args)
                raise Broken
            return gm.forward(*args)

        return run

    return backend


def wrong(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
    return lambda *args: tuple(one + 1 for one in gm.forward(*args))


def state(graph: fx.GraphModule, *backends: Any, **settings: Any) -> GraphState:
    settings.setdefault("verify", Verify.NEVER)
    own = Settings(flight_recorder=False, **settings)
    return GraphState(graph, [Link(one) for one in backends], own)


def compiled(made: GraphState, *inputs: Any) -> Any:
    return made.compile(copy_graph_module(made.untouched), list(inputs))


FALLBACK = {"on_failure": OnFailure.FALLBACK}


def test_what_no_link_compiles_is_raised_with_its_report(answered: list[Failure]) -> None:
    with pytest.raises(Broken) as raised:
        compiled(state(plus_one(), refuses), torch.ones(2))
    assert own_report(raised.value) is REPORT
    assert [failure.kind for failure in answered] == [Kind.COMPILE]


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


def test_eager_goes_on_where_every_link_refuses_and_that_is_wanted() -> None:
    made = state(plus_one(), refuses, refuses, **FALLBACK)
    run = compiled(made, torch.ones(2))
    assert torch.equal(run(torch.ones(2))[0], torch.full((2,), 2.0))
    assert made.settled


def test_a_backend_that_returns_nothing_to_call_has_failed() -> None:
    with pytest.raises(AssertionError, match="did not return callable"):
        compiled(state(plus_one(), lambda gm, inputs: None), torch.ones(2))


def test_what_compiling_has_written_is_hidden_from_the_next_link() -> None:
    """Some backends run the graph to tune it."""
    seen: list[torch.Tensor] = []

    def runs_it(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        gm.forward(*inputs)
        raise Broken

    def looks(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        seen.append(inputs[0].clone())
        return gm.forward

    compiled(state(counts_itself(), runs_it, looks), torch.zeros(2))
    assert torch.equal(seen[0], torch.zeros(2))


@pytest.mark.parametrize("more", [{"on_failure": OnFailure.RAISE}, FALLBACK], ids=["raise", "fallback"])
def test_a_failed_call_is_repeated_by_the_next_link_with_the_values_from_before_it(
    more: dict[str, Any],
) -> None:
    x = torch.zeros(2)
    run = compiled(state(counts_itself(), fails_in_call(1, lambda x: x.add_(100)), eager, **more), x)
    assert torch.equal(run(x)[0], torch.full((2,), 2.0))
    assert torch.equal(x, torch.ones(2)), "the write was applied once"


def test_a_failed_call_that_nothing_can_repeat_leaves_what_the_backend_has_left(
    answered: list[Failure],
) -> None:
    """As without us: whoever catches the error sees the same values."""
    x = torch.zeros(2)
    run = compiled(state(counts_itself(), fails_in_call(1, lambda x: x.add_(100))), x)
    with pytest.raises(Broken) as raised:
        run(x)
    assert torch.equal(x, torch.full((2,), 100.0))
    assert raised.value.__notes__ == [f"minidbg: {REPORT.line}"]
    (failure,) = answered
    assert (failure.kind, failure.notes) == (Kind.RUNTIME, ())


def test_a_settled_graph_that_fails_goes_on_in_eager_only_where_it_writes_nothing(
    answered: list[Failure], caplog: pytest.LogCaptureFixture
) -> None:
    run = compiled(state(plus_one(), fails_in_call(2), **FALLBACK), torch.ones(2))
    for _ in range(3):
        assert torch.equal(run(torch.ones(2))[0], torch.full((2,), 2.0))
    assert len(warnings_of(caplog)) == 1
    writes = compiled(state(counts_itself(), fails_in_call(2), **FALLBACK), torch.ones(2))
    writes(torch.ones(2))
    with pytest.raises(Broken):
        writes(torch.ones(2))
    assert answered[-1].notes == (STALE,)


def test_what_eager_does_not_run_either_is_the_programs_own_error(answered: list[Failure]) -> None:
    graph = fx.symbolic_trace(lambda x: (x @ x,))
    run = compiled(state(graph, fails_in_call(1)), torch.ones(2, 3))
    with pytest.raises(Broken) as raised:
        run(torch.ones(2, 3))
    assert answered == []
    assert own_report(raised.value) is None


def test_a_report_that_a_wrapper_below_has_made_is_passed_on(answered: list[Failure]) -> None:
    below = Report("from below")

    def reported(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        set_report(error := Broken(), below)
        raise error

    with pytest.raises(Broken) as raised:
        compiled(state(plus_one(), reported), torch.ones(2))
    assert own_report(raised.value) is below
    assert answered == []


def test_a_chain_whose_links_all_fail_says_so_and_begins_again_at_the_next_call(
    answered: list[Failure],
) -> None:
    made = state(plus_one(), fails_in_call(1), refuses)
    run = compiled(made, torch.ones(2))
    with pytest.raises(Broken) as raised:
        run(torch.ones(2))
    assert raised.value.__notes__ == [f"minidbg: {REPORT.line}"]
    assert made.position == 0
    assert [failure.kind for failure in answered] == [Kind.RUNTIME, Kind.COMPILE]


# ---- compared with eager


def test_a_call_that_agrees_with_eager_settles_the_graph() -> None:
    made = state(plus_one(), eager, verify=Verify.FIRST)
    run = compiled(made, torch.ones(2))
    assert not made.settled
    run(torch.ones(2))
    assert made.settled
    assert made.facts.verified
    assert made.comparing == set()


def test_wrong_results_are_raised_where_nothing_is_to_go_on_with(answered: list[Failure]) -> None:
    run = compiled(state(plus_one(), wrong, verify=Verify.FIRST), torch.ones(2))
    with pytest.raises(AccuracyError, match="output 0") as raised:
        run(torch.ones(2))
    assert raised.value.__notes__ == [f"minidbg: {REPORT.line}"]
    assert [failure.kind for failure in answered] == [Kind.ACCURACY]


def test_wrong_results_are_replaced_by_the_next_links_or_eagers(caplog: pytest.LogCaptureFixture) -> None:
    for backends, more, then in (((wrong, eager), {}, "eager"), ((wrong,), FALLBACK, "eager")):
        caplog.clear()
        x = torch.zeros(2)
        run = compiled(state(counts_itself(), *backends, verify=Verify.FIRST, **more), x)
        assert torch.equal(run(x)[0], torch.full((2,), 2.0))
        assert torch.equal(x, torch.ones(2))
        assert f"going on with {then}" in warnings_of(caplog)[-1]


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


def boxed(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
    def run(args: list[Any]) -> Any:
        values = list(args)
        args.clear()  # so that each is freed as soon as it is not needed
        return gm.forward(*values)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


class AtenState(GraphState):
    level = Level.ATEN


def test_a_boxed_function_stays_one_and_may_clear_its_list() -> None:
    made = AtenState(plus_one(), [Link(boxed, level=Level.ATEN)], Settings(flight_recorder=False))
    run = compiled(made, torch.ones(2))
    assert run._boxed_call
    for _ in range(3):
        args = [torch.ones(2)]
        assert torch.equal(run(args)[0], torch.full((2,), 2.0))
        assert args == [] or not made.settled
    assert made.settled


def test_a_boxed_function_that_fails_is_replaced_by_eager_in_its_own_convention() -> None:
    def fails(gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        def run(args: list[Any]) -> Any:
            raise Broken

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    own = Settings(flight_recorder=False, verify=Verify.NEVER, on_failure=OnFailure.FALLBACK)
    run = compiled(AtenState(plus_one(), [Link(fails, level=Level.ATEN)], own), torch.ones(2))
    for _ in range(2):
        assert torch.equal(run([torch.ones(2)])[0], torch.full((2,), 2.0))


# ---- when minidbg is at work itself


def test_a_call_of_our_own_work_is_not_answered(answered: list[Failure]) -> None:
    run = compiled(state(plus_one(), fails_in_call(1), **FALLBACK), torch.ones(2))
    with handle.handling([]), pytest.raises(Broken):
        run(torch.ones(2))
    assert answered == []
    with handle.handling([]):
        assert state_of(lambda: state(plus_one(), eager)) is None


def test_a_call_with_fake_tensors_is_a_tracers_and_settles_nothing() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    made = state(plus_one(), eager, verify=Verify.FIRST)
    run = compiled(made, torch.ones(2))
    with FakeTensorMode() as mode:
        run(mode.from_tensor(torch.ones(2)))
    assert (made.good_calls, made.settled) == (0, False)


def test_a_bug_of_ours_leaves_the_users_backend_to_be_called_as_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def breaks() -> GraphState:
        raise ZeroDivisionError("ours")

    assert state_of(breaks) is None
    assert warnings_of(caplog) == ["minidbg: a graph is not wrapped (ZeroDivisionError: ours)"]


def test_each_graph_counts_as_failed_once_it_was_answered(tmp_path: Path) -> None:
    compiled(state(plus_one(), refuses, eager), torch.ones(2))
    compiled(state(plus_one(), eager), torch.ones(2))
    assert [facts.failed for facts in PROCESS.graphs] == [True, False]
