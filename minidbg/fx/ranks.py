"""What one rank's graph shares: meshes, placements, groups and collectives, and their source text.

A script runs alone. Where a mesh, a DTensor or a collective is left in its graph, it makes a
process group of torch's ``fake`` backend first: the same rank and number of ranks, and collectives
that come back at once and move nothing.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import distributed, fx

from minidbg import torch_internals
from minidbg.core.foreign import message_of
from minidbg.fx.case import Case

COLLECTIVES = (
    *("c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd"),
    *("symm_mem", "rpc", "fsdp", "_dtensor"),
)
"""Namespaces of operators by which ranks talk to each other."""
SPEAKING = re.compile(r"all_?(reduce|gather|to_?all)|reduce_?scatter|barrier")
"""Names of such operators in the namespaces of other people."""
TENSOR = "torch.distributed.tensor"
PLACEMENTS = "torch.distributed.tensor.placement_types"
MESH = "torch.distributed.device_mesh"
FAKE_GROUP = "from torch.testing._internal.distributed.fake_pg import FakeStore"
"""The statement by which a script, and a reader of its setup, knows it needs a process group."""
ASKED_FOR = "which the backend asks for"
"""In the setup of a backend that needs the group itself, whatever its graph does."""
SEEN = re.compile(r"seen on rank (\d+) of (\d+)")


# --- which process this is ---


def rank_and_size(environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """The rank of this process and the number of ranks; (0, 1) for a process of its own."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    rank, size = environ.get("RANK", "0"), environ.get("WORLD_SIZE", "")
    return (int(rank), int(size)) if rank.isdecimal() and size.isdecimal() else (0, 1)


def rank_note() -> tuple[str, ...]:
    """Which of several ranks this process is, for a capture's reader; empty for a lone process."""
    rank, size = rank_and_size()
    return (f"seen on rank {rank} of {size}",) if size > 1 else ()


# --- what a graph needs ---


@functools.cache
def collective_name(operator: Any) -> str | None:
    """Name of a torch operator in which other ranks take part, less where it writes; else None."""
    path = torch_internals.operator_path(operator)
    if path is None:
        return None
    _, _, namespace, name, *_ = path.split(".")
    if name.startswith("_wrap_tensor"):  # only makes a tensor that somebody is to wait for
        return None
    is_one = namespace in COLLECTIVES or (namespace != "aten" and SPEAKING.search(name))
    return name.removesuffix("_out").rstrip("_") if is_one else None


def is_collective(node: fx.Node) -> bool:
    if torch_internals.operator_path(node.target) is not None:
        return collective_name(node.target) is not None
    return str(getattr(node.target, "__module__", "")).startswith("torch.distributed")


def is_shared_value(value: Any) -> bool:
    """Whether ``value`` means something only in a process group: a DTensor, a mesh, a group."""
    name, module = type(value).__name__, type(value).__module__
    return name in ("DTensor", "DeviceMesh", "ProcessGroup") and module.startswith("torch.")


def talks_to_others(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> str:
    """Why other ranks may have to take part in a run of the graph; empty where none does.

    Any operation on a DTensor may move data between the ranks.
    """
    for node in _calls(graph_module):
        if is_collective(node):
            return node.name
    pairs = zip(graph_module.graph.find_nodes(op="placeholder"), inputs, strict=False)
    shared = (node.name for node, value in pairs if is_shared_value(value))
    return next(shared, "")


ABSENT = re.compile(
    r"(?i)connection (closed|reset) by peer|timed out waiting|collective operation timeout|gloo.*time.?out"
)
"""What gloo and NCCL say of a rank that did not come, or went away."""


def is_waiting_in_vain(error: BaseException, graph_module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether ``error`` says that another rank did not take part in a collective of this graph: no
    failure of a compiler."""
    return bool(ABSENT.search(message_of(error)) and talks_to_others(graph_module, inputs))


def _calls(graph_module: fx.GraphModule) -> Iterator[fx.Node]:
    return (node for node in torch_internals.all_nodes(graph_module) if node.op.startswith("call"))


# --- the process group of a script ---


def with_group(case: Case) -> Case:
    """``case`` with a backend whose setup makes the process group that its graph needs, if any."""
    needed = bool(talks_to_others(case.graph_module, case.inputs))
    if is_asked_for_its_rank(case) and not needed:
        return case
    setup = (*(group_statements(case) if needed else ()), *without_group(case.backend.setup))
    backend = replace(case.backend, setup=setup)
    return case if backend == case.backend else case.with_spec(backend=backend)


def on_its_rank(case: Case) -> Case | None:
    """``case`` with a process group for a backend that asks for its rank; None where its graph has
    one, or there was one process."""
    seen = next(filter(None, map(SEEN.fullmatch, case.provenance.notes)), None)
    talks = talks_to_others(case.graph_module, case.inputs)
    if seen is None or talks or is_asked_for_its_rank(case):
        return None
    setup = (*_setup_statements(seen[1], seen[2], ASKED_FOR), *without_group(case.backend.setup))
    return replace(
        case.with_spec(backend=replace(case.backend, setup=setup)), compiler=None
    )  # its setup is to run


def is_asked_for_its_rank(case: Case) -> bool:
    """Whether the setup makes a process group for the backend."""
    return any(ASKED_FOR in text for text in case.backend.setup)


def without_group(setup: Sequence[str]) -> tuple[str, ...]:
    if FAKE_GROUP not in setup:
        return tuple(setup)
    others = (text for text in setup if text not in (FAKE_GROUP, "from torch import distributed"))
    return tuple(text for text in others if not text.startswith("if not distributed.is_init"))


def group_statements(case: Case) -> tuple[str, ...]:
    """Statements that make a process group with the rank and size of this process, and the groups
    that a collective names, but for that of all ranks."""
    *imports, made = _setup_statements(*rank_and_size(), "alone: collectives come back at once")
    calls = filter(is_collective, _calls(case.graph_module))
    values = (value for node in calls for value in (*node.args, *node.kwargs.values()))
    for name in dict.fromkeys(value for value in values if isinstance(value, str)):
        if (members := torch_internals.ranks_of_group(name)) is not None:
            made += (
                f'\n    distributed.distributed_c10d._register_process_group("{name}", '
                f"distributed.new_group({members}))"
            )
    return (*imports, made)


def _setup_statements(rank: int | str, size: int | str, why: str) -> tuple[str, ...]:
    lines = [
        f"if not distributed.is_initialized():  # rank {rank} of {size}, {why}",
        f'    distributed.init_process_group("fake", rank={rank}, world_size={size}, store=FakeStore())',
    ]
    return "from torch import distributed", FAKE_GROUP, "\n".join(lines)


# --- values as text ---


def shared_text(value: Any) -> tuple[str, str] | None:
    """The expression for a placement, mesh or process group, and the module it needs; else None."""
    cls = type(value)
    match cls.__name__ if cls.__module__ == PLACEMENTS else "":
        case "_StridedShard" as name:
            arguments = f"{value.dim}, split_factor={value.split_factor}"
            return f"{PLACEMENTS}.{name}({arguments})", PLACEMENTS
        case "Shard":
            return f"{TENSOR}.Shard({value.dim})", TENSOR
        case "Partial":
            return f'{TENSOR}.Partial("{value.reduce_op}")', TENSOR
        case "Replicate":
            return f"{TENSOR}.Replicate()", TENSOR
    if cls.__name__ == "DeviceMesh" and cls.__module__ == MESH:
        names = value.mesh_dim_names
        named = f", mesh_dim_names={tuple(names)!r}" if names else ""
        return f'{MESH}.DeviceMesh("{value.device_type}", {value.mesh.tolist()}{named})', MESH
    if distributed.is_available() and isinstance(value, distributed.ProcessGroup):
        members = distributed.get_process_group_ranks(value)
        if len(members) == distributed.get_world_size():
            return "torch.distributed.group.WORLD", ""
        return f"torch.distributed.new_group({members})", ""
    return None
