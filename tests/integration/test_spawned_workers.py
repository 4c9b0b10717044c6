"""Questions in forks of a fresh interpreter, as CUDA and autograd's threads need them, tried here on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import planted_backends as planted
import psutil
import pytest
import torch
from support import PLANTED
from support.command_line import python

from minidbg import backends, oracle, workers
from minidbg.core.outcome import Outcome, Verdict
from minidbg.core.run_spec import RunSpec
from minidbg.fx.case import Case
from minidbg.fx.copying import capture_by_dynamo
from minidbg.oracle.execute import execute

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _spawned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONPATH", str(PLANTED))
    yield
    workers.end_server()
    assert psutil.Process().children(recursive=True) == []


def case_of(backend: Any, **fields: Any) -> Case:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.sin(x)) + 1

    graph, inputs = capture_by_dynamo(model, (torch.linspace(-1, 1, 12),))
    torch._dynamo.reset()
    return Case(graph, inputs, RunSpec(backends.find_reference(backend), **fields))


def asked(backend: Any, **fields: Any) -> Outcome:
    return oracle.ask(case_of(backend, **fields), seconds=60, memory_bytes=2 << 30)


def test_the_server_answers_as_this_process_does_and_is_used_again() -> None:
    backends = [planted.raises_on_relu, "aot_eager", planted.segfaults_in_run_on_relu]
    there, children = [], []
    for backend in backends:
        there.append(asked(backend))
        children.append([child.pid for child in psutil.Process().children()])
    assert children[0] == children[1] == children[2]
    here = [execute(case_of(backend)) for backend in backends[:2]]
    assert [one.verdict for one in there] == [Verdict.REPRODUCES, Verdict.GONE, Verdict.REPRODUCES]
    assert [one.verdict for one in here] == [Verdict.REPRODUCES, Verdict.GONE]
    assert [one.signature for one in here] == [one.signature for one in there[:2]]
    assert "Segmentation fault" in there[2].stderr


PROGRAM = """
import os, sys
import torch
{before}
import minidbg
import planted_backends as planted

def program(x, weight):
    for _ in range(3):
        x = torch.tanh(x @ weight)
    return torch.relu(x).sum()

for backend in (planted.raises_on_relu, planted.raises_in_backward_of_relu, planted.adds_one_to_relu):
    torch._dynamo.reset()
    weight = torch.eye(4).requires_grad_()
    compiled = torch.compile(program, backend=minidbg.wrap(backend, repro_dir=sys.argv[1]))
    try:
        compiled(torch.randn(4, 4), weight).backward()
    except Exception as error:
        report = minidbg.report_of(error)
        print(minidbg.load(report.path).provenance.reduced if report.path else report.line)
    else:
        sys.exit("no failure")
"""

CUDA_IN_USE = """
torch.cuda.is_initialized = lambda: True
torch.cuda.get_rng_state = lambda *_: torch.zeros(16, dtype=torch.uint8)
torch.cuda.set_rng_state = lambda *_: None
torch.cuda.current_device = lambda: 0
"""
IN_A_FORK_OF_ONE_WITH_CUDA = f"{CUDA_IN_USE}\ntorch.cuda._is_in_bad_fork = lambda: True"
NO_DEVICES = "os.environ['CUDA_VISIBLE_DEVICES'] = ''"
AUTOGRAD_HAS_THREADS = """
from torch._subclasses import FakeTensorMode
with FakeTensorMode():
    pass
torch.ones(1, requires_grad=True).sum().backward()
"""


@pytest.mark.parametrize(
    "before",
    [CUDA_IN_USE, IN_A_FORK_OF_ONE_WITH_CUDA, NO_DEVICES, AUTOGRAD_HAS_THREADS],
    ids=["cuda in use", "bad fork", "no visible devices", "autograd's threads"],
)
def test_training_program_that_cannot_be_forked_has_its_repros(tmp_path: Path, before: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.format(before=before))
    done = python(script, tmp_path / "repros", timeout=250)
    assert done.stdout.splitlines() == ["True"] * 3, done.stderr
    assert done.returncode == 0
    assert "fork" not in done.stderr
