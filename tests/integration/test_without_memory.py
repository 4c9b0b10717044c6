"""Tensors without plain memory, runs that raise inside vmap, and inputs with gaps: wrong results of such programs are reported, reduced and judged."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support import PLANTED
from support.command_line import python

PROGRAM = """
import sys
sys.path.insert(0, {planted!r})
import torch, minidbg, wrong_results
from torch.nn.attention.flex_attention import flex_attention

table = torch.randn(2, 15)

def hessian(x):
    return torch.func.hessian(lambda y: (y.sin() * y.exp()).sum())(x)

def attention(q):
    return flex_attention(q, q, q, score_mod=lambda score, b, h, i, j: score + table[h, i - j + 7])

def gaps(x):
    return x.as_strided((4, 3), (3, 1)).sin()

def shared(x, y):
    return x.add_(1) * y.sin()

def zeros(x):
    return (x + torch_zeros).sin()

torch_zeros = torch._efficientzerotensor((4,))
torch.manual_seed(0)
base = torch.randn(6, 16)
inputs = dict(hessian=[torch.randn(4)], attention=[torch.randn(1, 2, 8, 4)],
              gaps=[base[:, ::2]], shared=[base[0, ::2], base[0, 2:10]], zeros=[torch.randn(4)])["{function}"]
compiled = torch.compile({function}, backend=minidbg.wrap(wrong_results.{backend}), fullgraph=True)
if __name__ == "__main__":
    try:
        print("passed", compiled(*inputs))
    except minidbg.AccuracyError as error:
        print(error, *error.__notes__, sep="\\n")
    print("levels left open:", torch._C._functorch.get_dynamic_layer_stack_depth())
"""


def run(folder: Path, function: str, backend: str) -> subprocess.CompletedProcess[str]:
    program = folder / "program.py"
    program.write_text(PROGRAM.format(planted=str(PLANTED), function=function, backend=backend))
    return python("-W", "ignore", program, cwd=folder)


@pytest.mark.slow
def test_every_look_at_every_odd_tensor(tmp_path: Path) -> None:
    ended = python(PLANTED / "tensors_without_memory.py", cwd=tmp_path)
    assert ended.stdout == "all looked at\n", ended


@pytest.mark.parametrize(
    ("function", "backend"),
    [
        pytest.param("hessian", "off_by_a_thousandth", marks=pytest.mark.slow),
        pytest.param("attention", "off_by_a_thousandth", marks=pytest.mark.slow),
        pytest.param("gaps", "blind_to_strides", marks=pytest.mark.slow),
        pytest.param("shared", "blind_to_strides", marks=pytest.mark.slow),
        pytest.param("zeros", "off_by_a_thousandth", marks=pytest.mark.slow),
    ],
)
def test_a_wrong_result_has_its_short_repro(tmp_path: Path, function: str, backend: str) -> None:
    ended = run(tmp_path, function, backend)
    assert "gives wrong results" in ended.stdout, ended
    assert "levels left open: 0" in ended.stdout
    (script,) = (tmp_path / "minidbg_repros").glob("accuracy_*.py")
    assert f"run: python minidbg_repros/{script.name}" in ended.stdout
    assert len(script.read_text().splitlines()) <= (140 if function == "attention" else 120)
    assert python("-W", "ignore", script, cwd=tmp_path).returncode == 1
