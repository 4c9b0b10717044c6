"""The way of a case to a child of the forkserver and back: plain values in the question, and a file for each storage, which is mapped there."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minidbg import backends, torch_internals, workers
from minidbg.asking.execute import execute
from minidbg.fx.case import Case
from minidbg.source import transport
from minidbg.words.errors import BackendUnreachable

SPARE_BYTES = 256 << 20
"""What is left free of the memory that the files take."""
IN_USE: Counter[str] = Counter()
"""Names of the files that questions under way have."""
NUMBERS = itertools.count()

ANSWER = "minidbg.asking.packing:answer"


def answer(argument: Mapping[str, Any], note: Callable[[str], object]) -> dict[str, Any]:
    """In the child: the outcome of the case; or why its backend, which was pickled, cannot be had back."""
    try:
        case = unpacked(argument["case"])
    except BackendUnreachable as refusal:
        return {"refused": str(refusal)}
    with torch_internals.in_bisection(argument.get("bisection", "")):
        return execute(case, note=note, to_the_end=argument["to_the_end"]).to_json()


def preparation(case: Case, function: str) -> workers.Preparation:
    """What the server does before its children find ``case``'s backend set up; nothing that may end or hang it, as it does them."""
    if case.spec.traits.dies:
        return workers.Preparation(function, warm="imports")
    warm = "inductor" if case.backend.name == "inductor" else "imports"
    return workers.Preparation(function, case.backend.modules, warm)


def ask(function: str, *cases: Case, seconds: float) -> Any:
    """What ``function`` (``module:name``) of cases answers in a fork of the forkserver, as plain values; None where it gives no answer.

    It is called with ``{"cases": [...]}``, each for ``unpacked``, and a function that hears texts. Raises CannotWrite and OSError.
    """
    with contextlib.ExitStack() as stack:
        packages = [stack.enter_context(packed(case)) for case in cases]
        return workers.call_in_server(
            preparation(cases[0], function), {"cases": packages}, seconds=seconds
        ).value


@contextlib.contextmanager
def packed(case: Case, *, share: float = 1.0) -> Iterator[dict[str, Any]]:
    """``case`` as plain values, for ``unpacked`` in a child of the forkserver that lives no longer than the block.

    The files with its values stay for the next question, which mostly has the same. Of what is free they take ``share`` at
    most; what does not fit is ``left_out_bytes``. Raises CannotWrite, and OSError where there is no room.
    """
    parcel = transport.pack(case, room_bytes=transport.UNLIMITED if share == 1.0 else room_bytes(share))
    with folder_for(sum(data.numel() for data in parcel.storages.values()), share) as folder:
        names: dict[str, str] = {}
        try:
            for key, data in parcel.storages.items():
                array: Any = data.numpy()
                names[key] = hashlib.sha256(array).hexdigest()
                IN_USE[names[key]] += 1
                write_once(folder / names[key], array)
            files = {key: (str(folder / name), parcel.storages[key].numel()) for key, name in names.items()}
            yield {**parcel.table, "files": files, "left_out_bytes": parcel.left_out_bytes}
        finally:
            IN_USE.subtract(names.values())


def unpacked(package: Mapping[str, Any]) -> Case:
    """In the child: the case, with its backend. Raises what the import of the backend raises."""

    def stored(key: str, dtype: torch.dtype, device: str = "cpu") -> Tensor:
        path, size = package["files"][key]
        # mapped, and copied only where it is written to
        values = (
            torch.from_file(path, size=size, dtype=torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
        )
        return values.view(dtype).to(device)

    return with_backend(package, stored)


def with_backend(table: Mapping[str, Any], stored: transport.Stored) -> Case:
    """The case of a parcel, after its backend: that may define the operators of the graph, or make its process group."""
    compiler = backends.resolve(transport.spec_of(table).backend)
    return replace(transport.unpack(table, stored), compiler=compiler)


def write_once(path: Path, data: Any) -> None:
    """Have the bytes of ``data`` (a NumPy array) at ``path``, whose name says what they are."""
    if not path.exists():
        draft = path.with_name(f"draft_{next(NUMBERS)}")
        data.tofile(draft)
        draft.replace(path)


@contextlib.contextmanager
def folder_for(size: int, share: float = 1.0) -> Iterator[Path]:
    """The forkserver's folder, where ``share`` of what is free is enough for ``size`` bytes; else one on disk, which goes when the block ends."""
    folder = workers.start_server().folder
    if free_bytes(folder) * share < size + SPARE_BYTES:
        for path in folder.iterdir():
            if not IN_USE[path.name] and path.is_file():
                path.unlink(missing_ok=True)
    if free_bytes(folder) * share >= size + SPARE_BYTES:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="minidbg-") as on_disk:
        yield Path(on_disk)


def room_bytes(share: float) -> int:
    """How large values may be that take ``share`` of what is free: in the forkserver's folder, which may be memory, or on disk."""
    folders = workers.start_server().folder, Path(tempfile.gettempdir())
    return int(max(map(free_bytes, folders)) * share) - SPARE_BYTES


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free
