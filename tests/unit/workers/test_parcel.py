"""The files with the values of a question: written once, and never more than there is room for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.doubles import Box

from minidbg import oracle, workers
from minidbg.core.environment import JUDGING
from minidbg.fx.case import Case

MB = 1 << 20


@pytest.fixture
def case_over(case_of: Callable[..., Case]) -> Callable[[torch.Tensor], Case]:
    return lambda value: case_of("eager", inputs=(value,))


@pytest.fixture(params=[True, False])
def judging(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Whether this is a process of ours."""
    monkeypatch.setenv(JUDGING, "1")
    if not request.param:
        monkeypatch.delenv(JUDGING)
    return request.param


def test_values_travel_exactly_and_a_process_of_ours_writes_them_once_for_as_long_as_they_live(
    case_over: Callable[[torch.Tensor], Case], judging: bool
) -> None:
    large = torch.randn(300, 300)
    paths = []
    for _ in range(2):
        with oracle.packed(case_over(large)) as package:
            assert torch.equal(oracle.unpacked(package).inputs[0], large)
            ((path, _),) = package["files"].values()
            paths.append(Path(path))
        assert paths[-1].exists() is judging
    assert (paths[0] == paths[1]) is judging
    del large
    assert not any(path.exists() for path in paths)


def test_what_is_written_to_a_value_is_sent(case_over: Callable[[torch.Tensor], Case], judging: bool) -> None:
    """A process of ours sends a file that it had before, or has sent; a program may write to its values unseen."""
    with oracle.packed(case_over(torch.randn(300, 300))) as package:
        large = oracle.unpacked(package).inputs[0]
        with oracle.packed(case_over(large)) as further:
            assert (further["files"] == package["files"]) is judging
    writes = [lambda: large[3:].add_(1), lambda: setattr(large, "data", torch.randn(300, 300))]
    for write in writes if judging else [*writes, lambda: large.numpy().fill(7)]:
        write()
        for value in (large, large.t()):
            with oracle.packed(case_over(value)) as package:
                assert torch.equal(oracle.unpacked(package).inputs[0], value)


@pytest.mark.parametrize(
    ("memory", "disk", "sent", "on_disk"),
    [(266 * MB * 2, 0, True, False), (0, 266 * MB * 2, True, True), (0, 266 * MB, False, False)],
    ids=["memory", "disk", "neither"],
)
def test_values_take_half_of_what_is_free(
    case_over: Callable[[torch.Tensor], Case], memory: int, disk: int, sent: bool, on_disk: bool
) -> None:
    """As in a container whose shared memory is small."""
    folder = workers.start_server().folder
    machine = Box(disk=lambda where: memory if where == folder else disk)
    large = torch.randn(300, 300, generator=torch.Generator().manual_seed(7)) * 3  # none that is drawn
    with oracle.packed(case_over(large), share=0.5, machine=machine) as package:
        assert package["left_out_bytes"] == (0 if sent else large.nbytes)
        value = oracle.unpacked(package).inputs[0]
        assert torch.equal(value, large) is sent
        assert 2.5 < value.std() < 3.5
        assert all(Path(path).is_relative_to(folder) is not on_disk for path, _ in package["files"].values())
    with oracle.packed(case_over(large), machine=machine) as package:
        assert package["left_out_bytes"] == 0, "a question is asked about the values it is asked about"
