"""``minidbg.stats()``: each graph counts once, as verified, failed, not run, or not verified for a reason."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

import minidbg
from minidbg import torch_internals
from minidbg.commands.run.launch import recompiled_lines
from minidbg.core.foreign import chain_of
from minidbg.judge import eager_runs
from minidbg.wrapper import capture, crash_record, handle, stats, verify_runs
from minidbg.wrapper.process import PROCESS, GraphFacts, write_stats


@pytest.fixture(autouse=True)
def _no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINIDBG_STATS", raising=False)


def test_a_forked_childs_graphs_are_not_its_parents() -> None:
    PROCESS.graphs.append(GraphFacts(process=os.getppid()))
    assert stats().graphs == 0


def test_a_process_appends_its_line_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "stats.jsonl"
    monkeypatch.setenv("MINIDBG_STATS", str(file))
    write_stats()
    assert not file.exists(), "nothing was compiled"
    PROCESS.graphs.append(GraphFacts(verified=True))
    write_stats()
    write_stats()
    assert [json.loads(line)["verified"] for line in file.read_text().splitlines()] == [1, 1]


def test_the_end_of_minidbg_run_counts_recompilations_and_names_a_guard_that_failed() -> None:
    torch.compiler.reset()
    f = torch.compile(lambda x, flag: x.sin() if flag else x.cos(), backend="eager")
    for x, flag in (
        (torch.ones(3), True),
        (torch.ones(3, dtype=torch.float64), True),
        (torch.ones(3), False),
    ):
        f(x, flag)
    ((code, times, guard),) = torch_internals.recompilations()
    where = (code.co_name, "/elsewhere/train.py", code.co_firstlineno)
    event = {"where": where, "times": times, "guard": guard}
    assert recompiled_lines([event, event, {"where": ("g", "g.py", 3), "times": 1, "guard": "a"}]) == [
        "5 recompilations",
        f"4 of them of <lambda> (/elsewhere/train.py:{code.co_firstlineno}): flag == True",
        "1 of them of g (g.py:3): a",
    ]
    assert recompiled_lines([]) == []


class TimeIsUp(TimeoutError):
    """What the handler of a program's own alarm raises."""


@pytest.mark.parametrize(
    "where",
    [
        "compiling",
        "recording",
        "running",
        "comparing",
        "explaining",
        "handling",
        "suspecting",
        "capturing",
        "reducing",
    ],
)
def test_what_a_signal_handler_raises_is_nobodys_failure(
    where: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A time limit or the end of a job may come at any moment: the program must hear of it, and nothing is reduced."""

    def alarm(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGUSR1)

    def out_of_time(*_: object) -> None:
        raise TimeIsUp

    def backend(gm: torch.fx.GraphModule, _: object) -> object:
        def run(*args: torch.Tensor) -> object:
            if where in ("handling", "suspecting", "capturing", "reducing"):
                raise RuntimeError("the backend's own")
            if where == "running":
                alarm()
            (result,) = gm.forward(*args)
            return (result + 1,) if where == "explaining" else (result,)

        if where == "compiling":
            alarm()
        return run

    ours: dict[str, tuple[Any, str]] = {
        "recording": (crash_record.CrashRecord, "write"),
        "comparing": (verify_runs.CallSnapshot, "eager"),
        "explaining": (eager_runs, "leaves_of"),
        "handling": (handle, "case_of_failure"),
        "suspecting": (capture, "suspects_of"),
        "capturing": (handle.repro, "keep_capture"),
    }

    PROCESS.responder = partial(handle.respond, ask=alarm)
    if where in ours:
        monkeypatch.setattr(*ours[where], alarm)
    before = signal.signal(signal.SIGUSR1, out_of_time)
    try:
        compiled = torch.compile(torch.sin, backend=minidbg.wrap(backend, repro_dir=tmp_path))
        with pytest.raises((TimeIsUp, BackendCompilerFailed)) as raised:
            compiled(torch.ones(3))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert any(isinstance(one, TimeIsUp) for one in chain_of(raised.value))
    assert minidbg.report_of(raised.value) is None
    written = [path.parent.name for path in tmp_path.rglob("*.py") if path.parent.name != "crash_records"]
    assert written == (["captures"] if where == "reducing" else [])
