"""From a failing program to a verified repro and on, as a user meets it: real processes, a backend in a user's script."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from support.command_line import cli, python

import minidbg
from minidbg.codegen.size import targets_of_calls
from minidbg.core.errors import NotReproduced

pytestmark = pytest.mark.slow

PROGRAM = """
import torch, minidbg


def no_relu(gm, example_inputs):
    for node in gm.graph.nodes:
        if node.target is torch.relu:
            raise ValueError("no kernel for relu")
    return gm.forward


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(20))

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x)
            x = torch.relu(x) if i == 13 else torch.tanh(x)
        return x


if __name__ == "__main__":
    torch.manual_seed(0)
    model = torch.compile(Model(), backend=minidbg.wrap(no_relu))
    model(torch.randn(2, 8))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder after his program has failed."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "train.py").write_text(PROGRAM)
    done = python("train.py", cwd=folder)
    assert done.returncode == 1
    return folder


def only_repro(folder: Path) -> Path:
    (path,) = (folder / "minidbg_repros").glob("*.py")
    return path


def test_reducing_a_repro_that_was_edited_by_hand(folder: Path, tmp_path: Path) -> None:
    """A line more, written as a person would write it: not our own straight-line form."""
    edited = tmp_path / "edited.py"
    text = only_repro(folder).read_text()
    found = re.search(r"( +)(\w+) = torch\.relu\((\w+)\)", text)
    indent, result, argument = found.groups()
    line = f"{indent}{result} = sum(torch.relu({argument}).sin() for _ in range(2))"
    edited.write_text(text.replace(found[0], line))
    path = minidbg.reduce(edited, folder=tmp_path / "out")
    assert targets_of_calls(minidbg.load(path).graph_module) == ("torch.relu",)


def test_save_repro_writes_an_unreduced_script_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import planted_backends

    monkeypatch.chdir(tmp_path)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x.sin()).cos()

    backend = planted_backends.raises_on_relu
    path = minidbg.save_repro(function, (torch.ones(3),), backend, tmp_path / "mine.py")
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
