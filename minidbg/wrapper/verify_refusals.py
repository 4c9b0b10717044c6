"""Why a graph is not verified: what must not run twice, or does not fit into memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psutil
import torch
from torch import Tensor, fx

from minidbg import torch_internals
from minidbg.fx.copying import bytes_of, storage_key
from minidbg.fx.ranks import talks_to_others
from minidbg.torch_internals import devices
from minidbg.words.settings import Settings
from minidbg.wrapper.rollback import capturing_device_graph, tensors_in

MOST_OF_MEMORY = 0.8
"""Of what is free, the part that a verification may be expected to take."""


def refusal(
    graph: fx.GraphModule, args: Sequence[Any], mutated: frozenset[int], settings: Settings
) -> str | None:
    if capturing_device_graph():
        return "a device graph is being recorded"
    if name := talks_to_others(graph, args):
        return f"it talks to other ranks ({name}), and they would not take part twice"
    graphs = [module.graph for module in graph.modules() if isinstance(module, fx.GraphModule)]
    for node in (node for one in graphs for node in one.nodes):
        if node.op.startswith("call") and torch_internals.has_effects(node.target):
            return f"{node.name} has effects outside the graph, so it must not run twice"
    if any(map(torch_internals.is_freed, tensors_in(args))):
        return "the memory of an input has been freed"
    return too_large(graph, args, mutated, settings)


def too_large(
    graph: fx.GraphModule, args: Sequence[Any], mutated: frozenset[int], settings: Settings
) -> str | None:
    copies = bytes_of(tensors_in(args[index] for index in sharing_memory(args, mutated)))
    if copies > settings.value_limit_bytes:
        return (
            f"copies of what it writes to would take {copies / 1e6:.0f} MB, "
            f"and value_limit_bytes allows {settings.value_limit_bytes / 1e6:.0f} MB"
        )
    trained = [one for one in tensors_in(args) if one.requires_grad] if torch.is_grad_enabled() else []
    needed = 2 * copies + 2 * bytes_of(trained) + bytes_of_a_run(graph)
    free = free_bytes(tensors_in(args))
    if needed > MOST_OF_MEMORY * free:
        return f"eager beside it may need {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
    return None


def too_large_in_float64(graph: fx.GraphModule, inputs: Sequence[Any]) -> str | None:
    needed = 2 * (bytes_of(tensors_in(inputs)) + bytes_of_a_run(graph))
    free = free_bytes(tensors_in(inputs))
    if needed > MOST_OF_MEMORY * free:
        return f"it may need {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
    return None


def declared_otherwise(graph: fx.GraphModule, args: Sequence[Any], written: frozenset[int]) -> str:
    """What dynamo declared of an input of ``graph`` and did not keep to: no backend is to blame then. Empty where it kept to all.

    An input that the graph writes to is left out: what dynamo declared has been written to as well. So is a symbolic size.
    """
    for index, (node, given) in enumerate(zip(graph.graph.find_nodes(op="placeholder"), args, strict=False)):
        declared = node.meta.get("example_value")
        if index in written or not (isinstance(declared, Tensor) and isinstance(given, Tensor)):
            continue
        for (what, expected), (_, passed) in zip(declarable(declared), declarable(given), strict=False):
            if not isinstance(expected, torch.SymInt) and passed != expected:
                return (
                    f"dynamo declared {node.name} as {what}{expected} and passed {what}{passed}: "
                    "not the backend's failure"
                ).replace("torch.", "")
    return ""


def declarable(value: Tensor) -> Iterator[tuple[str, Any]]:
    yield "", value.dtype
    yield "", value.device
    yield "requires_grad=", value.requires_grad
    yield "rank ", value.dim()
    yield from (("size ", size) for size in value.shape)
    yield from (("stride ", step) for step in (value.stride() if value.layout is torch.strided else ()))


def sharing_memory(values: Sequence[Any], chosen: frozenset[int]) -> list[int]:
    storages = {storage_key(one) for index in chosen for one in tensors_in([values[index]])}
    return [
        index
        for index, value in enumerate(values)
        if index in chosen or any(storage_key(one) in storages for one in tensors_in([value]))
    ]


def bytes_of_a_run(graph: fx.GraphModule) -> int:
    """Most bytes that values of the graph take together at one moment, as dynamo knows their shapes.

    With gradients everything counts as kept until backward.
    """
    keeps = torch.is_grad_enabled()
    nodes = list(graph.graph.nodes)
    at = {node: index for index, node in enumerate(nodes)}
    ends: dict[int, int] = {}
    alive = most = 0
    for index, node in enumerate(nodes):
        if node.op.startswith("call"):
            size = bytes_of_example(node.meta.get("example_value"))
            alive += size
            most = max(most, alive)
            if not keeps:
                last = max((at[user] for user in node.users), default=index)
                ends[last] = ends.get(last, 0) + size
        alive -= ends.pop(index, 0)
    return most


def bytes_of_example(example: Any) -> int:
    if isinstance(example, tuple | list):
        return sum(map(bytes_of_example, example))
    if not isinstance(example, Tensor) or example.layout is not torch.strided:
        return 0
    size = example.element_size()
    for length in example.shape:
        hint = torch_internals.hint(length)
        size *= 1 if hint is None else int(hint)
    return size


def free_bytes(tensors: Sequence[Tensor]) -> int:
    found = (devices.free_bytes(device) for device in devices.devices_of(tensors))
    return next((free for free in found if free is not None), int(psutil.virtual_memory().available))
