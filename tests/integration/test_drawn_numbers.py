"""Of a backend's random numbers the values are believed, and not their form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.new_process import Answers
from torch import Tensor, fx

import minidbg
from minidbg.core.errors import AccuracyError
from minidbg.fx.effects import op_name
from minidbg.wrapper.process import PROCESS

X = torch.linspace(0.1, 2.0, 16)
PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "dropout": lambda x: F.dropout(x, 0.25) * 2,
    "rand": lambda x: x + torch.rand(16),
    "rand_like": lambda x: x + torch.rand_like(x),
    "uniform_": lambda x: x.sin().uniform_(2.0, 3.0) + x,
    "randint": lambda x: x + torch.randint(3, 9, (16,)),
    "randperm": lambda x: x[torch.randperm(16)] * 2,
    "bernoulli": lambda x: torch.bernoulli(x / 2) + x,
    "normal": lambda x: torch.normal(x, 1.0) + 1,
    "attention": lambda x: (
        F.scaled_dot_product_attention(*[x.repeat(2).view(1, 2, 4, 4)] * 3, dropout_p=0.5) + 1
    ),
    "multinomial": lambda x: torch.multinomial(x, 9) + 1,
    "poisson": lambda x: torch.poisson(x) + x,
    "geometric": lambda x: torch.empty(16).geometric_(0.3) + x,
    "exponential": lambda x: torch.empty(16).exponential_() + x,
    "log_normal": lambda x: torch.empty(16).log_normal_() + x,
    "few bits": lambda x: torch.randint_like(x.bfloat16(), 1000) + x,
}
QUICK = ("dropout", "normal", "attention", "few bits")
WRONG: dict[str, tuple[str, Callable[[Tensor], Tensor], str]] = {
    "another number of dimensions": ("dropout", lambda r: r.expand(3, 16), "shape"),
    "another dtype": ("normal", lambda r: torch.randn(16).double(), "dtype"),
}
OPS = {"attention": "scaled_dot_product_attention", "few bits": "randint_like"}
"""Of programs that are not named for what they draw by."""


def wrong_in(name: str, change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """A backend that changes what the op ``name`` draws and runs all else in eager."""

    class Draws(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            result = super().run_node(n)
            is_it = n.op.startswith("call") and op_name(n).strip("_") == OPS.get(name, name).strip("_")
            return change(result) if is_it else result

    def draws_wrong(gm: fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        return lambda *args: Draws(gm).run(*args)

    return draws_wrong


def compiled(name: str, backend: Any, **more: Any) -> Callable[[Tensor], Any]:
    torch._dynamo.reset()
    PROCESS.__init__()  # type: ignore[misc]
    return torch.compile(PROGRAMS[name], backend=minidbg.wrap(backend, **more))


@pytest.mark.slow
@pytest.mark.parametrize("what", WRONG)
def test_wrong_random_numbers_are_found(
    what: str, answers: Answers, capfd: pytest.CaptureFixture[str]
) -> None:
    name, change, words = WRONG[what]
    with pytest.raises(AccuracyError, match=words):
        compiled(name, wrong_in(name, change))(X)
    assert "Call using an FX-traced Module" not in capfd.readouterr().err


def other_numbers(r: Tensor) -> Tensor:
    return r[torch.randperm(16)] if r.numel() == 16 else r


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in PROGRAMS]
)
@pytest.mark.parametrize("backend", [pytest.param("aot_eager", marks=pytest.mark.slow), "other numbers"])
def test_healthy_random_numbers_pass(
    name: str, backend: str, answers: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    """In three calls, each of which is compared."""
    program = compiled(name, backend if backend == "aot_eager" else wrong_in(name, other_numbers), verify=3)
    for _ in range(3):
        program(X)
    assert [one.getMessage() for one in caplog.records if one.levelname == "WARNING"] == []
    assert minidbg.stats().not_verified == {}
