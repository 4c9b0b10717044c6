"""A difference that was seen is reported, whatever a run does that might explain it; and no run leaves a mode behind."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from minidbg import torch_internals
from minidbg.judge.compare import DEFAULT_SPEC, Comparison, comparison_of
from minidbg.judge.eager_runs import EagerRuns, Tag
from minidbg.judge.leaves import CannotCompare, collect_leaves
from minidbg.judge.precision import to_float64
from minidbg.judge.undefined import ZeroFilled

RIGHT, WRONG = torch.linspace(1, 2, 20), torch.linspace(1, 2, 20) * 1.01


def left(value: torch.Tensor) -> dict[str, Any]:
    return {"outputs": (value,), "inputs_after": {}, "gradients": {}}


def fails_after(runs: int) -> Iterator[Any]:
    for _ in range(runs):
        yield collect_leaves((RIGHT,))
    raise RuntimeError("no second time")


NAMED = {
    Tag.AGAIN: "a second run of eager",
    Tag.FLOAT64: "eager in float64",
    Tag.UNDEFINED: "eager with other answers",
    Tag.NOISE: "eager with other rounding",
}


@pytest.mark.parametrize("tag", Tag)
def test_a_member_that_raises_explains_nothing_and_is_named_beside_the_difference(tag: Tag) -> None:
    after = 0 if tag in (Tag.AGAIN, Tag.FLOAT64) else 1  # of the others there may be several
    runs = EagerRuns({tag: fails_after(after)})
    found = Comparison(collect_leaves((WRONG,)), collect_leaves((RIGHT,)), runs).difference()
    assert found is not None
    assert found["category"] == "float"
    said = f"{NAMED[tag]}, which might explain it, fails: RuntimeError: no second time"
    assert found["message"].splitlines()[1:] == [said]


def test_an_ensemble_lets_go_of_its_runs_without_the_collector() -> None:
    """Its members hold all tensors of a run, in the user's process."""
    held: list[StorageWeakRef] = []

    def eager(change: Callable[[Any], Any] = lambda made: made, seed: int = 0, **_: Any) -> Any:
        run = left(change(lambda x: (x * 300).to(torch.uint8))(RIGHT.clone()))
        held.append(StorageWeakRef(run["outputs"][0].untyped_storage()))
        return run

    gc.disable()
    try:
        comparison_of(left(WRONG.to(torch.uint8)), eager(), eager, DEFAULT_SPEC).difference()
        assert len(held) > 3, "there are members with other answers"
        assert all(one.expired() for one in held)
    finally:
        gc.enable()


def test_a_program_that_draws_and_fails_with_other_numbers_is_not_judged() -> None:
    def draws(*_: Any, **__: Any) -> Any:
        torch.rand(3)
        raise RuntimeError("an index out of range")

    with pytest.raises(CannotCompare, match="draws random numbers"):
        comparison_of(left(WRONG), left(RIGHT), draws, DEFAULT_SPEC).difference()


def state() -> dict[str, Any]:
    return {
        "levels": torch._C._functorch.get_dynamic_layer_stack_depth(),
        "grad": torch.is_grad_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "casts kept": torch.is_autocast_cache_enabled(),
        "blocks of autocast": (torch.autocast_increment_nesting(), torch.autocast_decrement_nesting()),
        "dtype": torch.get_default_dtype(),
        "device": str(torch.get_default_device()),
        "function modes": len(torch.overrides._get_current_function_mode_stack()),
        "dispatch modes": len(torch.utils._python_dispatch._get_current_dispatch_mode_stack()),
        "keys": (
            str(torch._C._dispatch_tls_local_include_set()),
            str(torch._C._dispatch_tls_local_exclude_set()),
        ),
    }


LEAKS: dict[str, Callable[[], object]] = {
    "vmap": lambda: torch._C._functorch._vmap_increment_nesting(3, "different"),
    "grad": lambda: torch._C._functorch._grad_increment_nesting(),
    "jvp": lambda: torch._C._functorch._jvp_increment_nesting(),
    "no grad": lambda: torch._C._set_grad_enabled(False),
    "autocast": lambda: torch.amp.autocast_mode._enter_autocast("cpu", torch.float16, True, False),
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "function mode": lambda: torch.device("meta").__enter__(),
    "dispatch mode": lambda: ZeroFilled().__enter__(),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_what_a_run_leaves_open_is_closed(leak: str) -> None:
    before = state()
    with torch_internals.preserving_thread_state():
        LEAKS[leak]()
        assert state() != before
    assert state() == before


def test_what_is_open_around_a_run_stays_open() -> None:
    torch._C._functorch._vmap_increment_nesting(3, "error")
    try:
        with torch.no_grad(), torch.autocast("cpu"), torch.device("cpu"):
            before = state()
            with torch_internals.preserving_thread_state():
                torch._C._functorch._grad_increment_nesting()
                torch.set_grad_enabled(True)
            assert state() == before
    finally:
        torch._C._functorch._vmap_decrement_nesting()
    assert state()["levels"] == 0


def kinds_of_layout() -> dict[str, list[torch.Tensor]]:
    base = torch.arange(96.0).reshape(6, 16)
    gaps_with_grad = torch.randn(6, 16).requires_grad_()[:, ::2]
    return {
        "gaps": [base[:, ::2]],
        "offset": [base[2, 3:9]],
        "expanded": [base[0, :4].expand(3, 4)],
        "overlapping": [base.as_strided((4, 4), (2, 1), 1)],
        "shared": [base[0, :8], base[0, 4:12]],
        "one and all": [base, base[:, ::3], base.t()],
        "parameter": [torch.nn.Parameter(base[:, ::2])],
        "no leaf": [gaps_with_grad],
        "no leaves, shared": [gaps_with_grad, gaps_with_grad[1:]],
        "no leaf, expanded": [torch.randn(4).requires_grad_().expand(3, 4)],
        "half": [base.half()[:, 1::2]],
        "complex": [torch.randn(4, 6, dtype=torch.complex64)[:, ::2]],
        "empty": [base[:0, ::2]],
        "no dimensions": [base[3, 3]],
    }


@pytest.mark.parametrize("kind", kinds_of_layout())
def test_float64_keeps_size_strides_offset_and_sharing(kind: str) -> None:
    values = kinds_of_layout()[kind]
    wide = to_float64(tuple(values))
    for value, made in zip(values, wide, strict=True):
        assert made.dtype in (torch.float64, torch.complex128)
        assert (made.shape, made.stride()) == (value.shape, value.stride())
        assert made.storage_offset() == value.storage_offset()
        assert torch.equal(made, value.to(made.dtype))
        assert (made.requires_grad, made.is_leaf) == (value.requires_grad, value.is_leaf)
    memories = [[one.untyped_storage().data_ptr() == two.untyped_storage().data_ptr() for one in run] for run in (values, wide) for two in run]  # fmt: skip
    assert memories[: len(values)] == memories[len(values) :]


def test_a_module_in_float64_keeps_the_layout_and_the_sharing_of_its_tensors() -> None:
    base = torch.randn(6, 16)
    module = torch.nn.Module()
    module.register_buffer("all", base)
    module.register_buffer("some", base[:, ::2])
    module.weight = torch.nn.Parameter(torch.randn(4, 8)[:, 1::2])
    module.forward = lambda: module.all
    wide = to_float64(module)
    assert wide.some.stride() == (16, 2)
    assert wide.some.untyped_storage().data_ptr() == wide.all.untyped_storage().data_ptr()
    assert (wide.weight.stride(), wide.weight.storage_offset()) == ((8, 2), 1)
    assert torch.equal(wide.some, module.some.double())


def test_a_value_with_gaps_that_a_run_writes_to_can_be_written_in_float64() -> None:
    (value,) = to_float64((torch.randn(6, 16).requires_grad_()[:, ::2],))
    value.mul_(2).sum().backward()
