"""Device plugins: packages whose import teaches torch a device, so that it must come before tensors are made."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import fx

from minidbg.references.homes import foreign_modules, is_foreign, source_of, top_level

BY_DEVICE = {
    "gcu": "torch_gcu",
    "hpu": "habana_frameworks.torch",
    "mlu": "torch_mlu",
    "musa": "torch_musa",
    "neuron": "torch_neuronx",
    "npu": "torch_npu",
    "rbln": "torch_rbln",
    "xla": "torch_xla",
    "xpu": "intel_extension_for_pytorch",
}
"""The plugin of a device type, as its users import it."""

FURTHER = ("torch_tensorrt", "intel_extension_for_pytorch", "torch_directml", "torch_ipu", "poptorch")
"""Plugins that add operators or backends to a device that torch has itself, or whose device has several names."""


def plugins_of_code(modules: Iterable[str]) -> tuple[str, ...]:
    """The loaded plugins that the code of these modules, or of their packages, imports."""
    loaded = [name for name in dict.fromkeys((*BY_DEVICE.values(), *FURTHER)) if name in sys.modules]
    if not loaded:
        return ()
    texts = list(_texts(set(modules)))
    return tuple(name for name in loaded if any(_imports(text, name) for text in texts))


def plugins_of_devices(types: Iterable[str]) -> tuple[str, ...]:
    """The loaded plugins that brought these device types."""
    found = (_plugin_of(kind) for kind in dict.fromkeys(types))
    return tuple(dict.fromkeys(name for name in found if name))


def device_types(gm: fx.GraphModule, inputs: Iterable[Any]) -> tuple[str, ...]:
    """Device types of a graph's values, of its constants and of ``inputs``."""
    values: list[Any] = [*inputs, *gm.parameters(), *gm.buffers()]
    for module in gm.modules():
        for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
            for value in (
                node.meta.get("example_value"),
                node.meta.get("val"),
                *node.args,
                *node.kwargs.values(),
            ):
                values += value if isinstance(value, tuple | list) else [value]
    devices = (
        value if isinstance(value, torch.device) else getattr(value, "device", None) for value in values
    )
    return tuple(dict.fromkeys(found.type for found in devices if isinstance(found, torch.device)))


def _plugin_of(kind: str) -> str | None:
    known = BY_DEVICE.get(kind)
    if known in sys.modules:
        return known
    # what the plugin gave to torch._register_device_module
    module = getattr(torch, kind, None)
    name = getattr(module, "__name__", "") if type(module) is type(sys) else getattr(module, "__module__", "")
    return top_level(name) if name and is_foreign(name) and top_level(name) in sys.modules else None


def _texts(modules: set[str]) -> Iterator[str]:
    packages = {top_level(name) for name in modules if is_foreign(name)}
    names = modules | {name for name, _ in foreign_modules() if top_level(name) in packages}
    yield from (text for name in names if (text := source_of(name)))


def _imports(text: str, plugin: str) -> bool:
    return re.search(rf"(?m)^\s*(?:import|from)\s+{re.escape(top_level(plugin))}\b", text) is not None
