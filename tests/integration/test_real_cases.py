"""Real failures of torch, alone and inside large models: from the user's program to a repro that runs anywhere.

Ten more are programs of the corpus, under ``real``.
Each case runs in a process of its own, as a user's program would; its repro runs from another folder.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from support.command_line import python

CASES = Path(__file__).parents[1] / "cases"

PROGRAM = """
import importlib, json, sys
sys.path[:0] = {folders!r}
import torch, minidbg
case = importlib.import_module({module!r})
model, inputs = case.make()
if hasattr(model, "eval"):
    model.eval()
compiled = torch.compile(model, backend=minidbg.wrap(case.BACKEND), dynamic=getattr(case, "DYNAMIC", None))
try:
    with torch.no_grad():
        compiled(*inputs)
except Exception as error:
    report = minidbg.report_of(error)
    print(json.dumps({{"type": type(error).__name__, "text": str(error), "path": str(report.path), "line": report.line}}))
    raise
"""


@dataclass(frozen=True)
class Expected:
    """What one case's repro must show."""

    module: str
    nodes: int
    """Most call nodes of the repro."""
    says: str
    """Part of the original message, and of what the repro prints."""
    threads: str | None = None
    """OMP_NUM_THREADS of the user's program: with more, C++ code that throws in a second thread ends the process."""


SINGLE = [
    Expected("runtime_own_bare_subclass", 1, "Multiple dispatch failed"),
    Expected("accuracy_own_any_uint8", 1, "has dtype bool, eager gives uint8"),
    Expected("accuracy_own_remainder_inf", 1, "output 0"),
    Expected("compile_own_sum_bool", 2, "CppCompileError"),
    Expected("compile_own_prod_bool", 2, "AssertionError"),
    Expected("compile_own_add_complex_empty", 1, "stride(-1) must be 1"),
    Expected("compile_own_view_copy_transposed", 1, "Cannot view a tensor"),
]
IN_MODELS = [
    Expected("compile_193265_gpt2_step_schedule", 2, "IndexError"),
    Expected("accuracy_own_unet_remainder_inf", 2, "output 0"),
    Expected("runtime_190272_densenet121_fractional_pool", 1, "index", threads="1"),
    Expected("runtime_189518_detr_positions", 10, "same dtype"),
    Expected("accuracy_187027_tts_upsampling", 4, "output 0 differs"),
]


TRIED = ("2.13", "2.14", "2.15")
"""Versions of torch on which it is known of each case whether it fails; ``FAILS`` may name others on which it does."""


def skip_unless_it_fails_here(expected: Expected, status: int | None = None) -> None:
    """Skip aloud a case that the installed torch has cured; on a torch that nobody has tried, ``status`` tells."""
    folder = CASES / "models" if (CASES / "models" / f"{expected.module}.py").exists() else CASES
    found = re.search(r"(?m)^FAILS = (.*)$", (folder / f"{expected.module}.py").read_text())
    assert found is not None, f"{expected.module} does not say on which versions it fails"
    fails = ast.literal_eval(found[1])
    here = ".".join(torch.__version__.split(".")[:2])
    if here not in fails and (here in TRIED or status == 0):
        pytest.skip(f"{expected.module} is gone on torch {torch.__version__}; it fails on {', '.join(fails)}")


def run_user_program(expected: Expected, folder: Path) -> subprocess.CompletedProcess[str]:
    program = folder / "train.py"
    program.write_text(PROGRAM.format(folders=[str(CASES), str(CASES / "models")], module=expected.module))
    threads = {} if expected.threads is None else {"OMP_NUM_THREADS": expected.threads}
    return python(program, cwd=folder, env={"HF_HUB_OFFLINE": "1", **threads}, timeout=280)


@pytest.mark.slow
@pytest.mark.parametrize(
    "expected",
    [*SINGLE, *IN_MODELS],
    ids=lambda expected: expected.module,
)
def test_a_real_failure_ends_as_a_small_repro_that_fails_elsewhere(
    expected: Expected, tmp_path: Path
) -> None:
    skip_unless_it_fails_here(expected)
    done = run_user_program(expected, tmp_path)
    skip_unless_it_fails_here(expected, done.returncode)
    assert done.returncode == 1, done.stderr[-4000:]
    report = json.loads(done.stdout.strip().splitlines()[-1])
    assert expected.says in report["text"]
    script = tmp_path / report["path"]
    assert script.parent == tmp_path / "minidbg_repros"
    assert report["line"] in done.stderr.strip().splitlines()[-1]

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    again = python(script, cwd=elsewhere)
    assert again.returncode == 1, again.stdout + again.stderr[-4000:]
    assert again.stdout.endswith("reproduces\n")
    assert "only shows it" not in script.read_text()

    from minidbg import repro
    from minidbg.codegen.size import call_nodes

    case = repro.load(script)
    assert call_nodes(case.graph_module) <= expected.nodes, script.read_text()
    assert case.provenance.certified
