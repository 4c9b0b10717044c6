"""From a repro on, as a user meets it: what is saved, edited by hand, reduced again, and the demo."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from planted_backends import raises_on_relu
from support.command_line import cli

import minidbg
from minidbg.codegen.size import targets_of_calls
from minidbg.core.errors import NotReproduced

pytestmark = pytest.mark.slow


def sin_relu_cos(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x.sin()).cos()


def test_reducing_a_repro_that_was_edited_by_hand(tmp_path: Path) -> None:
    """A line more, written as a person would write it: not our own straight-line form."""
    edited = minidbg.save_repro(sin_relu_cos, (torch.ones(3),), raises_on_relu, tmp_path / "edited.py")
    text = edited.read_text()
    found = re.search(r"( +)(\w+) = torch\.relu\((\w+)\)", text)
    indent, result, argument = found.groups()
    line = f"{indent}{result} = sum(torch.relu({argument}).sin() for _ in range(2))"
    edited.write_text(text.replace(found[0], line))
    path = minidbg.reduce(edited, folder=tmp_path / "out")
    assert targets_of_calls(minidbg.load(path).graph_module) == ("torch.relu",)


def test_save_repro_writes_an_unreduced_script_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = minidbg.save_repro(sin_relu_cos, (torch.ones(3),), raises_on_relu, tmp_path / "mine.py")
    assert path == tmp_path / "mine.py"
    assert len([node for node in minidbg.load(path).graph_module.graph.nodes if "call" in node.op]) == 3


def test_save_repro_of_what_does_not_fail_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotReproduced, match="does not fail on this graph: gone"):
        minidbg.save_repro(torch.sin, (torch.ones(3),), "eager", tmp_path / "none.py")
    assert not list(tmp_path.glob("*.py"))


def test_the_demo_ends_with_a_repro_in_the_current_folder(tmp_path: Path) -> None:
    """Also where the person's settings are others."""
    (tmp_path / "pyproject.toml").write_text('[tool.minidbg]\non_failure = "fallback"\nreduce = "later"\n')
    done = cli("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "313 -> 2 nodes" in done.stdout
    assert "exit status 1 (1 while the bug is there" in done.stdout
    (repro,) = (tmp_path / "minidbg_repros").glob("*.py")
    assert "# dependencies" in repro.read_text()
    assert "# dependencies" not in done.stdout  # comments for tools
    commands = [line.partition("  #")[0].rstrip() for line in done.stdout.splitlines()[-3:]]
    assert commands == [
        f"minidbg show {repro.stem}", f"pytest minidbg_repros/{repro.name}", "minidbg run YOUR_PROGRAM.py"
    ]  # fmt: skip
