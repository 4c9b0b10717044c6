"""Backends that a fork of a clean interpreter does not suit: each question is then a fresh interpreter, or has the program's threads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from support.doubles import Children
from torch import fx

import minidbg
from minidbg import backends, workers
from minidbg.core.outcome import Kind, Signature, Verdict
from minidbg.core.run_spec import RunSpec
from minidbg.fx.case import Case
from minidbg.fx.context import current_context
from minidbg.oracle import ask
from minidbg.workers import Ended, Request

HANGS_IN_FORKS = """
import torch

def wl_hangs_in_forks(gm, example_inputs):
    if any(node.target is torch.relu for node in gm.graph.nodes):
        raise ValueError("no relu here")
    return gm.forward
"""
WRONG_WITH_TWO_THREADS = """
import torch

def wl_wrong_with_two_threads(gm, example_inputs):
    is_relu = any(node.target is torch.relu for node in gm.graph.nodes)

    def run(*args):
        if is_relu and torch.get_num_threads() > 1:
            raise RuntimeError("the second thread is lost")
        return gm(*args)

    return run
"""


def module(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.slow
def test_a_backend_that_hangs_in_forks_is_asked_in_fresh_interpreters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module(tmp_path, "wl_hangs", HANGS_IN_FORKS, monkeypatch)
    import wl_hangs  # type: ignore[import-not-found]

    backend = backends.find_reference(wl_hangs.wl_hangs_in_forks)
    graph = fx.symbolic_trace(lambda x: (torch.relu(x) + 1,))
    case = Case(graph, (torch.ones(3),), RunSpec(backend, signature=Signature(Kind.COMPILE)))

    def ends(request: Request) -> Ended:
        if request.fork is not None:
            return Ended(timed_out=True, note="compile forward")
        return workers.submit(request).result()

    children = Children(ends)
    for _ in range(2):
        outcome = ask(case, seconds=60, submit=children)
        assert outcome.verdict is Verdict.CHANGED
        assert outcome.signature.types == ("ValueError",)
    (said,) = [record.getMessage() for record in caplog.records if "fresh interpreter" in record.getMessage()]
    assert "wl_hangs_in_forks hangs in a fork" in said
    # the case and one addition in forks; the addition, and the case each time, in interpreters
    assert [request.fork is None for request in children.requests] == [False, False, True, True, True]


@pytest.mark.slow
@pytest.mark.skipif(torch.get_num_threads() == 1, reason="torch has one thread here")
def test_a_failure_that_needs_the_programs_threads_is_reduced_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(tmp_path, "wl_threads", WRONG_WITH_TWO_THREADS, monkeypatch)
    import wl_threads  # type: ignore[import-not-found]

    assert current_context().threads == torch.get_num_threads()
    backend = minidbg.wrap(wl_threads.wl_wrong_with_two_threads, repro_dir=tmp_path)
    compiled = torch.compile(lambda x: torch.relu(x.sin()).cos(), backend=backend)
    with pytest.raises(RuntimeError, match="second thread") as caught:
        compiled(torch.ones(3))
    report = minidbg.report_of(caught.value)
    assert report.path is not None, report.line
    text = report.path.read_text()
    assert f"torch.set_num_threads({torch.get_num_threads()})" in text
    assert "relu" in text
    assert "sin" not in text.partition("class Repro")[2].partition("def inputs")[0]
