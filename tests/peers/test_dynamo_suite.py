"""What pytorch's test/dynamo/test_minifier.py says of autocast and of modules; its failures and those of test/inductor are rows of the corpus.

A name in a title is the name of the original test.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import fx
from torch.ao import quantization
from torch.ao.nn.intrinsic import qat

from minidbg.codegen.module_text import write_module
from minidbg.core.errors import CannotWrite
from minidbg.core.run_spec import Context
from minidbg.judge import run

pytestmark = pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max:UserWarning")


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
