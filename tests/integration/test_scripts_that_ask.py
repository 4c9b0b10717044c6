"""A failure that a few lines cannot judge: the script shows it by itself, and asks minidbg for the verdict."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.command_line import python

from minidbg.fx.case import Case
from minidbg.fx.copying import capture_by_dynamo
from minidbg.reduction import publishing
from minidbg.repro import Form, NoShortForm, render, write
from minidbg.words.outcome import Kind, Signature, Verdict
from minidbg.words.run_spec import BackendRef, RunSpec

ADDS_ONE = """\
def adds_one(gm, example_inputs):
    return lambda *args: tuple((value + 1, value) for value in gm(*args))"""
SHOWN = r"output 0: eager gives tensor\(\[.*\]\), the backend gives tensor\(\["
NO_MINIDBG = "import sys; sys.modules['minidbg'] = None; import runpy; sys.argv = sys.argv[1:]; "
NO_MINIDBG += "runpy.run_path(sys.argv[0], run_name='__main__')"


def of_another_structure() -> Case:
    """The backend gives two tensors for one."""
    graph_module, inputs = capture_by_dynamo(lambda x: torch.relu(x), (torch.randn(4),))
    signature = Signature(Kind.ACCURACY, message="output: structure")
    backend = BackendRef("adds_one", "adds_one", embedded=ADDS_ONE)
    spec = RunSpec(backend, signature=signature)
    return Case(graph_module, inputs, spec)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    with pytest.raises(NoShortForm, match="structure"):
        render(of_another_structure())
    return write(of_another_structure(), tmp_path / "r.py", Form.HANDS_OVER, remark="It asks.")


def test_it_is_short_and_says_why_first(script: Path) -> None:
    lines = script.read_text().splitlines()
    assert len(lines) <= 80
    assert "It asks." in "\n".join(lines[:8])


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "status"), [((), 1), (("--backend", "eager"), 0), (("--what",), 125)])
def test_minidbg_gives_the_verdict_and_the_results_are_shown(
    script: Path, tmp_path: Path, arguments: tuple[str, ...], status: int
) -> None:
    done = python(script, *arguments, cwd=tmp_path)
    assert done.returncode == status, done.stderr
    assert re.match(SHOWN, done.stdout)
    assert ("reproduces: the code that adds_one made gives wrong results" in done.stdout) is (status == 1)


@pytest.mark.slow
def test_without_minidbg_it_still_shows_what_happens_and_is_not_judged(script: Path, tmp_path: Path) -> None:
    done = python("-c", NO_MINIDBG, script, cwd=tmp_path)
    assert done.returncode == 125, done.stderr
    assert re.match(SHOWN, done.stdout)
    assert "minidbg, which is not installed here" in done.stderr


@pytest.mark.slow
def test_it_is_a_test(script: Path, tmp_path: Path) -> None:
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:minidbg", script)
    done = python(*command, cwd=tmp_path)
    assert done.returncode == 1, done.stdout
    assert "reproduces: " in done.stdout


@pytest.mark.slow
def test_json_is_the_judges(script: Path, tmp_path: Path) -> None:
    done = python(script, "--json", cwd=tmp_path)
    assert json.loads(done.stdout.splitlines()[-1])["verdict"] == "reproduces"


@pytest.mark.slow
def test_it_is_published_where_the_short_form_is_refused(tmp_path: Path) -> None:
    drafted: list[str] = []

    def keep(*arguments: object, **how: object) -> Path:
        made: Callable[..., Path] = write
        path = made(*arguments, **how)
        drafted.append(path.read_text())
        return path

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(publishing.repro, "write", keep)
        outcome, draft = publishing.verify(
            of_another_structure(), publishing.Exactness.SEEDED, tmp_path, value_limit_bytes=1 << 20
        )
    assert (outcome.verdict, draft is not None) == (Verdict.REPRODUCES, True)
    assert (
        "A few lines cannot judge it, so it asks minidbg for the verdict: a result of another structure"
        in drafted[-1]
    )
