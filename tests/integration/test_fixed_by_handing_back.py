"""The backend that everybody writes first ends with ``return gm.forward``: what it hands back once it is mended is judged as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.command_line import cli, python

pytestmark = [pytest.mark.timeout(600)]

BROKEN = """
def my_compiler(gm, example_inputs):
    if any("relu" in str(node.target) for node in gm.graph.nodes):
        raise RuntimeError("no kernel for relu")
    return gm.forward
"""
MENDED = """
def my_compiler(gm, example_inputs):
    return gm.forward
"""
COMPILES_OTHERS = """
def my_compiler(gm, example_inputs):
    if any("relu" in str(node.target) for node in gm.graph.nodes):
        return gm.forward
    return lambda *args: gm(*args)
"""
WRITE = """
import torch, minidbg
from my_backend import my_compiler
minidbg.save_repro(lambda x: torch.relu(x) + 1, (torch.ones(3),), my_compiler, "repros/relu.py")
"""


def test_a_repro_of_it_is_gone_fixed_and_accepted_once_it_is_mended(tmp_path: Path) -> None:
    backend, env = tmp_path / "my_backend.py", {"PYTHONPATH": str(tmp_path)}

    def asked(*words: str) -> tuple[int, str]:
        done = cli(*words, cwd=tmp_path, env=env, timeout=300)
        return done.returncode, done.stdout + done.stderr

    def swept(*words: str) -> tuple[int, list[dict[str, Any]]]:
        status, said = asked("watch", "repros", "--once", "--json", *words)
        return status, [json.loads(line) for line in said.splitlines() if line.startswith("{")]

    backend.write_text(BROKEN)
    python("-c", WRITE, cwd=tmp_path, env=env, check=True, timeout=300)
    assert swept("--fail-on", "unexpected")[0] == 0

    backend.write_text(COMPILES_OTHERS)
    status, said = asked("check", "repros")
    assert status == 125
    assert "skipped" in said
    assert "handed back: eager ran it" in said
    status, said = asked("accept", "repros/relu.py")
    assert status == 125
    assert "cannot be judged here: skipped: handed back: eager ran it" in said
    assert swept()[0] == 125

    backend.write_text(MENDED)
    status, said = asked("check", "repros")
    assert (status, said.split()[0]) == (0, "gone")
    status, events = swept()
    assert status == 0
    assert [event["kind"] for event in events if event["event"] == "flip"] == ["FIXED"]
    assert swept("--fail-on", "unexpected")[0] == 1, "the header expects the failure still"
    assert asked("accept", "repros/relu.py")[0] == 0
    assert swept("--fail-on", "unexpected")[0] == 0
    done = python("-m", "pytest", "-q", "--minidbg", "repros", cwd=tmp_path, env=env, timeout=300)
    assert (done.returncode, "1 passed" in done.stdout) == (0, True)
