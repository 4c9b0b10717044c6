"""Cells of a notebook: functions without a source file are captured, reduced, and the result can be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import python

pytestmark = pytest.mark.slow

CELLS = [
    """import torch, minidbg

def no_relu(gm, example_inputs):
    for node in gm.graph.nodes:
        if node.target is torch.relu:
            raise ValueError("no kernel for relu")
    return gm.forward
""",
    """class Model(torch.nn.Module):
    def forward(self, x):
        for i in range(4):
            x = torch.relu(x) if i == 2 else torch.tanh(x + 1)
        return x
""",
    """model = torch.compile(Model(), backend=minidbg.wrap(no_relu))
try:
    model(torch.randn(3))
except Exception as error:
    report = minidbg.report_of(error)
report
""",
]


def test_a_jupyter_kernel_shows_the_repro_as_the_cells_result(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    nbformat = pytest.importorskip("nbformat")
    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    run = (
        "import sys, nbformat, nbclient\n"
        "notebook = nbformat.read('in.ipynb', 4)\n"
        "nbclient.NotebookClient(notebook, timeout=250, kernel_name='python3').execute()\n"
        "nbformat.write(notebook, 'out.ipynb')\n"
    )
    assert nbclient
    nbformat.write(notebook, tmp_path / "in.ipynb")
    done = python("-W", "ignore", "-c", run, cwd=tmp_path, timeout=290)
    assert done.returncode == 0, done.stderr[-3000:]
    outputs = nbformat.read(tmp_path / "out.ipynb", 4).cells[-1].outputs
    shown = next(one for one in outputs if one.output_type == "execute_result").data["text/markdown"]
    assert shown.startswith("**minidbg**: 7 -> 1 nodes")
    assert "torch.relu(" in shown
    assert "# cell 2:4" in shown
    (path,) = (tmp_path / "minidbg_repros").glob("*.py")
    assert "From cell 2:4" in path.read_text()
    assert python(path).returncode == 1
