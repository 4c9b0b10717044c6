"""Where a node comes from: the user's line in a comment."""

from __future__ import annotations

import functools
import itertools
import os
import re
import sys

import torch
from torch import fx

_IPYTHON = re.compile(r"<ipython-input-(\d+)-[0-9a-f]+>")
_KERNEL = re.compile(r"[/\\]ipykernel_\d+[/\\]\d+\.py$")


def cell_name(file: str) -> str:
    """``cell 3`` when ``file`` is the source of one, else an empty text. A kernel names cells by a
    hash; which one it was is asked of the shell."""
    if match := _IPYTHON.fullmatch(file):
        return f"cell {match[1]}"
    if not _KERNEL.search(file):
        return ""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    # IPython's CachingCompiler keeps file names and the numbers in ``In [3]``; seen in 8 and 9
    numbers = getattr(getattr(shell, "compile", None), "_filename_map", {})
    number = numbers.get(file) if isinstance(numbers, dict) else None
    return f"cell {number}" if number is not None else "a notebook cell"


_FRAME = re.compile(r' *File "(.*)", line (\d+).*')
_COMMENT = re.compile(r".*  # (.+):(\d+)")
TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep


def user_frames(node: fx.Node) -> tuple[tuple[str, str, str], ...]:
    """File, line and text of each frame known for ``node`` that is neither in torch nor generated,
    the innermost first; a notebook's cells are the user's."""
    return _frames(str(node.meta.get("stack_trace", "")))


@functools.lru_cache(1 << 10)
def _frames(trace: str) -> tuple[tuple[str, str, str], ...]:
    lines = trace.split("\n")
    pairs = reversed(list(itertools.zip_longest(lines, lines[1:], fillvalue="")))
    matches = ((_FRAME.fullmatch(line), below.strip()) for line, below in pairs)
    frames = ((match[1], match[2], text) for match, text in matches if match)
    of_others = (TORCH_FOLDER, "<")
    return tuple(f for f in frames if cell_name(f[0]) or not f[0].startswith(of_others))


def location(node: fx.Node) -> str:
    """``train.py:41`` of the innermost user frame known for ``node``, or nothing."""
    for file, line, _ in user_frames(node):
        # without characters that could end a comment or hide in it
        name = "".join(c if c.isprintable() else "?" for c in os.path.basename(file)).strip()
        return f"{cell_name(file) or name}:{line}"
    return ""


def stack_trace(line: str) -> str:
    """The stack trace that ``location`` reads as the end comment of ``line``; else nothing."""
    match = _COMMENT.fullmatch(line)
    return f'  File "{match[1]}", line {match[2]}, in forward\n' if match else ""


def users_frame(node: fx.Node) -> str:
    """The stack trace of ``node`` for another process: one frame, where ``location`` says."""
    frames = user_frames(node) if node.op not in ("placeholder", "output") else ()
    return "".join(f"{stack_trace(f'  # {location(node)}')}    {text}\n" for *_, text in frames[:1])


def user_line(graph_module: fx.GraphModule, message: str, *, last: bool = False) -> tuple[str, str]:
    """``train.py:41`` and its text, of the node that ``message`` names, else the first or ``last``;
    two empty texts when the graph knows no source lines."""
    traced = [node for node in graph_module.graph.nodes if node.stack_trace]
    if last:
        traced.reverse()
    named = [node for node in traced if node.op.startswith("call_") and mentions(message, node)]
    for node in (*named, *traced):
        for file, line, text in user_frames(node):
            relative = os.path.relpath(file)  # of a path elsewhere the name: it may tell too much
            name = os.path.basename(file) if relative.startswith("..") else relative
            return f"{cell_name(file) or name}:{line}", text
    return "", ""


def mentions(message: str, node: fx.Node) -> bool:
    """Whether the error text names the node, or the source line that it stands for."""
    last = str(node.stack_trace).strip().splitlines()[-1].strip()
    name = re.escape(node.name)
    # "add" is also a word of any message; "add_3" is not
    named = rf"\b{name}\b" if re.search(r"[_\d]", name) else f"%{name} |'{name}'"
    return re.search(named, message) is not None or (len(last) > 8 and last in message)
