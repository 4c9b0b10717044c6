"""A repro folder as a reduction leaves it: repro, capture, result, history. Written as text."""

from __future__ import annotations

from pathlib import Path

from minidbg.core.outcome import Outcome, Verdict
from minidbg.history import HISTORY_FILE, History, Observation, State, SweepRecord

HEADER = """
# /// script
# requires-python = ">=3.11"
# dependencies = ["torch==2.13.0"]
#
# [tool.minidbg]
# schema = 1
# expect = "reproduces"
# backend.name = "no_relu"
# call = "torch.compile"
# device = "cpu"
# nodes = 1
# inputs = 1
# dynamic = false
# [tool.minidbg.signature]
# kind = "compile"
# direction = "forward"
# types = ["ValueError"]
# frames = ["<script>:no_relu"]
# message = "no kernel for relu"
# [tool.minidbg.provenance]
# nodes = 5
# inputs = 3
# captured_from = "train.py:21"
# line = "x = torch.relu(x)"
# message = "no kernel for relu"
# torch_version = "2.13.0+cpu"
# reduced = true
# certified = true
# notes = ["one note"]
# ///

if __name__ == "__main__":
    raise SystemExit("nothing may run this script")
"""

GUARD = 'raise SystemExit("nothing may run this script")'
"""In place of a script's own last line: what only reads a script does not end with it."""

SCRIPT = '''"""no_relu fails to compile relu.

    no kernel for relu
"""
from __future__ import annotations

import torch


def no_relu(gm, example_inputs):
    for node in gm.graph.nodes:
        if node.target is torch.relu:
            raise ValueError("no kernel for relu")
    return gm.forward


backend = no_relu


class Repro(torch.nn.Module):
    def forward(self, tanh):
        relu = torch.relu(tanh)  # train.py:21
        return (relu,)


def inputs(device="cpu"):
    return (torch.zeros(1, device=device),)
'''


def lay(home: Path) -> Path:
    """Fill ``home``; the path of the repro."""
    hidden = home / ".minidbg"
    repro = home / "compile_relu_aaaaaa.py"
    write(repro, SCRIPT + HEADER)
    hidden.mkdir()
    watched(hidden, repro.name)
    return repro


def watched(hidden: Path, name: str) -> None:
    """A history of two runs."""
    with History(hidden / HISTORY_FILE) as history:
        sweep = history.add(SweepRecord(("no_relu.py",)))
        for at, verdict in ((1000.0, Verdict.REPRODUCES), (2000.0, Verdict.GONE)):
            history.add(Observation(name, "cpu", at, Outcome(verdict), "run", "s", "e", sweep=sweep))
        history.add(State(name, "cpu", Verdict.GONE, 2000.0, 2000.0, "s", "e", "c", runs=1))


def write(path: Path, text: str) -> None:
    """The file, with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
