"""The way of a case to a child of the forkserver and back: plain values in the question, and a file
for each storage, which is mapped there."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from minidbg import backends, workers
from minidbg.backends import pickled
from minidbg.codegen import transport
from minidbg.core import environment
from minidbg.core.errors import BackendUnreachable
from minidbg.core.machine import HERE, Machine
from minidbg.core.records import record_of
from minidbg.core.run_spec import RunSpec
from minidbg.fx.case import Case
from minidbg.oracle.execute import execute, last_stage_needed

SPARE_BYTES = 256 << 20
"""What is left free of the memory that the files take."""
FILE_NUMBERS = itertools.count()
SENT: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""By tensor its state when its bytes were in a file, and the file."""

ANSWER = "minidbg.oracle.parcel:answer"


def answer(argument: Mapping[str, Any], note: Callable[[str], object]) -> dict[str, Any]:
    """In the child: ``execute`` the case, and return its outcome; or why its backend, which was
    pickled, cannot be had back."""
    try:
        case = unpacked(argument["case"])
    except BackendUnreachable as refusal:
        return {"refused": str(refusal)}
    return execute(case, note=note, to_the_end=argument["to_the_end"]).to_json()


def warmup_for(case: Case) -> workers.Warmup:
    """What the server does for children with ``case``; nothing that may end or hang it too."""
    if case.spec.traits.dies:
        return workers.Warmup(warm="imports")
    stop = last_stage_needed(case)
    warm = "inductor" if case.backend.name == "inductor" else "imports"
    return workers.Warmup(case.backend.modules, stop.name.lower() if stop else warm)


@contextlib.contextmanager
def packed(case: Case, *, share: float = 1.0, machine: Machine = HERE) -> Iterator[dict[str, Any]]:
    """``case`` as plain values, for ``unpacked`` in a forkserver child that ends within the block.

    Each storage is in a file, which goes when the block ends, or when the tensor does whose memory
    it is (see ``is_counted``). Of what is free they take ``share`` at most; what does not fit is
    ``left_out_bytes``. Raises CannotWrite, and OSError where there is no room.
    """
    memory, disk = workers.start_server().folder, Path(tempfile.gettempdir())
    room = max(map(machine.disk_free, (memory, disk))) * share - SPARE_BYTES
    parcel = transport.pack(case, room_bytes=transport.NO_SIZE_LIMIT if share == 1.0 else int(room))
    files = dict[str, Path]()
    for key, sent in parcel.owners.items():
        state, path = SENT.get(sent, (None, None))  # type: ignore[no-untyped-call]  # torch's
        if path is not None and state == storage_state(sent) and path.exists():
            files[key] = path  # it was sent before, or came from there, and is unwritten since
    new = {key: data.numpy() for key, data in parcel.storages.items() if key not in files}
    size = sum(array.size for array in new.values())
    fits = machine.disk_free(memory) * share >= size + SPARE_BYTES
    with tempfile.TemporaryDirectory(prefix="minidbg-", dir=memory if fits else disk) as folder:
        for key, array in new.items():
            owner = parcel.owners.get(key) if fits else None
            stays = owner is not None and is_counted(owner)
            path = files[key] = Path(memory if stays else folder, f"values_{next(FILE_NUMBERS)}")
            array.tofile(path)
            if stays and owner is not None:
                weakref.finalize(owner, path.unlink, missing_ok=True)
                remember(owner, path)
        sizes = {key: data.numel() for key, data in parcel.storages.items()}
        yield {
            **parcel.table,
            "files": {key: (str(path), sizes[key]) for key, path in files.items()},
            "left_out_bytes": parcel.left_out_bytes,
        }


def unpacked(package: Mapping[str, Any]) -> Case:
    """In the child: the case, with its backend. Raises what the import of the backend raises."""
    mapped: dict[str, Tensor] = {}

    def stored(key: str, dtype: torch.dtype, device: str = "cpu") -> Tensor:
        path, size = package["files"][key]
        if size == 0:
            return torch.empty(0, dtype=dtype, device=device)
        # copied only where it is written to
        mapped[key] = torch.from_file(path, size=size, dtype=torch.uint8)
        return mapped[key].view(dtype).to(device)

    case = with_backend(package, stored)
    model = case.graph_module
    owned = itertools.chain(case.inputs, model.parameters(), model.buffers())
    for key, owner in transport.owners_of(mapped, owned).items():
        remember(owner, Path(package["files"][key][0]))  # it may ask questions about these values
    return case


def with_backend(table: Mapping[str, Any], stored: transport.Stored) -> Case:
    """Import the backend of a parcel, then make its case: the backend may define the operators of
    the graph, or make its process group."""
    compiler = backends.resolve(record_of(table["spec"], RunSpec).backend)
    return replace(transport.unpack(table, stored), compiler=compiler)


def remember(owner: Tensor, path: Path) -> None:
    """Keep that the file at ``path`` has the bytes of ``owner``: they are not written again."""
    if is_counted(owner):
        SENT[owner] = storage_state(owner), path


def is_counted(owner: Tensor) -> bool:
    """Whether each write to the tensor can be told: in processes of our own alone, which never
    write to the values of a case. A program does in ways that torch does not count (``x.data``,
    NumPy), and an inference tensor has no version."""
    return environment.is_judging() and not owner.is_inference()


def storage_state(owner: Tensor) -> tuple[int, int, int]:
    return owner._version, owner.data_ptr(), owner.nbytes


@contextlib.contextmanager
def pickled_for_children(case: Case) -> Iterator[Case]:
    """A block with ``case`` as children of the forkserver may have it: its live backend, where a
    person would have to fill it in, in a file that each child unpickles, and the server never.

    Raises BackendUnreachable for what cannot be pickled, OSError where no server can be started.
    """
    if not case.backend.missing_backend or case.compiler is None:
        yield case
        return
    path = workers.start_server().folder / f"backend_{next(FILE_NUMBERS)}.pickle"
    try:
        pickled.pickle_into(path, case.compiler)
        yield case.with_spec(backend=pickled.at(path, case.backend))
    finally:
        path.unlink(missing_ok=True)
