"""pytorch's test/dynamo/test_minifier.py, held to the exact smallest graph and to a repro that fails again.

The bugs are the backends that torch keeps for those tests. A name in a title is the name of the original test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from support.failing import failing_program
from torch import fx
from torch.ao import quantization
from torch.ao.nn.intrinsic import qat

import minidbg
from minidbg.codegen.module_text import write_module
from minidbg.core.errors import CannotWrite
from minidbg.core.outcome import Kind
from minidbg.core.run_spec import Context
from minidbg.judge import run

pytestmark = pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max:UserWarning")

COMPILE_ERROR, RUNTIME_ERROR, ACCURACY_ERROR = (
    f"relu_{kind}_error_TESTING_ONLY" for kind in ("compile", "runtime", "accuracy")
)


def chain(before: int, after: int, *, relu: bool = True) -> Callable[[torch.Tensor], torch.Tensor]:
    """``before`` times sin, relu, ``after`` times cos."""

    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(before):
            x = torch.sin(x)
        x = torch.relu(x) if relu else x
        for _ in range(after):
            x = torch.cos(x)
        return x

    return program


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "kind"),
    [(COMPILE_ERROR, Kind.COMPILE), (RUNTIME_ERROR, Kind.RUNTIME), (ACCURACY_ERROR, Kind.ACCURACY)],
)
def test_after_dynamo_error(backend: str, kind: Kind, tmp_path: Path) -> None:
    """test_after_dynamo_{compile,runtime,accuracy}_error and test_if_graph_minified; upstream's repro of the runtime error keeps
    all 43 nodes. test_after_dynamo_non_leaf_compile_error is ``no_leaf`` in the table of constructs.
    """
    found = failing_program(chain(10, 10), (torch.randn(20, 20),), backend, tmp_path)
    assert found.ops == ["relu"]
    assert found.case.kind is kind
    assert found.case.provenance.certified
    assert len(found.case.inputs) == 1
    if kind is Kind.RUNTIME:
        assert "ReluRuntimeError" in found.text


@pytest.mark.parametrize("backend", [COMPILE_ERROR, RUNTIME_ERROR, ACCURACY_ERROR])
def test_after_dynamo_backend_passes(backend: str, tmp_path: Path) -> None:
    """test_after_dynamo_{compile,runtime,accuracy}_backend_passes: nothing is raised and nothing is written."""
    program, x = chain(10, 10, relu=False), torch.randn(20, 20)
    compiled = torch.compile(program, backend=minidbg.wrap(backend, repro_dir=tmp_path))
    assert torch.equal(compiled(x), program(x))
    assert not list(tmp_path.glob("**/*.py"))


class TwoDevices(torch.nn.Module):
    """A linear layer, a parameter and a buffer, half of them on another device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.near, self.far = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4, device=device)
        self.near_parameter = torch.nn.Parameter(torch.ones(4))
        self.far_parameter = torch.nn.Parameter(torch.ones(4, device=device))
        self.register_buffer("near_buffer", torch.ones(4))
        self.register_buffer("far_buffer", torch.ones(4, device=device))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        near = self.near(y) * self.near_parameter + self.near_buffer
        far = self.far(x) * self.far_parameter + self.far_buffer + torch.randn(4, device=x.device)
        return torch.relu(far.cpu() + near)


@pytest.mark.device
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="two devices are needed, and there is only a CPU here"
)
def test_cpu_cuda_module_after_dynamo(tmp_path: Path) -> None:
    """test_cpu_device_module_after_dynamo: what fails on two devices needs both in the repro, each in its place."""
    args = (torch.randn(4, device="cuda"), torch.randn(4))
    found = failing_program(TwoDevices("cuda"), args, fails_with_two_devices, tmp_path)
    assert {value.device.type for value in found.case.inputs if isinstance(value, torch.Tensor)} == {
        "cpu",
        "cuda",
    }


def fails_with_two_devices(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
    devices = {value.device.type for value in example_inputs if isinstance(value, torch.Tensor)}
    if len(devices) > 1 and any(node.op.startswith("call") for node in gm.graph.nodes):
        raise RuntimeError("inputs on two devices")
    return gm.forward


def test_autocast_uses_the_device_of_the_failing_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """test_repro_minify_autocast_uses_tensor_device and its neighbour: entered once, with that device."""
    entered: list[tuple[Any, ...]] = []

    def note(*given: Any, **named: Any) -> Any:
        entered.append(given)
        return nullcontext()

    monkeypatch.setattr(torch, "autocast", note)
    with run.entered_modes(Context(autocast=(("cuda", "torch.float16", True),))):
        pass
    assert entered == [("cuda", torch.float16)]


# ---- modules that a graph calls


class Calls(torch.nn.Module):
    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.inner = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class Leaves(fx.Tracer):
    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return True


def calling(module: torch.nn.Module) -> fx.GraphModule:
    """A graph with one call_module of ``module``."""
    root = Calls(module)
    return fx.GraphModule(root, Leaves().trace(root))


class Misnamed(torch.nn.Module):
    def __repr__(self) -> str:
        return "<lambda>()"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


def fused(config: quantization.QConfig) -> torch.nn.Module:
    return qat.ConvBnReLU2d(3, 4, 3, bias=False, qconfig=config)


def custom_config() -> quantization.QConfig:
    activation = quantization.FakeQuantize.with_args(
        observer=quantization.MinMaxObserver, quant_min=-3, quant_max=9, dtype=torch.qint8
    )
    return quantization.QConfig(activation=activation, weight=quantization.default_weight_fake_quant)


def test_a_module_that_a_graph_calls_is_refused_by_name() -> None:
    """..uses_constructor_for_qat_fused_module, ..for_fake_quant_with_child_repr, ..rejects_custom_qat_qconfig: dynamo inlines modules,
    so none is built anew. test_after_aot_repro_falls_back_for_unconvertible_module_repr is written as it is upstream: a syntax error.
    """
    engines = [quantization.get_default_qat_qconfig(engine) for engine in ("fbgemm", "x86", "qnnpack")]
    observer = engines[0].activation()
    observer(torch.randn(2))  # what it has observed is part of its state
    for module in (*map(fused, [*engines, custom_config()]), observer, Misnamed()):
        with pytest.raises(CannotWrite, match=type(module).__name__):
            write_module(calling(module))
