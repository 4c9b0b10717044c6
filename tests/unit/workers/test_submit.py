"""Every way in which a planted backend can end its process is an outcome, and the next call is none the worse."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import planted_backends as planted
import pytest
import torch
from support.doubles import Children
from torch import fx

from minidbg import oracle
from minidbg.core.outcome import Kind, Outcome, Verdict
from minidbg.core.run_spec import CallPath
from minidbg.fx.case import Case
from minidbg.workers import Ended, Request

CaseOf = Callable[..., Case]
MEMORY = 512 << 20
BOTH_PATHS = pytest.mark.parametrize("call", list(CallPath))


def ask(case: Case, seconds: float = 30.0) -> Outcome:
    return oracle.ask(case, seconds=seconds, memory_bytes=MEMORY)


@BOTH_PATHS
@pytest.mark.parametrize(
    ("backend", "death"),
    [
        (planted.segfaults_on_relu, "SIGSEGV"),
        (planted.segfaults_in_run_on_relu, "SIGSEGV"),
        (planted.aborts_on_relu, "SIGABRT"),
        (planted.is_killed_on_relu, "SIGKILL"),
        (planted.exits_on_relu, "exit status 7"),
        (planted.exits_with_zero_on_relu, "exit status 0"),
    ],
)
def test_death_is_a_crash_with_its_cause(case_of: CaseOf, call: CallPath, backend: Any, death: str) -> None:
    outcome = ask(case_of(backend, call=call))
    assert outcome.verdict is Verdict.REPRODUCES
    assert (outcome.signature.kind, outcome.signature.types) == (Kind.CRASH, (death,))
    assert outcome.signal == (getattr(signal, death, None))
    assert death in outcome.message


@pytest.mark.parametrize(
    ("backend", "call", "phase", "innermost"),
    [
        (planted.hangs_on_relu, CallPath.DIRECT, "compile", "planted_backends:hangs_on_relu"),
        (planted.hangs_in_run_holding_the_gil_on_relu, CallPath.TORCH_COMPILE, "runtime", "re:match"),
    ],
)
def test_hang_is_told_by_phase_and_place(
    case_of: CaseOf, backend: Any, call: CallPath, phase: str, innermost: str
) -> None:
    outcome = ask(case_of(backend, call=call), seconds=2)
    assert outcome.verdict is Verdict.REPRODUCES
    assert outcome.signature == replace(outcome.signature, kind=Kind.HANG, types=(phase,))
    assert outcome.signature.frames[0] == innermost
    assert outcome.signal is None


def test_death_in_eager_is_invalid(case_of: CaseOf) -> None:
    import ctypes

    graph = fx.Graph()
    graph.output((graph.call_function(ctypes.string_at, (0,)), graph.placeholder("x")))
    deadly = fx.GraphModule(torch.nn.Module(), graph)
    outcome = ask(case_of(planted.returns_gm_forward, graph_module=deadly))
    assert outcome.verdict is Verdict.INVALID
    assert "eager itself died (SIGSEGV)" in outcome.reason


def test_fault_of_the_oracle_is_invalid_and_says_so(case_of: CaseOf) -> None:
    children = Children(lambda request: Ended(error="Traceback\nTypeError: a fault of ours\n"))
    outcome = oracle.ask(case_of(planted.raises_on_relu), seconds=30, submit=children)
    assert (outcome.verdict, outcome.reason) == (
        Verdict.INVALID,
        "the oracle itself failed: TypeError: a fault of ours",
    )


def test_all_are_put_before_one_is_waited_for_and_none_is_asked_twice(case_of: CaseOf) -> None:
    """The files of each question go with its end."""
    asked: list[tuple[Future[Ended], Path]] = []

    def submit(request: Request) -> Future[Ended]:
        files = request.argument["case"]["files"].values()
        asked.append((Future(), Path(next(iter(files))[0])))
        if len(asked) == 2:
            for number, (end, _) in enumerate(asked):
                verdict = (Verdict.GONE, Verdict.SKIPPED)[number]
                end.set_result(Ended(answered=True, value=Outcome(verdict).to_json()))
        return asked[-1][0]

    case = case_of(planted.returns_gm_forward)
    outcomes = oracle.ask_all([(case, 30), (case, 30)], submit=submit)
    assert [outcome.verdict for outcome in outcomes] == [Verdict.GONE, Verdict.SKIPPED]
    assert not any(path.exists() for _, path in asked)
