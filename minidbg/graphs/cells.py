"""The cells of notebooks and prompts as places in a program: ``cell 3`` rather than a name that the kernel made up."""

from __future__ import annotations

import re
import sys

_IPYTHON = re.compile(r"<ipython-input-(\d+)-[0-9a-f]+>")
_KERNEL = re.compile(r"[/\\]ipykernel_\d+[/\\]\d+\.py$")


def cell_name(file: str) -> str:
    """``cell 3`` when ``file`` is the source of one, else an empty text.

    A kernel names its cells by a hash; which one it was is asked of the shell, while it runs.
    """
    match = _IPYTHON.fullmatch(file)
    if match:
        return f"cell {match[1]}"
    if not _KERNEL.search(file):
        return ""
    number = _numbers().get(file)
    return f"cell {number}" if number is not None else "a notebook cell"


def _numbers() -> dict[str, int]:
    """The shell's own table: file name to the number in ``In [3]``. Empty without a shell."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    # IPython's CachingCompiler keeps it; seen in 8 and 9
    found = getattr(getattr(shell, "compile", None), "_filename_map", {})
    return dict(found) if isinstance(found, dict) else {}
