"""Modules of torch.ao that a graph for quantization-aware training calls, as constructor calls.

Proposals only: ``submodules.constructor`` builds each and compares. Seen in 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

ENGINES = ("fbgemm", "x86", "qnnpack", "onednn")
"""Engines whose default settings are tried; settings made by hand have no name."""

OBSERVER_SETTINGS = ("dtype", "qscheme", "reduce_range", "averaging_constant", "ch_axis")


def is_quantizing(module: nn.Module) -> bool:
    """Whether ``module`` is one of torch's own for quantization."""
    return type(module).__module__.startswith("torch.ao.")


def class_path(kind: type) -> str:
    """The dotted name of a class of torch.ao; ``import torch`` is all that it needs."""
    return f"{kind.__module__}.{kind.__qualname__}"


def argument_lists(module: nn.Module, literal: Callable[[Any], str]) -> Iterator[list[str]]:
    """Arguments that may build a fake-quantize module, by what its observer was given."""
    observer = getattr(module, "activation_post_process", None)
    if not isinstance(observer, nn.Module):
        return
    settings = {name: getattr(observer, name) for name in OBSERVER_SETTINGS if hasattr(observer, name)}
    for low, high in ranges(module):
        given = {"quant_min": low, "quant_max": high, **settings}
        yield [
            f"observer={class_path(type(observer))}",
            *(f"{name}={literal(value)}" for name, value in given.items()),
        ]


def ranges(module: Any) -> Iterator[tuple[int, int]]:
    """The range of a fake-quantize module as it may have been given: ``reduce_range`` has halved what it holds."""
    low, high = module.quant_min, module.quant_max
    yield low, high
    yield 2 * low, 2 * high + 1


def qconfigs() -> Iterator[str]:
    """Expressions of the settings that torch has names for."""
    for engine in ENGINES:
        yield f"qconfig=torch.ao.quantization.get_default_qat_qconfig({engine!r})"


def parts_of(qconfig: Any) -> tuple[nn.Module, nn.Module]:
    """What settings make: settings themselves compare as different always."""
    return qconfig.activation(), qconfig.weight()
