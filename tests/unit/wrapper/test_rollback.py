"""What a call may change is put back, and it is said where that is not possible."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from minidbg.wrapper.rollback import UNKNOWN, keep, memory_of

LIMIT = 1 << 20


@pytest.mark.parametrize(
    "given",
    [lambda x: x, lambda x: x.expand(3, 4), lambda x: x.expand(3, 2), lambda x: [x]],
    ids=["itself", "expanded", "expanded to two", "in a list"],
)
@pytest.mark.parametrize("mode", [contextlib.nullcontext, torch.inference_mode])
def test_restoring_gives_the_same_again_and_again(given: Callable[[torch.Tensor], object], mode: Any) -> None:
    with mode():
        x = torch.zeros(3, 1)
        kept = keep([given(x)], [0], [], limit_bytes=LIMIT)
        for _ in range(2):
            x.add_(1)
            assert kept.restore()
            assert torch.equal(x, torch.zeros(3, 1))


def test_attributes_of_the_graph_are_put_back_too() -> None:
    counter = torch.zeros((), dtype=torch.long)
    kept = keep([], [], [counter], limit_bytes=LIMIT)
    counter.add_(1)
    assert kept.restore()
    assert counter == 0


def test_autograd_counts_no_write_by_the_restoring() -> None:
    """What an earlier graph saved for its backward must stay usable: the values are those it saved."""
    weight = torch.ones(3, requires_grad=True)
    y = weight * 2
    loss = (y * y).sum()
    version = y._version
    kept = keep([y], [0], [], limit_bytes=LIMIT)
    assert kept.restore()
    assert y._version == version
    loss.backward()
    assert torch.equal(weight.grad, torch.full((3,), 8.0))


def test_a_leaf_that_became_part_of_a_graph_is_a_leaf_again() -> None:
    buffer, weight = torch.zeros(3), torch.ones(3, requires_grad=True)
    kept = keep([buffer], [0], [], limit_bytes=LIMIT)
    buffer.add_(weight)
    assert kept.restore()
    assert buffer.grad_fn is None
    assert not buffer.requires_grad


def test_a_changed_history_that_cannot_be_put_back_is_told() -> None:
    y = torch.ones(3, requires_grad=True) * 2
    kept = keep([y], [0], [], limit_bytes=LIMIT)
    y.mul_(3)
    assert not kept.restore()


def test_a_tensor_that_cannot_be_copied_or_tells_no_size_is_unknown() -> None:
    class NoClone(torch.Tensor):
        def clone(self) -> torch.Tensor:  # type: ignore[override]
            raise NotImplementedError("no clone for this type")

    for x in (torch.zeros(3).as_subclass(NoClone), torch.eye(2).to_sparse()):
        assert keep([x], [0], [], limit_bytes=LIMIT) is UNKNOWN


def test_a_freed_storage_and_a_fake_tensor_have_nothing_to_keep() -> None:
    freed = torch.zeros(3)
    freed.untyped_storage().resize_(0)
    with FakeTensorMode():
        fake = torch.zeros(3)
    for x in (freed, fake):
        assert keep([x], [0], [], limit_bytes=LIMIT).tensors == ()


def test_a_view_that_became_part_of_a_graph_stays_there_and_that_is_told() -> None:
    """Autograd detaches no view in place."""
    base, weight = torch.zeros(4), torch.ones(2, requires_grad=True)
    view = base[:2]
    kept = keep([view], [0], [], limit_bytes=LIMIT)
    view.add_(weight)
    assert not kept.restore()
    assert torch.equal(base, torch.zeros(4)), "its values are back all the same"


def test_what_is_kept_of_an_expanded_tensor_is_one_element_of_each_expanded_dimension() -> None:
    assert keep([torch.zeros(1).expand(1000)], [0], [], limit_bytes=4).complete
    x = torch.arange(3.0).reshape(3, 1).expand(3, 4)
    assert tuple(memory_of(x).shape) == (3, 1)
    assert memory_of(torch.ones(1, 3)).shape == (1, 3)


def test_while_a_device_graph_is_captured_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy would become part of what is captured."""
    for is_there, captures in ((True, True), (True, False), (False, True)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=is_there: there)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda now=captures: now)
        assert (keep([], [], [], limit_bytes=LIMIT) is UNKNOWN) is (is_there and captures)


def test_what_is_not_all_there_is_no_state_to_run_again_from() -> None:
    assert not replace(keep([torch.zeros(1)], [0], [], limit_bytes=LIMIT), complete=False).restore()
