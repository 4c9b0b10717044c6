"""Where the backend's own code lies, as a script says it that may be moved, or read on another machine.

In memory a ``BackendRef`` has absolute paths. What lies in the tree around the repro folder is written from there: in the header
relative to that folder, and in the code as what to look for in the folders above the script, since drafts and captures lie deeper.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from minidbg.source.expressions import quoted
from minidbg.words.run_spec import BackendRef


def shared_folder(path: str, folder: str) -> str:
    """The folder above both ``path`` and the repro ``folder``, where they are one tree or one repository; else empty."""
    try:
        shared = os.path.commonpath([path, folder])
    except ValueError:  # two drives
        return ""
    around = os.path.dirname(folder)
    is_tree = shared == around != os.path.dirname(around) or shared.startswith(os.path.join(around, ""))
    above = shared
    while not is_tree and above != os.path.dirname(above):
        is_tree = os.path.exists(os.path.join(above, ".git"))
        above = os.path.dirname(above)
    return shared if is_tree else ""


def for_header(backend: BackendRef, folder: str) -> BackendRef:
    """``backend`` with the paths as a header of a script in the repro ``folder`` has them; ``run_spec.table_of`` reads them back."""
    paths, files = (
        tuple(os.path.relpath(one, folder) if shared_folder(one, folder) else one for one in many)
        for many in (backend.paths, backend.files)
    )
    return replace(backend, paths=paths, files=files)


def for_code(backend: BackendRef, folder: str) -> BackendRef:
    """``backend`` with a setup that names near files by their place in the tree, and says what to do about a missing module."""
    setup = list(backend.setup)
    for file in backend.files:
        if shared := shared_folder(file, folder):
            below = os.path.relpath(file, shared)
            setup = [text.replace(f"load_by_path({file!r}", f"load_by_path({below!r}") for text in setup]
    for path in backend.paths:
        for top, _ in found_in(path, backend.modules):
            line = re.compile(rf"(?m)^((?:from|import) {re.escape(top)}\b[^#\n]*?) *$")
            setup = [
                line.sub(rf"\1  # not found? put the folder of {top} on PYTHONPATH", text) for text in setup
            ]
    return replace(backend, setup=tuple(setup))


def with_whole_paths(setup: Sequence[str], files: Sequence[str]) -> tuple[str, ...]:
    def whole(found: re.Match[str]) -> str:
        end = os.path.join(os.sep, found[2])
        return found[1] + repr(next((file for file in files if file.endswith(end)), found[2]))

    return tuple(re.sub(r"""(\bload_by_path\()["']([^"'\n\\]+)["']""", whole, text) for text in setup)


def found_in(path: str, modules: Sequence[str]) -> Iterator[tuple[str, str]]:
    try:
        names = sorted(os.listdir(path))
    except (OSError, ValueError):  # ValueError: no path can be called so
        return
    for top in modules:
        yield from [(top, name) for name in names if name == top or name.partition(".")[0] == top][:1]


def path_lines(backend: BackendRef, folder: str | None) -> Iterator[str]:
    """Statements that put the folders of the backend's modules at the end of ``sys.path``, for a script in the repro ``folder``."""
    for path in backend.paths:
        names = [name for _, name in found_in(path, backend.modules)]
        shared = shared_folder(path, folder) if folder else ""
        if not names and path in map(os.path.dirname, backend.files):
            continue  # load_by_path puts it there
        if not shared or not names:
            why = (
                "no folder above this script holds it"
                if folder and not shared
                else "where modules of the backend were imported from"
            )
            yield f"sys.path += [{path!r}]  # {why}"
            continue
        below = os.path.relpath(path, shared)
        inside, marker = (
            ("", names[0]) if below == "." else (f" / {quoted(below)}", os.path.join(below, names[0]))
        )
        yield (
            f"sys.path += [str(up{inside}) for up in pathlib.Path(__file__).absolute().parents "
            f"if (up / {quoted(marker)}).exists()]  # the backend's modules"
        )
