"""What a process reduces: each signature once, all together within one budget, and nothing that must wait."""

from __future__ import annotations

import pytest
import torch

from minidbg.core.foreign import is_out_of_memory
from minidbg.core.outcome import Kind, Signature
from minidbg.core.settings import Reduce, Settings
from minidbg.wrapper.process import ReductionBudget, several_ranks

ONE = Signature(Kind.COMPILE, types=("ValueError",), message="one")


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


def test_what_was_refused_does_not_count_as_reduced_and_what_has_no_signature_is_each_its_own() -> None:
    budget = ReductionBudget()
    assert grant(budget, error=ValueError("size mismatch"), match="stride")[0] is Reduce.LATER
    assert grant(budget, reduce=Reduce.LATER)[0] is Reduce.LATER
    assert grant(budget, error=ValueError("wrong stride 3"), match=r"stride \d")[0] is Reduce.NOW
    assert [grant(budget, None)[0] for _ in range(2)] == [Reduce.NOW, Reduce.NOW]


def test_on_a_device_that_one_process_may_open_nothing_is_reduced_while_the_program_has_it() -> None:
    for settings in (Settings(), Settings(reduce=Reduce.NOW)):
        granted, why = ReductionBudget().grant(ONE, ValueError(), settings, "spyre:0")
        assert granted.reduce is Reduce.LATER
        assert why == "spyre can be opened by one process at a time, and this program has it until its end"


def real_error_of_the_cpu_allocator() -> Exception:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    return caught.value


def around(attribute: str, inner: Exception) -> Exception:
    outer = ValueError("compiling failed")
    setattr(outer, attribute, inner)
    return outer


def test_out_of_memory_waits_and_is_known_by_type_or_by_the_text_of_a_plain_error() -> None:
    of_memory = [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("acme: Out of memory: 3 bytes"),
        RuntimeError("acme: not enough memory: 3 bytes"),
        real_error_of_the_cpu_allocator(),
        around("inner_exception", MemoryError()),
        around("__cause__", MemoryError()),
    ]
    for error in of_memory:
        assert is_out_of_memory(error), error
        assert grant(ReductionBudget(), error=error)[0] is Reduce.LATER
    others = (
        ValueError("out of memory"),
        KeyError("not enough memory"),
        RuntimeError("shapes do not match"),
        None,
    )
    assert [error for error in others if is_out_of_memory(error)] == []


def test_a_missing_cpp_compiler_is_told_by_the_type_of_what_is_wrapped() -> None:
    missing = type("InvalidCxxCompiler", (RuntimeError,), {})()
    for error in (missing, around("inner_exception", around("__cause__", missing))):
        assert "no C++ compiler is here" in grant(ReductionBudget(), error=error)[1]
    assert grant(ReductionBudget(), error=RuntimeError("InvalidCxxCompiler"))[0] is Reduce.NOW


@pytest.mark.parametrize(("size", "several"), [("1", False), ("2", True), ("", False), ("many", False)])
def test_the_world_size_tells_several_ranks(size: str, several: bool) -> None:
    assert several_ranks({"WORLD_SIZE": size}) is several
