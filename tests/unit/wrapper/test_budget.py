"""What a process reduces: each signature once, all together within one budget, and nothing that must wait."""

from __future__ import annotations

import pytest
import torch

from minidbg.core.foreign import is_out_of_memory
from minidbg.core.outcome import Kind, Signature
from minidbg.core.settings import Reduce, Settings
from minidbg.wrapper.budget import ReductionBudget, several_ranks

ONE = Signature(Kind.COMPILE, types=("ValueError",), message="one")
OTHER = Signature(Kind.COMPILE, types=("ValueError",), message="other")


@pytest.fixture(autouse=True)
def _no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def grant(
    budget: ReductionBudget,
    signature: Signature | None = ONE,
    error: Exception | None = None,
    **changes: object,
) -> tuple[Reduce | None, str]:
    settings, why = budget.grant(signature, error or ValueError(), Settings(**changes))
    return settings.reduce, why


def test_failures_without_signature_are_each_their_own() -> None:
    budget = ReductionBudget()
    assert grant(budget, None)[0] is Reduce.NOW
    assert grant(budget, None)[0] is Reduce.NOW


def test_the_seconds_are_for_all_reductions_together() -> None:
    budget = ReductionBudget()
    budget.spend(7, None, None)
    assert budget.grant(ONE, ValueError(), Settings(seconds=10))[0].seconds == 3
    budget.spend(3, None, None)
    reduce, why = grant(budget, OTHER, seconds=10)
    assert reduce is Reduce.LATER
    assert "10 s" in why


def test_only_what_matches_is_reduced() -> None:
    budget = ReductionBudget()
    assert grant(budget, error=ValueError("size mismatch"), match="stride")[0] is Reduce.LATER
    assert grant(budget, error=ValueError("wrong stride 3"), match=r"stride \d")[0] is Reduce.NOW


def test_what_was_refused_does_not_count_as_reduced() -> None:
    budget = ReductionBudget()
    assert grant(budget, reduce=Reduce.LATER)[0] is Reduce.LATER
    assert grant(budget)[0] is Reduce.NOW


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=["MemoryError", "torch.OutOfMemoryError", "cpu allocator"],
)
def test_out_of_memory_waits_unless_asked(error: Exception) -> None:
    assert grant(ReductionBudget(), error=error)[0] is Reduce.LATER
    assert grant(ReductionBudget(), error=error, reduce_oom=True)[0] is Reduce.NOW


def test_the_cpu_allocators_real_error_is_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


def test_out_of_memory_is_found_inside_what_wraps_it() -> None:
    for attribute in ("inner_exception", "__cause__"):
        outer = ValueError("compiling failed")
        setattr(outer, attribute, MemoryError())
        assert is_out_of_memory(outer)
    assert not is_out_of_memory(ValueError("out of memory"))
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
    assert not is_out_of_memory(None)


@pytest.mark.parametrize(("size", "several"), [("1", False), ("2", True), ("", False), ("many", False)])
def test_the_world_size_tells_several_ranks(size: str, several: bool) -> None:
    assert several_ranks({"WORLD_SIZE": size}) is several
