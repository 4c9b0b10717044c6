"""Which line of the user's program a graph comes from."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch
from torch import fx

from minidbg.graphs.cells import cell_name

TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep


def user_line(graph_module: fx.GraphModule, message: str, *, last: bool = False) -> tuple[str, str]:
    """``train.py:41`` and that line's text: of the node that ``message`` names, else of the first or ``last`` one.

    Two empty texts when the graph knows no source lines.
    """
    traced = [node for node in graph_module.graph.nodes if node.stack_trace]
    if last:
        traced.reverse()
    named = [node for node in traced if node.op.startswith("call_") and mentions(message, node)]
    for node in (*named, *traced):
        lines = [line.strip() for line in str(node.stack_trace).splitlines() if line.strip()]
        for place, line in reversed(list(enumerate(lines))):
            file, _, rest = line.removeprefix('File "').partition('", line ')
            if line.startswith('File "') and is_the_users(file):
                text = lines[place + 1] if place + 1 < len(lines) else ""
                return f"{short_path(file)}:{rest.partition(',')[0]}", text
    return "", ""


def is_the_users(file: str) -> bool:
    """Whether ``file`` is neither torch's own nor code that was generated; a notebook's cells are the user's."""
    return cell_name(file) != "" or not file.startswith((TORCH_FOLDER, "<"))


def mentions(message: str, node: fx.Node) -> bool:
    """Whether the error text names the node, or the source line that it stands for."""
    last = str(node.stack_trace).strip().splitlines()[-1].strip()
    if f"%{node.name} " in message or f"'{node.name}'" in message or (len(last) > 8 and last in message):
        return True
    # a name like "add" is also a word of any message; one like "add_3" is not
    told_apart = re.search(r"[_\d]", node.name) is not None
    return told_apart and re.search(rf"\b{re.escape(node.name)}\b", message) is not None


def short_path(file: str) -> str:
    """Relative to the working directory where it lies in it, else the file's name: a path may tell too much."""
    cell = cell_name(file)
    if cell:
        return cell
    relative = os.path.relpath(file)
    return Path(file).name if relative.startswith("..") else relative
