"""Where the backend's code lies, as a script says it that may be moved, or read on another machine.

In memory a ``BackendRef`` has absolute paths. What lies in the tree around the repro folder is
written from there: in the header relative to that folder, and in the code as what to look for in
the folders above the script, since drafts and captures lie deeper.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from minidbg.codegen.expressions import quoted
from minidbg.core.run_spec import BackendRef


def shared_folder(path: str, folder: str) -> str:
    """The folder above ``path`` and repro ``folder``, if in one tree or repository; else empty."""
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


def path_lines(backend: BackendRef, folder: str | None) -> Iterator[str]:
    """Statements that put the folders of the backend's modules at the end of ``sys.path``, for a
    script in the repro ``folder``."""
    for path in backend.paths:
        try:
            names = {name.partition(".")[0]: name for name in sorted(os.listdir(path), reverse=True)}
        except (OSError, ValueError):  # ValueError: no path can be called so
            names = {}
        modules = [module for module in backend.modules if module in names]
        what = (
            f"  # {', '.join(modules) or 'modules of the backend'}; elsewhere: put its folder on PYTHONPATH"
        )
        if not modules or not folder or not (shared := shared_folder(path, folder)):
            yield f"sys.path += [{path!r}]{what}"
            continue
        below = os.path.relpath(path, shared)
        inside = "" if below == "." else f" / {quoted(below)}"
        marker = os.path.normpath(os.path.join(below, names[modules[0]]))
        yield (
            f"sys.path += [str(up{inside}) for up in pathlib.Path(__file__).absolute().parents "
            f"if (up / {quoted(marker)}).exists()]{what}"
        )
