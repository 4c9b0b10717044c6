"""A private name that this torch does not have turns off what needs it, says so, and breaks no program."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import planted_backends as planted
import pytest
import torch
from support.lacking import MARKED, lacking

import minidbg
from minidbg import torch_internals
from minidbg.core.errors import TorchNameMissing
from minidbg.wrapper.process import PROCESS

ON_EVERY_WAY = {"registered_backend", "backend_compiler_failed", "is_fake"}
"""Used by each program that is wrapped."""


@pytest.fixture(autouse=True)
def _names_come_back() -> Iterator[None]:
    torch_internals.warn_once.cache_clear()
    yield
    torch._dynamo.reset()


def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ weight).sum()


def run(backend: Any, folder: Path, name: str) -> torch.Tensor:
    """One step of training, without the names of one function."""
    torch._dynamo.reset()
    PROCESS.__init__()
    weight = torch.ones(3, 3, requires_grad=True)
    with lacking(name):
        compiled = torch.compile(program, backend=minidbg.wrap(backend, repro_dir=folder, reduce="later"))
        compiled(torch.ones(3, 3), weight).backward()
    assert weight.grad is not None
    return weight.grad


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ON_EVERY_WAY else pytest.mark.slow) for name in MARKED],
)
def test_without_the_names_of_one_function_programs_run_and_fail_as_they_would(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "minidbg"):
        assert torch.equal(run("aot_eager", tmp_path, name), torch.full((3, 3), 3.0))
        with pytest.raises(Exception, match="cannot lower relu"):
            run(planted.raises_on_relu, tmp_path, name)
        try:
            run(planted.adds_one_to_relu, tmp_path, name)
        except minidbg.AccuracyError:
            return
    # The wrong result was let through, so it must have been said why.
    assert name in caplog.text


def test_a_name_that_is_really_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._library import custom_ops

    monkeypatch.delattr(custom_ops, "OPDEFS")
    with pytest.raises(
        TorchNameMissing, match=r"no torch\._library\.custom_ops\.OPDEFS, .*operator_definition"
    ):
        torch_internals.operator_definition("a::b")
    monkeypatch.delattr(torch._C, "_current_graph_task_id")
    with pytest.raises(TorchNameMissing, match=r"no torch\._C\._current_graph_task_id"):
        torch_internals.in_backward()


@pytest.mark.parametrize(("since", "lines"), [("2.11", 1), ("999", 0)])
def test_a_torch_from_before_a_name_is_used_without_a_word(
    since: str, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    @torch_internals.private_or(lambda: "otherwise", since=since)
    def asks() -> Any:
        return torch._no_such_name

    with caplog.at_level(logging.WARNING, "minidbg"):
        assert asks() == "otherwise"
    assert len(caplog.records) == lines


def test_errors_of_other_code_pass_as_they_are() -> None:
    @torch_internals.private
    def calls(function: Any) -> Any:
        return function()

    def fails() -> None:
        raise AttributeError("of the program", name="_x", obj=torch)

    with pytest.raises(AttributeError, match="of the program"):
        calls(fails)
