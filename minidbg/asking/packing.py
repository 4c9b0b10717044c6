"""A case on its way to another interpreter: as a script, with its values in files that are written once and mapped there.

On a worker of a cluster run as a plain script, ``packing.py CASE MARGIN TO_THE_END``: prints each phase, then the outcome as JSON.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from minidbg import torch_internals, workers
from minidbg.asking.execute import execute
from minidbg.fx.case import Case
from minidbg.repro.loading import load
from minidbg.repro.render import STORED, Form, Script, render
from minidbg.source.contents import AT_A_GLANCE
from minidbg.source.specs import Exactness
from minidbg.words.errors import BackendUnreachable

LIMIT_BYTES = 1 << 40
SPARE_BYTES = 256 << 20
"""What is left free of the memory that the files take."""
IN_USE: Counter[str] = Counter()
"""Names of the files that questions under way have."""
NUMBERS = itertools.count()

MAPPED = '''\
def stored(key, dtype, device="cpu"):
    """A tensor whose bytes another process has put into a file; mapped, and copied only where it is written to."""
    path, size = {files!r}[key]
    values = torch.from_file(path, size=size, dtype=torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
    return values.view(dtype).to(device)
'''


ANSWER = "minidbg.asking.packing:answer"


def answer(argument: Mapping[str, Any], note: Callable[[str], object]) -> dict[str, Any]:
    """In the child: the outcome of the case; or why its backend, which was pickled, cannot be had back."""
    try:
        case = load(argument["path"]).with_spec(margin=argument["margin"])
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

    It is called with ``{"paths": [...]}``, the scripts of ``cases``, and a function that hears texts. Raises CannotWrite and OSError.
    """
    with contextlib.ExitStack() as stack:
        paths = [str(stack.enter_context(packed(case))) for case in cases]
        return workers.call_in_server(
            preparation(cases[0], function), {"paths": paths}, seconds=seconds
        ).value


def with_all_values(case: Case, value_limit_bytes: int = LIMIT_BYTES) -> Script:
    """The script of ``case``. Raises CannotWrite."""
    return render(
        case,
        Form.CAPTURE,
        exactness=Exactness.EXACT,
        value_limit_bytes=value_limit_bytes,
        contents=AT_A_GLANCE,
    )


def arrays_of(script: Script) -> dict[str, Any]:
    """The values of a script as NumPy arrays of bytes."""
    return {key: data.contiguous().cpu().numpy() for key, data in script.tensors.items()}


def with_files(script: Script, files: Mapping[str, tuple[str, int]]) -> str:
    """The text of ``script`` that takes its values from ``files``: paths and sizes."""
    return script.text.replace(STORED.rstrip("\n"), MAPPED.format(files=dict(files)).rstrip("\n"))


@contextlib.contextmanager
def packed(case: Case, *, value_limit_bytes: int = LIMIT_BYTES) -> Iterator[Path]:
    """The path of a script that has ``case`` with all of its values, for ``load`` in a child of the forkserver.

    The script goes when the block ends; the files with the values stay for the next question, which mostly has the same.
    Raises CannotWrite, and OSError where there is no room.
    """
    script = with_all_values(case, value_limit_bytes)
    with folder_for(sum(data.numel() for data in script.tensors.values())) as folder:
        arrays = arrays_of(script)
        names = {key: hashlib.sha256(data).hexdigest() for key, data in arrays.items()}
        IN_USE.update(names.values())
        path = folder / f"case_{next(NUMBERS)}.py"
        try:
            for key, data in arrays.items():
                write_once(folder / names[key], data)
            files = {key: (str(folder / names[key]), data.size) for key, data in arrays.items()}
            path.write_text(with_files(script, files))
            yield path
        finally:
            path.unlink(missing_ok=True)
            IN_USE.subtract(names.values())


def write_once(path: Path, data: Any) -> None:
    """Have the bytes of ``data`` (a NumPy array) at ``path``, whose name says what they are."""
    if not path.exists():
        draft = path.with_name(f"draft_{next(NUMBERS)}")
        data.tofile(draft)
        draft.replace(path)


@contextlib.contextmanager
def folder_for(size: int) -> Iterator[Path]:
    """The forkserver's folder, where it has room for ``size`` bytes; else one on disk, which goes when the block ends."""
    folder = workers.start_server().folder
    if shutil.disk_usage(folder).free < size + SPARE_BYTES:
        for path in folder.iterdir():
            if not IN_USE[path.name] and path.suffix != ".py":
                path.unlink(missing_ok=True)
    if shutil.disk_usage(folder).free >= size + SPARE_BYTES:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="minidbg-") as on_disk:
        yield Path(on_disk)


if __name__ == "__main__":
    question = {"path": sys.argv[1], "margin": json.loads(sys.argv[2]), "to_the_end": json.loads(sys.argv[3])}
    print(json.dumps(answer(question, lambda phase: print("phase", phase, flush=True))), flush=True)
