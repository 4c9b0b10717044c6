"""Every command and snippet of the README and of the help topics: read by the parsers by default, run when slow tests are.

A fenced block of Python whose first line is ``# NAME.py`` is that file; other Python runs in one namespace, in order.
Each line of a console block that begins with ``$`` is run in a folder that has those files.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import minidbg
from minidbg.commands.about import topics
from minidbg.commands.root import cli
from minidbg.commands.table import COMMANDS

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
MANUAL = "\n".join([README, *topics().values()])
BLOCK = re.compile(r"(?ms)^```(\w+)\n(.*?)^```$")
RUN_ELSEWHERE = re.compile(
    r"^(pip install|python tests/device|git bisect run|\.ci/run|minidbg bisect|dask|minidbg (worker|watch --cluster))"
)
"""By CI itself, by the tests of tests/device, of bisecting (it needs a repository) and of a cluster (certificates)."""


def blocks(language: str) -> list[str]:
    return [text for found, text in BLOCK.findall(MANUAL) if found == language]


def commands() -> list[str]:
    """Every command, without its comment."""
    lines = (line[2:] for text in blocks("console") for line in text.splitlines() if line.startswith("$ "))
    return list(dict.fromkeys(re.sub(r"\s+#.*", "", line) for line in lines))


def snippets() -> list[str]:
    """Python that is no file: not the script of the first page, which a run writes again."""
    return [text for text in blocks("python") if not re.match(r'# \w+\.py\n|"""', text)]


def files() -> dict[str, str]:
    """The files that the README shows."""
    return {text[2 : text.index("\n")]: text for text in blocks("python") if re.match(r"# \w+\.py\n", text)}


def ours() -> list[str]:
    return [part for line in commands() for part in line.split(" && ") if part.startswith("minidbg ")]


@pytest.mark.parametrize("command", ours())
def test_every_command_is_one_that_the_command_line_takes(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, *arguments = shlex.split(command)[1:]
    found = cli.get_command(click.Context(cli), name)
    assert found is not None, f"no command {name}"
    # paths of the README need not be here: it is names of options that may go stale
    for parameter in found.params:
        if isinstance(parameter.type, click.Path):
            monkeypatch.setattr(parameter.type, "exists", False)
    monkeypatch.setattr("minidbg.commands.output.find_repro", lambda text, folder: text)
    found.make_context(name, arguments)


def test_every_command_is_in_the_readme() -> None:
    named = {shlex.split(command)[1] for command in ours()} | set(re.findall(r"`minidbg (\w+)", README))
    assert set(COMMANDS) <= named


@pytest.mark.parametrize("text", [*blocks("python")])
def test_every_snippet_is_python(text: str) -> None:
    compile(text, "README.md", "exec")


def test_the_configuration_shown_is_one_that_is_read() -> None:
    from minidbg.core import settings
    from minidbg.watch import settings as watching

    for text in blocks("toml"):
        table = tomllib.loads(text)["tool"]["minidbg"]
        assert set(table.pop("watch", {})) <= set(watching.WatchSettings.__dataclass_fields__.keys())
        assert set(table) <= settings.Settings.__dataclass_fields__.keys()


def test_the_readme_is_short_and_names_every_topic() -> None:
    assert len(README.splitlines()) <= 170
    links = re.findall(r"\[(\w+)\]\((minidbg/[\w/]+\.md)\)", README)
    assert sorted(name for name, _ in links) == sorted(topics())
    assert [path for _, path in links if not (Path(minidbg.__file__).parents[1] / path).is_file()] == []


# --- all of it, run ---

FRAGMENTS = """
import functools
import torch, minidbg
from torch._dynamo.backends.common import aot_autograd
from my_backend import my_backend


def make_backend(level):
    return my_backend


def my_compiler(gm, example_inputs):
    return gm.forward


def fails(gm, inputs):
    return any(node.target is torch.relu for node in gm.graph.nodes)


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(torch.tanh(x) + 1) * 2


if __name__ == "__main__":
    model, inputs = Model(), (torch.randn(3),)
    gm, gm_inputs = torch.fx.symbolic_trace(Model()), inputs
"""
TRAIN = """
import torch
from my_backend import my_backend

if __name__ == "__main__":
    torch.compile(lambda x: torch.relu(x) + 1, backend=my_backend)(torch.randn(3))
"""
MAY_END_WITH: dict[str, set[int]] = {
    "minidbg history": {0, 125},  # another worker of these tests may have watched, and this one not
    "minidbg check": {1},
    "minidbg watch": {0, 1, 3},
    "minidbg run --backend acme_backend": {0},  # train.py has no gelu
    "minidbg run": {1},
    "minidbg nodes net.pt2 --backend acme_backend:acme --jsonl": {1},
    "minidbg hunt acme_backend": {3},  # it is wrong about gelu
    "python minidbg_repros/compile_add_d0c6ca.py --device cuda:1": {1, 125},  # 125: it is not here
    "python minidbg_repros": {1},
    "pytest minidbg_repros": {1},
}
"""Exit statuses of commands that tell a verdict; all others end with 0."""
SECONDS = 280


def run(command: str, folder: Path, seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
    """The command as a shell would run it, with this environment's programs first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": "."}
    line = ["bash", "-c", command]
    return subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, timeout=seconds)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A user's folder after the program of the first page has failed."""
    folder = tmp_path_factory.mktemp("readme")
    for name, text in files().items():
        (folder / name).write_text(text)
    (folder / "train.py").write_text(TRAIN)
    assert run("python net.py", folder).returncode == 0
    done = run("python model.py", folder)
    assert done.returncode == 1
    (folder / "stderr.txt").write_text(done.stderr)
    yield folder
    with contextlib.suppress(OSError):
        (folder / "stderr.txt").unlink()


@pytest.mark.slow
def test_the_program_of_the_first_page_ends_as_shown(folder: Path) -> None:
    shown = next(text for text in blocks("text") if "runs" in text).splitlines()
    said = (folder / "stderr.txt").read_text()
    assert shown[0] in said
    figures = re.compile(r"\d+ runs, [\d.]+ s")
    assert figures.sub("N", shown[-1]) in figures.sub("N", said)


@pytest.mark.slow
def test_the_script_of_the_first_page_is_the_one_that_is_written(folder: Path) -> None:
    shown = next(text for text in blocks("python") if text.startswith('"""'))
    (written,) = (folder / "minidbg_repros").glob("compile_add_*.py")
    kept = written.read_text()
    kept, shown = (re.sub(r"torch 2\.[\w.+]+\n|\d+ more lines", "VARIES", text) for text in (kept, shown))
    assert kept.startswith(shown.partition("import torch")[0])
    places = [kept.index(part) for part in shown.rstrip().split("\n\n\n")[1:]]
    assert places == sorted(places)
    lines, for_tools = map(int, re.findall(r"(\d+) lines, (\d+) of them for tools", README)[0])
    assert len(kept.splitlines()) <= lines
    assert len(kept[kept.index("# /// script") :].splitlines()) <= for_tools


@pytest.mark.slow
@pytest.mark.parametrize("command", [command for command in commands() if not RUN_ELSEWHERE.match(command)])
def test_every_command_of_the_readme_runs(command: str, folder: Path) -> None:
    if command.startswith("minidbg watch") and "--once" not in command:
        command += " --once"  # else it ends with Ctrl-C
    (repro,) = (folder / "minidbg_repros").glob("compile_add_*.py")
    command = command.replace("REPRO", str(repro.relative_to(folder)))
    done = run(command, folder)
    allowed = next((found for start, found in MAY_END_WITH.items() if command.startswith(start)), {0})
    assert done.returncode in allowed, f"{done.stdout[-1500:]}\n{done.stderr[-1500:]}"


@pytest.mark.slow
def test_every_snippet_of_the_readme_runs(folder: Path) -> None:
    body = "\n".join(snippets())
    program = FRAGMENTS + "".join(f"    {line}\n" if line.strip() else "\n" for line in body.splitlines())
    (folder / "snippets.py").write_text(program)
    (folder / "hunt.toml").write_text("[ops]\n")  # as `minidbg hunt --expected hunt.toml` writes it
    package = folder / "my_pkg"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").touch()
    (package / "mod.py").write_text(
        "from my_backend import my_backend\n\n\ndef make_backend(level):\n    return my_backend\n"
    )
    done = run("python snippets.py", folder)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "run: python minidbg_repros/compile_relu_" in done.stdout
