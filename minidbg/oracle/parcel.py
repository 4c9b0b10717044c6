"""The way of a case to a child of the forkserver and back: plain values in the question, and a file
for each storage, which is mapped there."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import save_file
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from minidbg import backends, torch_internals, workers
from minidbg.backends import pickled
from minidbg.codegen import transport
from minidbg.core import environment
from minidbg.core.errors import BackendUnreachable
from minidbg.core.machine import HERE, Machine
from minidbg.core.run_spec import RunSpec
from minidbg.fx.case import Case
from minidbg.oracle.execute import execute

SPARE_BYTES = 256 << 20
"""What is left free of the memory that the files take."""
IN_USE: Counter[str] = Counter()
"""Names of the files that questions under way have."""
TIDYING = threading.RLock()
PARCEL_NUMBERS = itertools.count()
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
    with torch_internals.in_bisection(argument.get("bisection", "")):
        return execute(case, note=note, to_the_end=argument["to_the_end"]).to_json()


def warmup_for(case: Case) -> workers.Warmup:
    """What the server does before its children find ``case``'s backend set up; nothing that may end
    or hang it, as it does them."""
    if case.spec.traits.dies:
        return workers.Warmup(warm="imports")
    warm = "inductor" if case.backend.name == "inductor" else "imports"
    return workers.Warmup(case.backend.modules, warm)


@contextlib.contextmanager
def packed(case: Case, *, share: float = 1.0, machine: Machine = HERE) -> Iterator[dict[str, Any]]:
    """``case`` as plain values, for ``unpacked`` in a child of the forkserver that lives no longer than the block.

    The files with its values stay for the next question, which mostly has the same. Of what is free
    they take ``share`` at most; what does not fit is ``left_out_bytes``. Raises CannotWrite, and
    OSError where there is no room.
    """
    parcel = transport.pack(
        case, room_bytes=transport.NO_SIZE_LIMIT if share == 1.0 else room_bytes(share, machine)
    )
    with contextlib.ExitStack() as stack:
        files: dict[str, Path] = {}
        with TIDYING:
            for key, owner in parcel.owners.items():
                if (path := file_of(owner)) is not None:
                    stack.enter_context(marked_in_use(path))
                    files[key] = path
        new: dict[str, Any] = {key: data.numpy() for key, data in parcel.storages.items() if key not in files}
        folder = stack.enter_context(folder_for(sum(array.size for array in new.values()), share, machine))
        for key, array in new.items():
            path = files[key] = folder / data_digest(array)
            stack.enter_context(marked_in_use(path))
            write_once(path, array)
            remember(parcel.owners.get(key), path)
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
        mapped[key] = torch.from_file(
            path, size=size, dtype=torch.uint8
        )  # copied only where it is written to
        return mapped[key].view(dtype).to(device)

    case = with_backend(package, stored)
    owned = itertools.chain(case.inputs, case.graph_module.parameters(), case.graph_module.buffers())
    for key, owner in transport.owners_of(mapped, owned).items():
        remember(owner, Path(package["files"][key][0]))  # it may ask questions about these values
    return case


def save(case: Case, path: Path) -> None:
    """Write ``case`` to ``path``, with all of its values in a file of safetensors beside it. Raises
    CannotWrite and OSError."""
    parcel = transport.pack(case)
    # paths stay readable: on another machine the code lies elsewhere, and they are changed
    path.write_text(json.dumps(parcel.table, ensure_ascii=False), "utf-8", "backslashreplace")
    save_file({key: data.numpy() for key, data in parcel.storages.items()}, path.with_suffix(".safetensors"))


def read(path: Path) -> Case:
    """The case that ``save`` has written. Raises what the import of the backend raises."""
    storages = load_file(path.with_suffix(".safetensors"))
    table = json.loads(path.read_text(encoding="utf-8"))
    return with_backend(table, lambda key, dtype, device="cpu": storages[key].view(dtype).to(device))


def with_backend(table: Mapping[str, Any], stored: transport.Stored) -> Case:
    """Import the backend of a parcel, then make its case: the backend may define the operators of
    the graph, or make its process group."""
    compiler = backends.resolve(RunSpec.from_literal(table["spec"]).backend)
    return replace(transport.unpack(table, stored), compiler=compiler)


def file_of(owner: Tensor) -> Path | None:
    """The file with the bytes of ``owner``, where it was sent before, or came from one, and was not written to since."""
    state, path = SENT.get(owner, (None, None))  # type: ignore[no-untyped-call]  # torch has no types there
    return path if path is not None and state == storage_state(owner) and path.exists() else None


def remember(owner: Tensor | None, path: Path) -> None:
    """Keep that the file at ``path`` has the bytes of ``owner``, for as long as it lives: they are not hashed again.

    In processes of our own alone: a program writes to its tensors in ways that torch does not count
    (``x.data``, NumPy), and we never write to the values of a case. An inference tensor has no
    version to tell.
    """
    if owner is not None and environment.is_judging() and not owner.is_inference():
        SENT[owner] = storage_state(owner), path


def storage_state(owner: Tensor) -> tuple[int, int, int]:
    return owner._version, owner.data_ptr(), owner.nbytes


@contextlib.contextmanager
def marked_in_use(path: Path) -> Iterator[None]:
    """A block in which nobody here removes the file."""
    with TIDYING:
        IN_USE[path.name] += 1
    try:
        yield
    finally:
        with TIDYING:
            IN_USE[path.name] -= 1


@contextlib.contextmanager
def pickled_for_children(case: Case) -> Iterator[Case]:
    """A block with ``case`` as children of the forkserver may have it: its live backend in a file,
    where a person would have to fill it in.

    Each child that loads the case unpickles it, and the server never does. Any other case is as it
    was. Raises BackendUnreachable for what cannot be pickled, and OSError where no server can be
    started.
    """
    if not case.backend.missing_backend or case.compiler is None:
        yield case
        return
    path = workers.start_server().folder / f"backend_{next(PARCEL_NUMBERS)}.pickle"
    with marked_in_use(path):  # a question that wants room leaves it there
        try:
            pickled.pickle_into(path, case.compiler)
            yield case.with_spec(backend=pickled.at(path, case.backend))
        finally:
            path.unlink(missing_ok=True)


def data_digest(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()


def write_once(path: Path, data: Any) -> None:
    """Have the bytes of ``data`` at ``path``, whose name says what they are."""
    if not path.exists():
        draft = path.with_name(f"draft_{next(PARCEL_NUMBERS)}")
        data.tofile(draft)
        draft.replace(path)


@contextlib.contextmanager
def folder_for(size: int, share: float, machine: Machine) -> Iterator[Path]:
    """The forkserver's folder, where ``share`` of what is free is enough for ``size`` bytes; else
    one on disk, which goes when the block ends."""
    folder = workers.start_server().folder
    if machine.disk_free(folder) * share < size + SPARE_BYTES:
        with TIDYING:
            for path in folder.iterdir():
                if not IN_USE[path.name] and path.is_file():
                    path.unlink(missing_ok=True)
    if machine.disk_free(folder) * share >= size + SPARE_BYTES:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="minidbg-") as on_disk:
        yield Path(on_disk)


def room_bytes(share: float, machine: Machine) -> int:
    """How large values may be that take ``share`` of what is free: in the forkserver's folder,
    which may be memory, or on disk."""
    folders = workers.start_server().folder, Path(tempfile.gettempdir())
    return int(max(map(machine.disk_free, folders)) * share) - SPARE_BYTES
