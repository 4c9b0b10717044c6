"""Crash records: a record is there exactly while the process may die in the backend, and says enough."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from planted_backends import raises_on_relu, returns_gm_forward
from support.doubles import Hands
from torch import fx

import minidbg
from minidbg.codegen.size import targets_of_calls
from minidbg.core.settings import Settings
from minidbg.repro import crash_records, load, read_header
from minidbg.repro.crash_records import Step
from minidbg.wrapper.chain import Link
from minidbg.wrapper.crash_record import CrashRecord, During, clear_up
from minidbg.wrapper.process import PROCESS


def graph_with_an_index() -> fx.GraphModule:
    graph = fx.Graph()
    x, rows, mask = (graph.placeholder(name) for name in ("x", "rows", "mask"))
    taken = graph.call_function(torch.index_select, (x, 0, rows))
    graph.output((graph.call_function(torch.where, (mask, taken, 0.5)),))
    return fx.GraphModule(torch.nn.Module(), graph)


VALUES = torch.randn(50, 40) * 3 + 100, torch.tensor([49, 0, 7]), torch.tensor([[True], [False], [True]])


@pytest.fixture
def repro_dir(tmp_path: Path) -> Path:
    return tmp_path / "repros"


@pytest.fixture
def record(repro_dir: Path) -> Iterator[CrashRecord]:
    made = CrashRecord(graph_with_an_index(), Settings(repro_dir=repro_dir))
    yield made
    made.close()


LINK = Link(returns_gm_forward)


def steps(repro_dir: Path) -> list[str]:
    return [str(name.step) for _, name in crash_records.records(repro_dir)]


def test_record_is_there_during_a_step_and_rests_between_two(record: CrashRecord, repro_dir: Path) -> None:
    with During(record, Step.COMPILE, LINK, VALUES):
        assert steps(repro_dir) == ["compile"]
    assert steps(repro_dir) == ["idle"]
    with During(record, Step.RUN, LINK, VALUES):
        assert steps(repro_dir) == ["run"]
    with During(record, Step.BACKWARD, LINK, ()):
        assert steps(repro_dir) == ["backward"]
    assert steps(repro_dir) == []
    assert list(crash_records.make_record_folder(repro_dir).iterdir()) == []


def test_record_loads_as_the_case_with_its_indices_and_masks(record: CrashRecord, repro_dir: Path) -> None:
    During(record, Step.RUN, LINK, VALUES).__enter__()
    capture = crash_records.as_capture(record.path)
    header = read_header(capture)
    case = load(capture)
    assert header.spec.expected.kind == "crash"
    assert header.spec.backend.name == "planted_backends.returns_gm_forward"
    assert case.signature is None
    assert torch.equal(case.inputs[1], VALUES[1])
    assert torch.equal(case.inputs[2], VALUES[2])
    assert case.inputs[0].shape == VALUES[0].shape
    assert not torch.equal(case.inputs[0], VALUES[0])
    assert targets_of_calls(case.graph_module) == ("torch.index_select", "torch.where")
    assert sum(path.stat().st_size for path in capture.parent.glob("*.safetensors")) < VALUES[0].nbytes


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("requires", [True, False])
def test_only_a_call_with_a_backward_asks_for_one(record: CrashRecord, grad: bool, requires: bool) -> None:
    with torch.set_grad_enabled(grad):
        During(record, Step.RUN, LINK, [VALUES[0].clone().requires_grad_(requires), *VALUES[1:]]).__enter__()
    assert load(crash_records.as_capture(record.path)).spec.backward is (grad and requires)


def test_exception_takes_the_record_away_and_passes(record: CrashRecord, repro_dir: Path) -> None:
    with pytest.raises(ValueError, match="mine"), During(record, Step.COMPILE, LINK, VALUES):
        raise ValueError("mine")
    assert steps(repro_dir) == []


@pytest.mark.parametrize(("waited_s", "left"), [(0.1, []), (crash_records.LONG_S + 1, ["interrupted"])])
def test_ctrl_c_leaves_a_record_when_the_step_took_long(
    record: CrashRecord, repro_dir: Path, waited_s: float, left: list[str]
) -> None:
    PROCESS.clock = clock = Hands()

    def pressed_after_a_while() -> None:
        clock.now = waited_s
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), During(record, Step.COMPILE, LINK, VALUES):
        pressed_after_a_while()
    assert steps(repro_dir) == left


def test_exit_in_a_backend_leaves_its_record(record: CrashRecord, repro_dir: Path) -> None:
    with pytest.raises(SystemExit), During(record, Step.COMPILE, LINK, VALUES):
        raise SystemExit(1)
    assert steps(repro_dir) == ["compile"]
    clear_up()
    assert steps(repro_dir) == ["compile"]


def test_setting_turns_the_recorder_off(repro_dir: Path) -> None:
    off = CrashRecord(graph_with_an_index(), Settings(repro_dir=repro_dir, crash_records=False))
    with During(off, Step.COMPILE, LINK, VALUES):
        assert not repro_dir.exists()


def test_folder_that_cannot_be_written_harms_nobody(tmp_path: Path) -> None:
    (tmp_path / "repros").write_text("a file")
    record = CrashRecord(graph_with_an_index(), Settings(repro_dir=tmp_path / "repros"))
    with During(record, Step.COMPILE, LINK, VALUES):
        pass
    assert record.name is None


def test_backend_that_no_import_reaches_is_left_to_be_filled_in(repro_dir: Path) -> None:
    scope: dict[str, Any] = {}
    exec("def made(gm, inputs): return gm.forward", scope)
    link = Link(scope["made"])
    record = CrashRecord(graph_with_an_index(), Settings(repro_dir=repro_dir))
    with During(record, Step.COMPILE, link, VALUES):
        ((path, _),) = crash_records.records(repro_dir)
        lacks = read_header(path).spec.backend
    assert lacks.missing_backend == "a function of <string>:1, which ended with its process"


def test_other_link_of_a_chain_gets_its_own_record(record: CrashRecord, repro_dir: Path) -> None:
    During(record, Step.COMPILE, LINK, VALUES).__enter__()
    During(record, Step.COMPILE, Link(raises_on_relu), VALUES).__enter__()
    ((path, _),) = crash_records.records(repro_dir)
    assert "raises_on_relu" in path.read_text()


def test_forked_child_leaves_its_parents_record_alone(record: CrashRecord, repro_dir: Path) -> None:
    During(record, Step.COMPILE, LINK, VALUES).__enter__()
    if not (pid := os.fork()):
        try:
            record.move(Step.IDLE)
            record.close()
            clear_up()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert steps(repro_dir) == ["compile"]


def test_nothing_is_writable_by_everybody(record: CrashRecord, repro_dir: Path) -> None:
    before = os.umask(0)
    try:
        During(record, Step.COMPILE, LINK, VALUES).__enter__()
    finally:
        os.umask(before)
    for path in (repro_dir, *repro_dir.rglob("*")):
        assert not path.stat().st_mode & stat.S_IWOTH, path
    for path in (*repro_dir.glob(".minidbg/crash_records/*"), repro_dir / ".minidbg"):
        assert not path.stat().st_mode & 0o077, f"{path} holds values of inputs"


def test_healthy_program_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seen: list[list[str]] = []

    def looks(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        seen.append(steps(tmp_path / "minidbg_repros"))
        return gm.forward

    monkeypatch.setattr("planted_backends.returns_gm_forward", looks)
    looks.__module__, looks.__qualname__ = "planted_backends", "returns_gm_forward"
    torch.compile(lambda x: x + 1, backend=minidbg.wrap(looks))(torch.ones(3))
    clear_up()
    assert seen == [["compile"]]
    assert list(tmp_path.iterdir()) == []
