"""Oracle calls in forks of a process that has really used torch: threads, autograd, inductor; what many of them leave behind."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch
from support.command_line import python

from minidbg.core.run_spec import BackendRef, RunSpec
from minidbg.fx.case import Case
from minidbg.fx.copying import capture_by_dynamo
from minidbg.oracle import ask

pytestmark = pytest.mark.slow

AFTER_REAL_USE = """
import os, sys, time
import torch
from minidbg.fx.case import Case
from minidbg.core.run_spec import BackendRef, CallPath, RunSpec
from minidbg.fx.copying import capture_by_dynamo
from minidbg.oracle import ask

torch.set_num_threads(2)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256))
x = torch.randn(128, 256, requires_grad=True)
model(x).sum().backward()
torch.compile(model)(x).sum().backward()
assert torch.get_num_threads() == 2

def small(x):
    return torch.nn.functional.gelu(x @ x).cumsum(0).relu() * 3.25

y = torch.randn(64, 64, requires_grad=True)
graph, inputs = capture_by_dynamo(small, (y,))
for backward in (False, True):
    for call in CallPath:
        case = Case(graph, inputs, RunSpec(BackendRef("inductor", "'inductor'"), call=call, backward=backward))
        outcome = ask(case, seconds=200)
        assert outcome.verdict == "gone", (backward, call, outcome)

def fork_inside_the_backend(gm, example_inputs):
    done = ask(Case(gm, tuple(example_inputs), RunSpec(BackendRef("inductor", "'inductor'"))), seconds=200)
    print("inside:", done.verdict, done.reason, flush=True)
    return gm.forward

torch.compile(small, backend=fork_inside_the_backend)(y)
print("alive")
"""


def test_questions_are_answered_after_threads_autograd_and_inductor(tmp_path: Path) -> None:
    """The asker has used 2 OpenMP threads and is inside a compile: a fork of it would hang."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(AFTER_REAL_USE))
    env = {"OMP_NUM_THREADS": "2"}
    done = python("-W", "error::DeprecationWarning:minidbg", program, env=env, timeout=280)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "inside: gone \nalive\n"


def test_hundred_mixed_calls_leave_memory_processes_and_files_as_they_were() -> None:
    import planted_backends as planted
    import psutil

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.sin(x)) + 1

    graph, inputs = capture_by_dynamo(model, (torch.linspace(-1, 1, 12),))
    names = ["raises", "segfaults", "exits", "aborts", "leaves_processes"]
    mixed = [planted.returns_gm_forward, *(getattr(planted, f"{name}_on_relu") for name in names)]
    mixed.append(planted.adds_one_to_relu)
    me = psutil.Process()

    def figures() -> tuple[int, int, int]:
        return me.num_fds(), len(me.children(recursive=True)), me.num_threads()

    ask(Case(graph, inputs, RunSpec(BackendRef("x", "x")), compiler=mixed[0]), seconds=30)
    before, resident = figures(), me.memory_info().rss
    for number in range(105):
        backend = mixed[number % len(mixed)]
        ask(Case(graph, inputs, RunSpec(BackendRef("x", "x")), compiler=backend), seconds=0.7)
    assert figures() == before
    assert me.memory_info().rss < resident + (32 << 20)
