"""The files with the values of a question: written once, hashed once, and never more than there is room for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minidbg import asking
from minidbg.asking import packing
from minidbg.fx.case import Case
from minidbg.reduction import reducing
from minidbg.words.environment import JUDGING
from minidbg.words.settings import Reduce, Settings
from minidbg.workers import ChildResult
from minidbg.wrapper import handle

CaseOf = Callable[..., Case]


@pytest.fixture
def case_over(case_of: CaseOf) -> Callable[[torch.Tensor], Case]:
    return lambda value: case_of("eager", inputs=(value,))


def test_values_travel_exactly_and_are_written_once(
    case_over: Callable[[torch.Tensor], Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    large = torch.randn(300, 300)
    case = case_over(large)
    with asking.packed(case) as package:
        assert torch.equal(asking.unpacked(package).inputs[0], large)
        ((path, _),) = package["files"].values()
        written = os.stat(path)
    with asking.packed(case_over(large.clone())) as again:
        assert again["files"] == package["files"]
        assert os.stat(path) == written
    monkeypatch.setattr(packing, "SPARE_BYTES", 1 << 60)  # no room in memory
    with asking.packed(case) as package:
        assert torch.equal(asking.unpacked(package).inputs[0], large)
        ((path, _),) = package["files"].values()
    assert not Path(path).parent.exists()


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what is hashed from here on."""
    sizes: list[int] = []
    digest_of = packing.digest_of
    monkeypatch.setattr(packing, "digest_of", lambda data: (sizes.append(data.size), digest_of(data))[1])
    return sizes


def value_sent(case: Case) -> torch.Tensor:
    with asking.packed(case) as package:
        found: torch.Tensor = asking.unpacked(package).inputs[0].clone()
    return found


def test_a_reduction_hashes_a_value_once_until_somebody_writes_to_it(
    case_over: Callable[[torch.Tensor], Case], monkeypatch: pytest.MonkeyPatch, hashed: list[int]
) -> None:
    monkeypatch.setenv(JUDGING, "1")
    large = torch.randn(300, 300)
    for write in (
        lambda: None,
        lambda: large[3:].add_(1),
        lambda: setattr(large, "data", torch.randn(300, 300)),
    ):
        write()
        for _ in range(2):
            assert torch.equal(value_sent(case_over(large)), large)
    assert len(hashed) == 3
    assert torch.equal(value_sent(case_over(large.t())), large.t())
    assert len(hashed) == 4, "another layout is not the memory as it lies there"


def test_the_process_of_a_program_may_write_to_its_values_unseen(
    case_over: Callable[[torch.Tensor], Case], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(JUDGING, raising=False)
    large = torch.randn(300, 300)
    case = case_over(large)
    assert torch.equal(value_sent(case), large)
    large.numpy()[0] = 7
    assert torch.equal(value_sent(case), large)


def test_what_came_in_a_file_goes_on_in_that_file(
    case_over: Callable[[torch.Tensor], Case], monkeypatch: pytest.MonkeyPatch, hashed: list[int]
) -> None:
    """The reduction has its inputs from the program, and sends them to its questions."""
    with asking.packed(case_over(torch.randn(300, 300))) as package:
        monkeypatch.setenv(JUDGING, "1")
        there = asking.unpacked(package)
        hashed.clear()
        with asking.packed(there) as further:
            assert list(further["files"].values()) == list(package["files"].values())
        assert not hashed
        there.inputs[0].add_(1)
        assert torch.equal(value_sent(there), there.inputs[0])
        assert len(hashed) == 1


@pytest.mark.parametrize(
    ("memory", "disk", "sent", "on_disk"),
    [(10 << 20, 10 << 20, True, False), (64 << 10, 10 << 20, True, True), (64 << 10, 700_000, False, False)],
    ids=["memory", "disk", "neither"],
)
def test_values_take_half_of_what_is_free(
    case_over: Callable[[torch.Tensor], Case],
    monkeypatch: pytest.MonkeyPatch,
    memory: int,
    disk: int,
    sent: bool,
    on_disk: bool,
) -> None:
    """As in a container whose shared memory is small."""
    monkeypatch.setattr(packing, "SPARE_BYTES", 0)
    folder = packing.workers.start_server().folder
    monkeypatch.setattr(packing, "free_bytes", lambda where: memory if where == folder else disk)
    large = torch.randn(300, 300) * 3
    with asking.packed(case_over(large), share=0.5) as package:
        assert package["left_out_bytes"] == (0 if sent else large.nbytes)
        value = asking.unpacked(package).inputs[0]
        assert torch.equal(value, large) is sent
        assert 2.5 < value.std() < 3.5
        assert all((Path(path).parent != folder) is on_disk for path, _ in package["files"].values())
    with asking.packed(case_over(large)) as package:
        assert package["left_out_bytes"] == 0, "a question is asked about the values it is asked about"


@pytest.mark.parametrize("room", [True, False])
def test_the_user_hears_of_inputs_that_were_not_sent(
    case_over: Callable[[torch.Tensor], Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    sent: list[Case] = []

    def call_reduce_in_child(case: Case, package: Any, *_: Any, **__: Any) -> ChildResult:
        sent.append(asking.unpacked(package))
        return ChildResult(answered=True, value={"refused": "the case does not show its failure here"})

    monkeypatch.setattr(reducing, "prepare", lambda case: None)
    monkeypatch.setattr(reducing, "call_reduce_in_child", call_reduce_in_child)
    if not room:
        monkeypatch.setattr(packing, "free_bytes", lambda _: 300 << 20)
        monkeypatch.setattr(packing, "SPARE_BYTES", 150 << 20)
    large = torch.randn(300, 300)
    report = handle.respond(case_over(large), Settings(repro_dir=tmp_path, reduce=Reduce.NOW))
    said = "its 0.36 MB of inputs were not sent, values of the same distribution stood in; "
    assert report.line.startswith(said) is not room
    assert torch.equal(sent[0].inputs[0], large) is room
    assert handle.not_sent(20_000_000_000).startswith("its 20 GB of inputs ")
