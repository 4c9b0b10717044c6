"""A private name that this torch does not have turns off what needs it, says so, and breaks no program."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import planted_backends as planted
import pytest
import torch
from click.testing import CliRunner

import minidbg
from minidbg import torch_internals
from minidbg.commands.root import cli
from minidbg.words.errors import TorchNameMissing
from minidbg.wrapper.process import PROCESS

NAMES = sorted({name for need in torch_internals.internals() for name in need.names})
ON_EVERY_WAY = {
    "torch._dynamo.backends.registry.lookup_backend",
    "torch._dynamo.exc.BackendCompilerFailed",
    "torch._subclasses.fake_tensor.FakeTensor",
}
"""Used by each program that is wrapped, with a stand-in."""


@pytest.fixture(autouse=True)
def _names_come_back() -> Iterator[None]:
    torch_internals.warn_once.cache_clear()
    yield
    torch_internals.TAKEN_AWAY.clear()
    torch._dynamo.reset()


def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ weight).sum()


def run(backend: Any, folder: Path) -> torch.Tensor:
    """One step of training."""
    taken = set(torch_internals.TAKEN_AWAY)
    torch_internals.TAKEN_AWAY.clear()
    torch._dynamo.reset()
    PROCESS.__init__()
    torch_internals.TAKEN_AWAY.update(taken)
    weight = torch.ones(3, 3, requires_grad=True)
    compiled = torch.compile(program, backend=minidbg.wrap(backend, repro_dir=folder, reduce="later"))
    compiled(torch.ones(3, 3), weight).backward()
    assert weight.grad is not None
    return weight.grad


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ON_EVERY_WAY else pytest.mark.slow) for name in NAMES],
)
def test_without_one_name_programs_run_and_fail_as_they_would(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch_internals.TAKEN_AWAY.add(name)
    with caplog.at_level(logging.WARNING, "minidbg"):
        assert torch.equal(run("aot_eager", tmp_path), torch.full((3, 3), 3.0))
        with pytest.raises(Exception, match="cannot lower relu"):
            run(planted.raises_on_relu, tmp_path)
        try:
            run(planted.adds_one_to_relu, tmp_path)
        except minidbg.AccuracyError:
            return
    # The wrong result was let through, so it must have been said why.
    assert name in caplog.text


def test_each_name_is_here_in_a_torch_that_was_seen() -> None:
    here = torch.__version__.split(".")[:2]
    lost = [
        name
        for need in torch_internals.internals()
        for name in need.names
        if need.first.split(".") <= here <= need.last.split(".") and not torch_internals.is_here(name)
    ]
    assert lost == []


@pytest.mark.parametrize(
    ("lacking", "here"), [("expecttest", True), ("torch._not_there", False), (None, False)]
)
def test_a_package_that_is_not_installed_is_no_lack_of_torch(
    lacking: str | None, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise ModuleNotFoundError(f"No module named {lacking!r}", name=lacking)

    monkeypatch.setattr("importlib.import_module", refuse)
    assert torch_internals.is_here("torch._not_there.op_db") is here


def test_a_name_that_is_really_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._library import custom_ops

    monkeypatch.delattr(custom_ops, "OPDEFS")
    with pytest.raises(TorchNameMissing, match=r"no torch\._library\.custom_ops\.OPDEFS, .*CustomOpDef"):
        torch_internals.operator_definition("a::b")
    monkeypatch.delattr(torch._C, "_current_graph_task_id")
    with pytest.raises(TorchNameMissing, match=r"no torch\._C\._current_graph_task_id"):
        torch_internals.in_backward()


def test_errors_of_other_code_pass_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minidbg.torch_internals.private_names.NEEDS", {})

    @torch_internals.seen("2.13", "2.14")
    def calls(function: Any) -> Any:
        return function()

    def fails() -> None:
        raise AttributeError("of the program", name="_x", obj=torch)

    with pytest.raises(AttributeError, match="of the program"):
        calls(fails)


def test_doctor_says_what_is_off() -> None:
    name = "torch._library.custom_ops.OPDEFS"
    torch_internals.TAKEN_AWAY.add(name)
    from minidbg.commands.doctor import private_names

    findings = list(private_names())
    assert {one.name for one in findings} == {name}
    assert findings[0].advice.startswith("off without it: The Python functions of operator")
    listed = CliRunner().invoke(cli, ["doctor", "--internals"])
    assert f"missing  2.11 to 2.15  {name}: " in listed.output
    assert "here     2.11 to 2.15  torch._dynamo" in listed.output


@pytest.mark.parametrize("kind", ["grad", "vmap", "jvp", "func"])
def test_a_level_of_vmap_or_grad_that_a_graph_leaves_open_is_closed_alone(kind: str) -> None:
    levels = torch._C._functorch
    arguments = {"vmap": (3, "error"), "func": (True,)}.get(kind, ())
    levels._grad_increment_nesting()
    try:
        with torch_internals.thread_state_kept():
            for _ in range(2):
                getattr(levels, f"_{kind}_increment_nesting")(*arguments)
        assert levels.get_dynamic_layer_stack_depth() == 1
    finally:
        levels._grad_decrement_nesting()
