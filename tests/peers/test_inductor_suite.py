"""pytorch's test/inductor/test_minifier.py and test_minifier_isolate.py, held to the exact graph and a repro that fails again.

The bugs are those that torch builds into inductor for these tests. Each test compiles C++ many times.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from support.failing import Found, failing_program
from torch import nn

import minidbg
from minidbg.core.outcome import Kind

pytestmark = pytest.mark.slow

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.device, needs_gpu])]


def failing(program: Callable[..., Any], args: tuple[Any, ...], folder: Path, **bugs: str) -> Found:
    """``program`` fails in an inductor with these bugs built in, without gradients."""
    device = args[0].device.type
    section = "triton" if device == "cuda" else "cpp"
    patches = {f"{section}.inject_{op}_bug_TESTING_ONLY": kind for op, kind in bugs.items()}
    with inductor_config.patch(patches), torch.no_grad():
        return failing_program(program, args, "inductor", folder)


def relu_cos(x: torch.Tensor) -> torch.Tensor:
    return torch.cos(torch.relu(x))


def two_bugs(x: torch.Tensor) -> torch.Tensor:
    y = torch.log1p(x)
    b = torch.logical_not(torch.logical_not(y > 0))
    return torch.where(b, torch.relu(x), torch.relu(x))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("bug", "kind"),
    [("compile_error", Kind.COMPILE), ("accuracy", Kind.ACCURACY), ("runtime_error", Kind.RUNTIME)],
)
def test_after_aot_error(bug: str, kind: Kind, device: str, tmp_path: Path) -> None:
    """test_after_aot_{cpu,gpu}_{compile,accuracy}_error, and the runtime errors of test_minifier_isolate."""
    found = failing(relu_cos, (torch.randn(20, 20, device=device),), tmp_path, relu=bug)
    assert found.ops == ["relu"]
    assert found.case.kind is kind


@pytest.mark.parametrize("bug", ["compile_error", "accuracy", "runtime_error"])
def test_after_aot_backend_passes(bug: str, tmp_path: Path) -> None:
    """..{compile,runtime,accuracy}_backend_passes: three sin, three cos, no relu, nothing said."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sin().sin().sin().cos().cos().cos()

    x = torch.randn(20, 20)
    with inductor_config.patch({"cpp.inject_relu_bug_TESTING_ONLY": bug}):
        result = torch.compile(program, backend=minidbg.wrap("inductor", repro_dir=tmp_path))(x)
    assert torch.allclose(result, program(x))
    assert not list(tmp_path.glob("**/*.py"))


@pytest.mark.parametrize(
    ("program", "bugs"),
    [
        (lambda x: torch.tensor(2) + torch.relu(x), ["relu"]),
        (lambda x: torch.relu(x.sin().sin().cos()), ["relu"]),
        (two_bugs, ["relu", "log1p"]),
    ],
    ids=["constant_in_graph", "offload_to_disk", "accuracy_vs_strict_accuracy"],
)
def test_wrong_relu_is_found(program: Callable[..., Any], bugs: list[str], tmp_path: Path) -> None:
    """Values are kept in memory at the cuts alone, so that nothing is to be switched on for the disk. Of two bugs the one is found
    that shows in the result.
    """
    found = failing(program, (torch.rand(20) + 0.5,), tmp_path, **dict.fromkeys(bugs, "accuracy"))
    assert found.ops == ["relu"]
    assert found.case.kind is Kind.ACCURACY


@pytest.mark.device
@needs_gpu
def test_rmse_improves_over_atol(tmp_path: Path) -> None:
    """float16 rounding that a float64 reference explains is no mismatch."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x - torch.tensor(655, dtype=torch.half, device="cuda") * 100

    with inductor_config.patch(joint_graph_constant_folding=False):
        compiled = torch.compile(program, backend=minidbg.wrap("inductor", repro_dir=tmp_path))
        compiled(torch.tensor(65500.0, dtype=torch.half, device="cuda"))
    assert not list(tmp_path.glob("**/*.py"))


def test_accuracy_of_other_than_floats(tmp_path: Path) -> None:
    """test_accuracy_vs_strict_accuracy: booleans are compared exactly, so the log1p behind the comparison is found."""

    def only_bool(x: torch.Tensor) -> torch.Tensor:
        return torch.logical_not(torch.logical_not(torch.log1p(x) > 0))

    found = failing(only_bool, (torch.randn(20),), tmp_path, log1p="accuracy")
    assert "log1p" in found.ops
    assert found.case.kind is Kind.ACCURACY


class Exported(nn.Module):
    """Linear, ReLU, Sigmoid: upstream's model for AOTInductor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.relu, self.sigmoid = nn.Linear(10, 16), nn.ReLU(), nn.Sigmoid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.sigmoid(self.relu(self.linear(x)))
        return result


class Unflattened(nn.Module):
    """Inputs in a dict, and one by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Exported()

    def forward(self, given: dict[str, torch.Tensor], *, k: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(given["x"] + given["y"] + k)
        return result


def exported(unflattened: bool) -> Callable[..., Any]:
    x = torch.randn(8, 10)
    if unflattened:
        return torch.export.export(Unflattened(), ({"x": x, "y": x},), {"k": x}).module()
    return torch.export.export(Exported(), (x,)).module()


@pytest.mark.parametrize("bug", ["compile_error", "accuracy"])
@pytest.mark.parametrize("unflattened", [False, True], ids=["", "unflattened"])
def test_aoti_error(bug: str, unflattened: bool, tmp_path: Path) -> None:
    """test_aoti_cpu_{compile,accuracy}_error and .._unflatten, of the exported program in torch.compile."""
    x = torch.randn(8, 10)
    program = exported(unflattened)
    call = (lambda x: program({"x": x, "y": x}, k=x)) if unflattened else program
    found = failing(call, (x,), tmp_path, relu=bug)
    assert found.ops == ["relu"]
