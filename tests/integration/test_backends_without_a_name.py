"""Backends that neither an expression nor source leads to: pickled, reduced like any other, and left to be filled in."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import fx

import minidbg
from minidbg import oracle, repro, workers
from minidbg.backends.pickled import LIMIT_BYTES
from minidbg.core.outcome import Verdict
from minidbg.fx.case import Case
from minidbg.repro import read_header
from minidbg.wrapper.process import PROCESS, Report


@pytest.fixture(autouse=True)
def _nothing_failed_before() -> None:
    torch._dynamo.reset()
    PROCESS.__init__()


def make(level: Any, held: object = None) -> Callable[..., Any]:
    """A closure that fails by its state alone."""

    def closure(gm: fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        if level > 2 and any("sin" in str(node.target) for node in gm.graph.nodes):
            raise NotImplementedError("no kernel for sin at this level")
        return make_boxed_func(lambda *args: gm(*args)) if held is make else gm.forward

    return closure


class Stateful:
    """Its state makes it fail."""

    def __init__(self, level: int) -> None:
        self.level = level

    def __call__(self, gm: fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        return make(self.level)(gm, example_inputs)


class BreaksElsewhere(Stateful):
    """It can be pickled; made again in another process it raises."""

    def __reduce__(self) -> Any:
        return connect, (os.getpid(),)


def connect(owner: int) -> Stateful:
    raise ConnectionError(f"only process {owner} reaches the compiler's service")


class EndsProcesses(Stateful):
    def __reduce__(self) -> Any:
        return os._exit, (7,)


class NotesItsProcess(Stateful):
    def __init__(self, level: int, log: Path) -> None:
        super().__init__(level)
        self.log = log

    def __reduce__(self) -> Any:
        return made_again, (self.level, self.log)


def made_again(level: int, log: Path) -> Stateful:
    with log.open("a") as file:
        file.write(f"{os.getpid()} {os.getppid()}\n")
    return Stateful(level)


def program(x: torch.Tensor) -> torch.Tensor:
    return (x.cos() * 2 + x).sin().exp() - 1


def failing(backend: Any, folder: Path, **settings: Any) -> Report:
    wrapped = minidbg.wrap(backend, repro_dir=folder, seconds=120, **settings)
    with pytest.raises(Exception, match="no kernel for sin") as caught:
        torch.compile(program, backend=wrapped)(torch.randn(3, 4))
    report = minidbg.report_of(caught.value)
    assert report is not None
    return report


def kept_in(report: Report) -> str:
    """The text of the capture of a failure that was not reduced."""
    assert report.path is None
    assert report.missing_backend is None
    assert report.capture is not None
    assert "a graph whose backend is to be filled in" in report.line
    assert f"minidbg reduce {report.capture} --backend MODULE:EXPRESSION" in report.line
    text = report.capture.read_text()
    assert "backend = ...  # fill in: " in text
    assert "unpickled" not in text
    return text


@pytest.mark.slow
def test_a_closure_is_reduced_and_its_script_is_judged_once_it_has_its_backend(tmp_path: Path) -> None:
    from support.command_line import python  # late: scripts import this file, and know no support

    report = failing(make(3), tmp_path)
    script = report.missing_backend
    assert script is not None, report.line
    assert script.parent == tmp_path / ".minidbg" / "missing_backend"
    assert list(tmp_path.glob("*.py")) == []
    assert "6 -> 1 nodes" in report.line
    assert (
        "a reduced graph whose backend is to be filled in, a closure of test_backends_without_a_name.py:"
        in report.line
    )
    text = script.read_text()
    assert ".sin()" in text
    assert "cos = " not in text
    assert "not with what is filled in" in text
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"unpickled" in path.read_bytes()]

    bare = python(script)
    assert bare.returncode == 125
    sentence = f"its backend is to be filled in: {read_header(script).spec.backend.missing_backend}"
    assert bare.stderr.strip() == sentence
    outcome = repro.run(script)
    assert (outcome.verdict, outcome.reason) == (Verdict.SKIPPED, sentence)
    under_pytest = python("-m", "pytest", "-rs", "-p", "no:cacheprovider", script)
    assert "1 skipped" in under_pytest.stdout
    assert sentence in under_pytest.stdout

    assert repro.run(script, backend=f"{__name__}:make(level=3)").verdict is Verdict.REPRODUCES
    assert repro.run(script, backend=f"{__name__}:make(level=1)").verdict is Verdict.GONE
    assert repro.run(script, backend=f"{__name__}:nothing").verdict is Verdict.SKIPPED

    found = minidbg.reduce(script, backend=f"{__name__}:make(level=3)")
    assert found.parent == tmp_path
    assert "to be filled in" not in found.read_text()
    assert repro.run(found).verdict is Verdict.REPRODUCES


def test_a_compiled_function_is_a_reason_as_well(tmp_path: Path) -> None:
    report = failing(make(3, held=torch.compile(program, backend="eager")), tmp_path)

    kept_in(report)
    assert "it cannot be pickled: " in report.line


def test_too_large_a_backend_is_kept_with_that_reason(tmp_path: Path) -> None:
    report = failing(make(3, held=bytes(LIMIT_BYTES)), tmp_path)

    kept_in(report)
    assert f"it takes more than {LIMIT_BYTES:,} bytes" in report.line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "why"),
    [
        (BreaksElsewhere(3), "it cannot be unpickled in another process: ConnectionError: only process"),
        (EndsProcesses(3), "ended with status 7"),
    ],
)
def test_a_child_that_cannot_unpickle_it_says_nothing_about_the_failure(
    backend: Any, why: str, tmp_path: Path
) -> None:
    report = failing(backend, tmp_path)

    kept_in(report)
    assert why in report.line
    assert "eager" not in report.line


@pytest.mark.slow
def test_it_is_unpickled_in_the_fork_of_each_question_and_never_in_the_server(
    tmp_path: Path, cases: list[Case]
) -> None:
    log = tmp_path / "log"
    failing(NotesItsProcess(3, log), tmp_path)
    with oracle.pickled_for_children(cases[0]) as case:
        (file,) = workers.start_server().folder.glob("backend_*.pickle")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        verdicts = [oracle.ask(case, seconds=60).verdict for _ in range(2)]
        server = workers.start_server().pid

    assert verdicts == [Verdict.REPRODUCES] * 2
    assert not file.exists()
    children = [line.split()[0] for line in log.read_text().splitlines()]
    assert len(set(children)) == 2
    assert not {str(server), str(os.getpid())} & set(children)


def test_a_failure_that_is_reduced_later_lacks_its_backend(tmp_path: Path) -> None:
    report = failing(make(3), tmp_path, reduce="later")

    kept_in(report)
    assert "reduce='later'; a graph whose" in report.line
    assert report.capture is not None
    with pytest.raises(minidbg.MinidbgError, match=r"filled in: a closure of .*; edit it, or give"):
        minidbg.reduce(report.capture)


PROGRAM = """
import os
import torch
import minidbg

def make(level):
    def backend(gm, example_inputs):
        os.abort() if level else None
    return backend

if __name__ == "__main__":
    torch.compile(lambda x: x.cos().sin(), backend=minidbg.wrap(make(3)))(torch.randn(3))
"""


@pytest.mark.slow
def test_a_crash_leaves_the_graph_and_says_what_ended_with_the_process(tmp_path: Path) -> None:
    from support.command_line import cli, python

    (tmp_path / "train.py").write_text(PROGRAM)
    ended = python("train.py", cwd=tmp_path)

    assert ended.returncode < 0
    refused = cli("reduce", cwd=tmp_path)
    assert refused.returncode == 125
    assert (
        "its backend is to be filled in: a closure of train.py:7, which ended with its process"
        in refused.stderr
    )
    (capture,) = (tmp_path / "minidbg_repros" / ".minidbg" / "captures").glob("*.py")
    reduced = cli("reduce", capture, "--backend", "train:make(3)", cwd=tmp_path)
    assert reduced.returncode == 0, reduced.stderr
