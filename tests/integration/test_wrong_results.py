"""Wrong results, from a user's program to a verified repro of the minimal graph. Real reductions, real fresh interpreters."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import PLANTED
from support.command_line import python

from minidbg import repro
from minidbg.fx.effects import op_name
from minidbg.judge.command import JUDGE_SCRIPT
from minidbg.words.outcome import Verdict

PROGRAM = """
import sys
sys.path.insert(0, {planted!r})
import torch, minidbg, wrong_results
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        self.norm, self.drop = nn.LayerNorm(6), nn.Dropout(0.5)
        self.register_buffer("steps", torch.zeros(6))

    def forward(self, x):
        self.steps.add_(1)
        h = torch.sin(self.drop(self.norm(self.first(x))))
        h = torch.relu(h) + torch.tanh(h * 3) + torch.sigmoid(h)
        c = h.cumsum(0)
        return self.last(h).softmax(-1), c, h.transpose(0, 1), h.view(-1), h.argmax(1)

torch.manual_seed(0)
compiled = torch.compile(Model(), backend=minidbg.wrap(wrong_results.{backend}))
compiled(torch.randn(32, 6))
"""


@dataclass(frozen=True)
class Expected:
    backend: str
    ops: tuple[str, ...]
    """Of the minimal graph."""
    message: str
    """Of the signature."""


EXPECTED = [
    Expected("wrong_relu", ("relu",), "output: float"),
    Expected("wrong_relu_and_other_random_numbers", ("relu",), "output: float"),
    Expected("wrong_in_a_range", ("sigmoid",), "output: float"),
    Expected("nan_for_large", ("tanh",), "output: nan"),
    Expected("wrong_dtype", ("cumsum",), "output: dtype float64 for float32"),
    Expected("wrong_integer", ("argmax",), "output: integer"),
    Expected("loses_aliasing", ("view",), "output: aliasing"),
    Expected("loses_mutation", ("add_",), "input: float"),
    Expected("wrong_gradient", ("sin",), "gradient: float"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "expected",
    EXPECTED,
    ids=lambda expected: expected.backend,
)
def test_wrong_results_end_as_the_minimal_graph_that_gives_them(expected: Expected, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM.format(planted=str(PLANTED), backend=expected.backend))
    done = python(program, cwd=tmp_path, timeout=280)
    assert done.returncode == 1, done.stderr[-3000:]
    assert "AccuracyError" in done.stderr
    scripts = list((tmp_path / "minidbg_repros").glob("*.py"))
    assert len(scripts) == 1, done.stderr[-3000:]
    again = python(JUDGE_SCRIPT, scripts[0], "--json", cwd=tmp_path, timeout=100)
    assert again.returncode == 1, again.stdout + again.stderr[-3000:]
    found = json.loads(again.stdout)
    assert (found["verdict"], found["signature"]["message"]) == (Verdict.REPRODUCES, expected.message)
    assert found["figures"]["category"] in expected.message
    case = repro.load(scripts[0])
    calls = [node for node in case.graph_module.graph.nodes if node.op.startswith("call")]
    assert tuple(map(op_name, calls)) == expected.ops, scripts[0].read_text()
    assert case.spec.backward == expected.message.startswith("gradient")
