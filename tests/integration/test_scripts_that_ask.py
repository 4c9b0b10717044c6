"""A failure that a few lines cannot judge: the script shows it, ends with 125, and minidbg judges it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from support.command_line import python

from minidbg.core.outcome import Kind, Signature, Verdict
from minidbg.core.run_spec import BackendRef, RunSpec
from minidbg.fx.case import Case
from minidbg.fx.copying import capture_by_dynamo
from minidbg.reduction import publishing
from minidbg.reduction.result import Limits
from minidbg.reduction.session import Session
from minidbg.repro import NoShortForm, render, run

ADDS_ONE = """\
def adds_one(gm, example_inputs):
    return lambda *args: tuple((value + 1, value) for value in gm(*args))"""
SHOWN = r"output 0: eager gives tensor\(\[.*\]\), the backend gives tensor\(\["


def of_another_structure() -> Case:
    """The backend gives two tensors for one."""
    graph_module, inputs = capture_by_dynamo(lambda x: torch.relu(x), (torch.randn(4),))
    signature = Signature(Kind.ACCURACY, message="output: structure")
    backend = BackendRef("adds_one", "adds_one", embedded=ADDS_ONE)
    spec = RunSpec(backend, signature=signature)
    return Case(graph_module, inputs, spec)


@pytest.mark.slow
def test_it_is_published_where_the_short_form_is_refused_and_only_shows_the_results(tmp_path: Path) -> None:
    with pytest.raises(NoShortForm, match="structure"):
        render(of_another_structure())
    session = Session(Limits(value_limit_bytes=1 << 20))
    outcome, draft = publishing.prove(of_another_structure(), publishing.Exactness.SEEDED, tmp_path, session)
    assert (outcome.verdict, draft is not None) == (Verdict.REPRODUCES, True)
    assert draft is not None
    lines = draft.read_text().splitlines()
    assert len(lines) <= 80
    assert "Exit status: 125." in draft.read_text()
    why = "only shows it, and `minidbg check` judges it: a result of another structure"
    assert why in " ".join("\n".join(lines[:12]).split())

    done = python(draft, cwd=tmp_path)
    assert done.returncode == 125, done.stderr
    assert re.match(SHOWN, done.stdout)
    assert f"minidbg check {draft}" in done.stderr
    assert run(draft).verdict is Verdict.REPRODUCES
    assert run(draft, backend="eager").verdict is Verdict.GONE
