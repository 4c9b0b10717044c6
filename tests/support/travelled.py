"""A case that was sent to another process and read there, and whether it is the same one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from minidbg import backends, torch_internals
from minidbg.codegen import transport
from minidbg.codegen.origins import location, user_frames
from minidbg.codegen.size import canonical_text
from minidbg.codegen.subclasses import construction_of, is_constructed
from minidbg.core.run_spec import BackendRef, RunSpec
from minidbg.fx.case import Case
from minidbg.fx.context import current_context
from minidbg.fx.copying import capture_by_dynamo, storage_key
from minidbg.fx.effects import lookup
from minidbg.fx.ranks import with_group
from minidbg.oracle.parcel import with_backend


def case_of_program(function: Any, args: Any, backend: str, dynamic: bool | None = None) -> Case:
    graph_module, inputs = capture_by_dynamo(function, args, dynamic=dynamic)
    spec = RunSpec(backends.find_reference(backend), current_context(inputs), dynamic=dynamic)
    return Case(graph_module, tuple(inputs), spec, compiler=backend)


def case_over(*inputs: Any) -> Case:
    """A graph that adds its inputs, in nodes of all kinds of names."""
    graph = fx.Graph()
    placeholders = [graph.placeholder(f"L_x_{number}_") for number in range(len(inputs))]
    value: Any = 1
    for node in placeholders:
        value = graph.call_function(torch.add, (value, node))
        value.meta["stack_trace"] = '  File "/home/me/train.py", line 7, in forward\n    y = x + 1\n'
    graph.output((value,))
    return Case(fx.GraphModule({}, graph), inputs, RunSpec(BackendRef("eager", '"eager"')))


def travelled(case: Case, **how: Any) -> Case:
    """``case`` as another process reads it, in this one."""
    parcel = transport.pack(case, **how)

    def stored(key: str, dtype: torch.dtype, device: str = "cpu") -> Tensor:
        return parcel.storages[key].clone().view(dtype).to(device)

    return with_backend(json.loads(json.dumps(parcel.table)), stored)


def assert_same_case(case: Case, there: Case) -> None:
    """Graph with its names and constants, inputs with their values, layout and what they share, and the whole record."""
    assert canonical_text(there.graph_module) == canonical_text(case.graph_module)
    assert nodes_of(there.graph_module) == nodes_of(case.graph_module)
    assert [described(one) for one in there.inputs] == [described(one) for one in case.inputs]
    assert shared(there.inputs) == shared(case.inputs)
    assert there.spec == with_group(case).with_spec(device=there.spec.device).spec
    assert there.provenance == case.provenance


def nodes_of(graph_module: fx.GraphModule, path: str = "") -> dict[str, list[tuple[str, str, str, str]]]:
    """Kind, name, target and user's line of each node, by the path of its graph; an output's name is nobody's business."""
    nodes = graph_module.graph.nodes
    found = {
        path: [
            (node.op, node.name * (node.op != "output"), str(node.target), line_of(node)) for node in nodes
        ]
    }
    for node in graph_module.graph.find_nodes(op="get_attr"):
        inner = lookup(graph_module, str(node.target))
        if isinstance(inner, fx.GraphModule):
            found |= nodes_of(inner, f"{path}.{node.target}")
    return found


def line_of(node: fx.Node) -> str:
    frames = user_frames(node) if node.op not in ("placeholder", "output") else ()
    return "".join(f"{location(node)} {text}" for _, _, text in frames[:1])


def described(value: Any) -> Any:
    """All that is to come back of an input."""
    if not isinstance(value, Tensor):
        return value
    kind = type(value)
    facts: tuple[Any, ...] = (
        # a bare class is written by its name alone
        kind.__name__ if kind.__bases__ == (Tensor,) else kind, value.dtype, value.device, value.requires_grad, value.is_leaf, value.is_inference(),
    )  # fmt: skip
    if is_constructed(value):  # the size of a nested tensor is a number of this process
        parts = construction_of(value, "an input").parts.values()
        return *facts, [described(part) for part in parts]
    facts += (tuple(value.shape), value.stride(), value.storage_offset(), value.is_conj(), value.is_neg())
    if torch_internals.is_zero_tensor(value):
        return *facts, "no memory"
    plain = value.detach().resolve_conj().resolve_neg().reshape(-1)
    return *facts, plain.new_empty(plain.numel()).copy_(plain).view(torch.uint8).tolist()


def shared(values: Sequence[Any]) -> list[Any]:
    """Of each value the first that is the same object, and the first on the same storage."""
    keys = [(id(value), storage_key(value) if isinstance(value, Tensor) else None) for value in values]
    objects, storages = [one for one, _ in keys], [other for _, other in keys]
    return [(objects.index(one), storages.index(other)) for one, other in keys]
