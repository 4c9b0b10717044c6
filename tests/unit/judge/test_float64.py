from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from minidbg.judge.precision import NoFloat64, to_float64


def in_float64(program: Any, *inputs: Any) -> Any:
    return to_float64(program)(*to_float64(inputs))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.float() + x.half() + x.bfloat16() + x.to(torch.float16) + x.to(dtype=torch.bfloat16),
        lambda x: x + torch.ones(3) * torch.zeros(3, dtype=torch.float16) + torch.full((3,), 0.1),
        lambda x: (
            torch.softmax(x, 0, dtype=torch.float16) + torch.nn.functional.softmax(x, 0, dtype=torch.float32)
        ),
        lambda x: x + torch.tensor(0.1) + torch.arange(3) / 3 + torch.arange(3, dtype=torch.float32),
        lambda x: torch.ops.aten._to_copy.default(x, dtype=torch.float16) + x.type(torch.float16),
        lambda x: torch.ops.prims.convert_element_type.default(x, torch.float16) + x.type_as(x.half()),
        lambda x: x.new_zeros(3, dtype=torch.float32) + x.view(3) / 3,
    ],
)
def test_every_way_to_name_a_dtype_gives_float64(program: Callable[[Tensor], Tensor]) -> None:
    x = torch.tensor([0.1, 0.2, 0.3])
    result = in_float64(program, x)
    assert result.dtype is torch.float64
    assert torch.allclose(result, program(x).double(), atol=1e-2)
    assert not torch.equal(result, program(x).double()), "float64 has digits that float32 has not"


def test_complex_numbers_become_complex128() -> None:
    x = torch.tensor([0.1 + 0.2j])
    assert in_float64(lambda x: x.to(torch.complex64) * x.cfloat(), x).dtype is torch.complex128


class WithState(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([0.1, 0.2]))
        self.register_buffer("count", torch.tensor([0.3, 0.4]))
        self.constant = torch.tensor([0.5, 0.6])

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return torch.dot(x, self.weight) + torch.dot(self.count, self.constant)


def test_parameters_buffers_and_constants_of_a_copy_become_float64() -> None:
    model = WithState()
    assert in_float64(model, torch.ones(2)).dtype is torch.float64
    assert model(torch.ones(2)).dtype is torch.float32
    assert model.count.tolist() == pytest.approx([1.3, 1.4]), "the copy's buffer was counted up, not this one"


def test_a_conjugated_input_keeps_its_value() -> None:
    [wide] = to_float64((torch.tensor([1 + 2j]).conj(),))
    assert wide.tolist() == [1 - 2j]


def test_autocast_leaves_float64_alone() -> None:
    def program(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x

    x = torch.full((2, 2), 0.1)
    assert program(x).dtype is torch.bfloat16
    assert in_float64(program, x).dtype is torch.float64


def test_bodies_of_higher_order_ops_are_in_float64_as_well() -> None:
    def body(x: Tensor) -> tuple[Tensor]:
        return (x * torch.full((), 0.1, dtype=torch.float32),)

    def program(x: Tensor) -> Any:
        return torch.ops.higher_order.cond(x.sum() > 0, body, body, (x,))[0]

    x = torch.tensor([1.0])
    assert in_float64(program, x).item() == 0.1


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.view(torch.int32),
        lambda x: torch.ops.aten.view.dtype(x, torch.int32),
        lambda x: torch.nextafter(x, x + 1),
        lambda x: torch.ops.aten.nextafter.default(x, x + 1),
    ],
)
def test_a_program_that_means_something_else_in_float64_is_refused(program: Any) -> None:
    with pytest.raises(NoFloat64):
        in_float64(program, torch.ones(3))


def test_sparse_inputs_are_refused() -> None:
    with pytest.raises(NoFloat64, match="sparse"):
        to_float64((torch.ones(3).to_sparse(),))


def test_the_default_dtype_is_as_before_also_after_an_error() -> None:
    in_float64(lambda x: x + 1, torch.ones(3))
    assert torch.get_default_dtype() is torch.float32
    with pytest.raises(RuntimeError):
        in_float64(lambda x: x @ torch.ones(4), torch.ones(3))
    assert torch.get_default_dtype() is torch.float32


def test_integers_stay_as_they_are() -> None:
    x, count = torch.tensor([1, 2], dtype=torch.int32), 3
    result = in_float64(lambda x, n: x.to(torch.int8) + n, x, count)
    assert result.dtype is torch.int8
    assert result.tolist() == [4, 5]
