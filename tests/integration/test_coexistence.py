"""Torch's own debugging goes on working beside minidbg, and minidbg beside it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.command_line import python

pytestmark = pytest.mark.slow

PROGRAM = """
import torch, minidbg


def no_relu(gm, example_inputs):
    for node in gm.graph.nodes:
        if node.target is torch.relu:
            raise ValueError("no kernel for relu")
    return gm.forward


def f(x):
    return torch.relu(torch.tanh(x) + 1) * 2


if __name__ == "__main__":
    torch.compile(f, backend=minidbg.wrap(no_relu))(torch.randn(3))
"""


def failed(folder: Path, **environment: str) -> str:
    """The program's stderr, after its failure has become a repro that runs without those variables."""
    (folder / "train.py").write_text(PROGRAM)
    done = python("train.py", cwd=folder, env=environment, timeout=250)
    assert done.returncode == 1
    assert re.search(r"minidbg: 4 -> 1 nodes, \d+ runs", done.stderr), done.stderr[-3000:]
    assert "ValueError: no kernel for relu" in done.stderr
    assert len(list((folder / "minidbg_repros").glob("*.py"))) == 1
    return done.stderr


def test_torch_logs_come_as_before(tmp_path: Path) -> None:
    said = failed(tmp_path, TORCH_LOGS="graph_code")
    assert said.count("TRACED GRAPH") == 1, "graphs of our own questions are not the user's"


def test_traces_and_debug_folders_are_written(tmp_path: Path) -> None:
    failed(tmp_path, TORCH_TRACE=str(tmp_path / "trace"), TORCH_COMPILE_DEBUG="1")
    assert list((tmp_path / "trace").glob("*.log"))
    assert (tmp_path / "torch_compile_debug").is_dir()


def test_torchs_own_minifier_is_still_launched_after_a_failure(tmp_path: Path) -> None:
    failed(tmp_path, TORCHDYNAMO_REPRO_AFTER="dynamo", TORCHDYNAMO_REPRO_LEVEL="2")
    assert list(tmp_path.glob("torch_compile_debug/**/minifier_launcher.py"))
