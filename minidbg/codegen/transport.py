"""Send a case to another process: its graph as code that builds it, its values as code that makes
them, and one block of bytes a storage.

A question needs no script: nobody reads it. So node names stay, and the case's record is whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minidbg import torch_internals
from minidbg.backends import run_as_module
from minidbg.codegen.inputs import Exactness, as_scripts_do, bytes_to_store, write_inputs
from minidbg.codegen.module_text import write_graph_builder
from minidbg.codegen.names import identifier
from minidbg.core.records import record_of, table_of
from minidbg.core.run_spec import Provenance, RunSpec
from minidbg.fx.case import Case
from minidbg.fx.ranks import with_group

NO_SIZE_LIMIT = 1 << 62
_file_numbers = itertools.count(1)

Stored = Callable[..., Tensor]
"""``stored(key, dtype, device="cpu")``: a new tensor with the bytes of a storage."""


@dataclass(frozen=True, slots=True)
class Parcel:
    table: dict[str, Any]
    """Plain values, for JSON."""
    storages: Mapping[str, Tensor]
    """What the values' code reads, by key: uint8 ``[n]`` on the CPU, maybe the case's memory."""
    owners: Mapping[str, Tensor]
    """By key the tensor of the case whose memory the storage is."""
    left_out_bytes: int = 0
    """The size of the values that stay here, since there was no room for them; others of the same
    distribution stand in."""


def pack(case: Case, *, room_bytes: int = NO_SIZE_LIMIT) -> Parcel:
    """``case`` with the values that fit into ``room_bytes``: all, else those that a capture has,
    else seeded ones. Raises CannotWrite naming the part of the case that has no text."""
    case = with_group(case)
    graph = write_graph_builder(case.graph_module, own_names=True)
    # a constant and an input may share their memory
    values = [*case.inputs, *(value.detach() for value in graph.constants.values())]
    names = [*graph.input_names, *map(identifier, graph.constants)]
    whole = bytes_to_store(values, Exactness.EXACT)
    fitting = (one for one in reversed(Exactness) if bytes_to_store(values, one) <= room_bytes)
    exactness = next(fitting, Exactness.SEEDED)
    sent = exactness is Exactness.EXACT
    inputs = write_inputs(values, names, exactness, raw=sent)
    owners = owners_of(inputs.stored, [*case.inputs, *graph.constants.values()])
    table = {
        "spec": table_of(case.with_spec(device=inputs.device).spec),
        "provenance": table_of(case.provenance),
        "graph": "\n".join([*graph.imports, "", *graph.kernels.values(), "", graph.text]),
        "values": "\n".join([*inputs.imports, *inputs.lines]),
        "names": list(inputs.names),
        "constants": list(graph.constants),
    }
    return Parcel(table, inputs.stored, owners, 0 if sent else whole)


def owners_of(storages: Mapping[str, Tensor], values: Iterable[Any]) -> dict[str, Tensor]:
    by_memory = {
        (value.data_ptr(), value.nbytes): value
        for value in values
        if torch_internals.has_plain_memory(value) and value.device.type == "cpu" and value.nbytes
    }
    found = ((key, by_memory.get((data.data_ptr(), data.nbytes))) for key, data in storages.items())
    return {key: value for key, value in found if value is not None}


def unpack(table: Mapping[str, Any], stored: Stored) -> Case:
    """The case of a parcel, without ``compiler``. What its backend defines, operators and a process
    group, must be there. Raises what its imports and constructors raise."""
    spec = record_of(table["spec"], RunSpec)
    # "__main__": the module of classes that the text makes
    made = dict[str, Any](__name__="__main__", torch=torch, device=spec.device, stored=stored)
    with as_scripts_do():
        exec(compile(table["values"], "<values>", "exec", dont_inherit=True), made)
        values = [made[name] for name in table["names"]]
        inputs = values[: len(values) - len(table["constants"])]
        graph_module = run_as_module(
            f"minidbg_case_{next(_file_numbers)}",
            table["graph"],
            torch=torch,
            constants=dict(zip(table["constants"], values[len(inputs) :], strict=True)),
            graph_module=torch_internals.lazy_graph_module,
        )["graph"]()
    return Case(graph_module, tuple(inputs), spec, record_of(table["provenance"], Provenance))
