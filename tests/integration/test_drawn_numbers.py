"""Of a backend's random numbers the values are believed, and not their form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.new_process import Answers, as_in_a_new_process  # noqa: F401 - a fixture for all tests here
from torch import Tensor, fx

import minidbg
from minidbg.core.errors import AccuracyError
from minidbg.fx.effects import op_name

X = torch.linspace(0.1, 2.0, 16)
WRONG: dict[str, tuple[Callable[[Tensor], Any], str, Callable[[Tensor], Tensor], str]] = {
    "another number of dimensions": (
        lambda x: F.dropout(x, 0.25) * 2, "dropout", lambda r: r.expand(3, 16), "shape",
    ),
    "another dtype": (
        lambda x: torch.normal(x, 1.0) + 1, "normal", lambda r: torch.randn(16).double(), "dtype",
    ),
}  # fmt: skip


def wrong_in(op: str, change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """A backend that changes what an op draws and runs all else in eager."""

    class Draws(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            result = super().run_node(n)
            return change(result) if n.op.startswith("call") and op_name(n) == op else result

    return lambda gm, example_inputs: Draws(gm).run


@pytest.mark.parametrize("what", WRONG)
def test_wrong_random_numbers_are_found(
    what: str, answers: Answers, capfd: pytest.CaptureFixture[str]
) -> None:
    program, op, change, words = WRONG[what]
    torch._dynamo.reset()
    with pytest.raises(AccuracyError, match=words):
        torch.compile(program, backend=minidbg.wrap(wrong_in(op, change)))(X)
    assert "Call using an FX-traced Module" not in capfd.readouterr().err
