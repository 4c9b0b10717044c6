"""Wrong results of a wrapped program's own calls that something hides from verification: found, or said not to be verified."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.new_process import as_in_a_new_process  # noqa: F401 - a fixture for all tests here
from torch import Tensor, fx, nn

from minidbg import AccuracyError, stats, wrap

pytestmark = pytest.mark.usefixtures("answers")
FLOATS_OF_68_MB = 17 * 2**20
CompiledFn = Callable[..., Any]


class Sevenfold(torch.autograd.Function):
    """The double; its gradient is 7."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 7


def sevenfold(gm: fx.GraphModule, example_inputs: Any) -> CompiledFn:
    return lambda *args: (Sevenfold.apply(args[0]),)


def refusing(home: Tensor) -> Any:
    """Wrong gradients, and an error on tensors that lie elsewhere: captured with static addresses."""

    def backend(gm: fx.GraphModule, example_inputs: Any) -> CompiledFn:
        def compiled(*args: Any) -> Any:
            if args[0].data_ptr() != home.data_ptr():
                raise RuntimeError("static input addresses changed")
            return sevenfold(gm, example_inputs)(*args)

        return compiled

    return backend


def with_grad(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, dtype=dtype).requires_grad_()


class Doubled(nn.Module):
    """Of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self) -> Tensor:
        return self.weight * 2


def double(x: Tensor) -> Tensor:
    return x * 2


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.complex64]


def outcome_of(program: Any, inputs: tuple[Any, ...], backend: Any) -> AccuracyError | None:
    with contextlib.suppress(RuntimeError):
        try:
            torch.compile(program, backend=wrap(backend))(*inputs)
        except AccuracyError as error:
            return error
    return None


def is_said() -> bool:
    """Whether anybody who reads the statistics knows that a result was not verified."""
    counts = stats()
    return bool(counts.left_out or counts.not_verified) or not counts.verified


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("backend", [refusing, lambda home: sevenfold], ids=["raises on copies", "plain"])
def test_gradients_that_are_not_compared_are_said(dtype: torch.dtype, backend: Any) -> None:
    x = with_grad(4, dtype=dtype)
    error = outcome_of(double, (x,), backend(x))
    assert error or is_said(), stats()
    assert error or backend is refusing


def test_gradients_of_a_parameter_that_are_not_compared_are_said() -> None:
    model = Doubled()
    assert outcome_of(model, (), refusing(model.weight)) or is_said(), stats()


def doing(*changes: Callable[[Tensor], Any], number: int = 0) -> Any:
    """A right backend that also does something to an input, in place."""

    def backend(gm: fx.GraphModule, example_inputs: Any) -> CompiledFn:
        def compiled(*args: Any) -> Any:
            outputs = [one.clone() for one in gm.forward(*args)]
            with torch.no_grad():
                for change in changes:
                    change(args[number])
            return tuple(outputs)

        return compiled

    return backend


class Shifted(nn.Module):
    """By a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("by", torch.randn(3, 4))

    def forward(self) -> Tensor:
        return self.by + 1


METADATA: dict[str, tuple[Any, Callable[[], tuple[Any, ...]], Any]] = {
    "transposed": (double, lambda: (torch.randn(3, 4),), doing(Tensor.t_)),
    "transposed, square": (double, lambda: (torch.randn(3, 3),), doing(Tensor.t_)),
    "transposed, of integers": (double, lambda: (torch.arange(12).view(3, 4),), doing(Tensor.t_)),
    "unsqueezed": (double, lambda: (torch.randn(3, 4),), doing(lambda x: x.unsqueeze_(0))),
    "squeezed": (double, lambda: (torch.randn(3, 1),), doing(Tensor.squeeze_)),
    "smaller": (double, lambda: (torch.randn(3, 4),), doing(lambda x: x.resize_(2))),
    "other strides": (
        double, lambda: (torch.randn(3, 4),), doing(lambda x: x.as_strided_((3, 4), (1, 3)))),
    "the second input": (
        lambda x, y: x * 2 + y.sum(), lambda: (torch.randn(3), torch.randn(3, 4)), doing(Tensor.t_, number=1)),
    "a buffer": (Shifted(), tuple, doing(Tensor.t_)),
    "plain": (double, lambda: (torch.randn(3, 4),), doing(lambda x: x.add_(1))),
}  # fmt: skip


@pytest.mark.parametrize("name", METADATA)
def test_an_input_whose_form_is_changed_is_the_backends_fault(name: str) -> None:
    program, inputs, backend = METADATA[name]
    assert outcome_of(program, inputs(), backend), stats()


def clamped(gm: fx.GraphModule, example_inputs: Any) -> CompiledFn:
    def compiled(x: Tensor) -> Any:
        with torch.no_grad():
            return (x.clamp_(min=0).clone(),)

    return compiled


def doubled_before(gm: fx.GraphModule, example_inputs: Any) -> CompiledFn:
    """The graph, after an input was written to."""

    def compiled(*args: Any) -> Any:
        with torch.no_grad():
            args[0].mul_(2)
        return gm.forward(*args)

    return compiled


LARGE: dict[str, tuple[Any, Callable[[], tuple[Any, ...]], Any]] = {
    "relu by clamp": (torch.relu, lambda: (torch.randn(FLOATS_OF_68_MB),), clamped),
    "abs in place": (torch.abs, lambda: (torch.randn(FLOATS_OF_68_MB),), doing(Tensor.abs_)),
    "float64, signs": (
        lambda x: x.abs().sum(), lambda: (torch.randn(FLOATS_OF_68_MB // 2, dtype=torch.float64),), doing(Tensor.neg_)),
    "integers": (
        lambda x: x.sign(), lambda: (torch.randint(-9, 9, (FLOATS_OF_68_MB // 2,)),), doing(Tensor.sign_)),
    "written where eager writes": (lambda x: x.add_(1).sign(), lambda: (torch.rand(FLOATS_OF_68_MB),), doubled_before),
    "plain, 16 kB": (torch.relu, lambda: (torch.randn(2**12),), clamped),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "plain, 16 kB")) for name in LARGE]
)
def test_a_large_input_that_is_written_is_found_or_said(name: str) -> None:
    program, inputs, backend = LARGE[name]
    error = outcome_of(program, inputs(), backend)
    assert error or is_said(), stats()
    assert error or not name.startswith("plain")
