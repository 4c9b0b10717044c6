"""Where a node comes from: the user's line in a comment."""

from __future__ import annotations

import functools
import io
import itertools
import os
import re
import sys
import tokenize
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import fx

_IPYTHON = re.compile(r"<ipython-input-(\d+)-[0-9a-f]+>")
_KERNEL = re.compile(r"[/\\]ipykernel_\d+[/\\]\d+\.py$")


def cell_name(file: str) -> str:
    """``cell 3`` when ``file`` is the source of one, else an empty text.

    A kernel names its cells by a hash; which one it was is asked of the shell, while it runs.
    """
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
_LOCATION = re.compile(r"(.+):(\d+)")
TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep
HUNTS_FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "extras", "hunt", "")


def user_frames(node: fx.Node) -> tuple[tuple[str, str, str], ...]:
    """File, line and text of each user frame known for ``node``, the innermost first."""
    trace = node.meta.get("stack_trace")
    return _frames(trace) if isinstance(trace, str) else ()


@functools.lru_cache(1 << 10)
def _frames(trace: str) -> tuple[tuple[str, str, str], ...]:
    lines = trace.split("\n")
    pairs = reversed(list(itertools.zip_longest(lines, lines[1:], fillvalue="")))
    matches = ((_FRAME.fullmatch(line), below.strip()) for line, below in pairs)
    return tuple((match[1], match[2], text) for match, text in matches if match and is_the_users(match[1]))


def location(node: fx.Node) -> str:
    """``train.py:41`` of the innermost user frame known for ``node``, or nothing."""
    for file, line, _ in user_frames(node):
        # without characters that could end a comment or hide in it
        name = "".join(char if char.isprintable() else "?" for char in os.path.basename(file)).strip()
        return f"{cell_name(file) or name}:{line}"
    return ""


def stack_trace(comment: str) -> str | None:
    """The stack trace that ``location`` reads as ``comment``, or None for another comment."""
    match = _LOCATION.fullmatch(comment)
    return f'  File "{match[1]}", line {match[2]}, in forward\n' if match else None


def traces_of(graph_module: fx.GraphModule) -> dict[str, dict[str, str]]:
    """By the path of each graph and the name of each node the stack trace that ends in the user's line, as ``location`` names it."""
    return {
        path: {node.name: trace for node in graph.nodes if (trace := _users_frame(node))}
        for path, graph in _graphs(graph_module).items()
    }


def put_traces(graph_module: fx.GraphModule, traces: Mapping[str, Mapping[str, str]]) -> None:
    for path, graph in _graphs(graph_module).items():
        for node in graph.nodes:
            if trace := traces[path].get(node.name):
                node.meta["stack_trace"] = trace


def _users_frame(node: fx.Node) -> str:
    if node.op in ("placeholder", "output") or not (place := location(node)):
        return ""
    _, _, text = user_frames(node)[0]
    return (stack_trace(place) or "") + (f"    {text}\n" if text else "")


def _graphs(graph_module: fx.GraphModule) -> dict[str, fx.Graph]:
    modules = graph_module.named_modules(remove_duplicate=False)
    return {path: module.graph for path, module in modules if isinstance(module, fx.GraphModule)}


def comments_by_line(source: str) -> dict[int, str]:
    return {
        token.start[0]: token.string.removeprefix("#").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }


def user_line(graph_module: fx.GraphModule, message: str, *, last: bool = False) -> tuple[str, str]:
    """``train.py:41`` and that line's text: of the node that ``message`` names, else of the first or ``last`` one.

    Two empty texts when the graph knows no source lines.
    """
    traced = [node for node in graph_module.graph.nodes if node.stack_trace]
    if last:
        traced.reverse()
    named = [node for node in traced if node.op.startswith("call_") and mentions(message, node)]
    for node in (*named, *traced):
        for file, line, text in user_frames(node):
            return f"{short_path(file)}:{line}", text
    return "", ""


def is_the_users(file: str) -> bool:
    """Whether ``file`` is neither torch's own, nor that of minidbg's own programs in a hunt, nor generated.

    A notebook's cells are the user's.
    """
    return cell_name(file) != "" or not file.startswith((TORCH_FOLDER, HUNTS_FOLDER, "<"))


def mentions(message: str, node: fx.Node) -> bool:
    """Whether the error text names the node, or the source line that it stands for."""
    last = str(node.stack_trace).strip().splitlines()[-1].strip()
    if f"%{node.name} " in message or f"'{node.name}'" in message or (len(last) > 8 and last in message):
        return True
    # a name like "add" is also a word of any message; one like "add_3" is not
    return (
        re.search(r"[_\d]", node.name) is not None
        and re.search(rf"\b{re.escape(node.name)}\b", message) is not None
    )


def short_path(file: str) -> str:
    """Relative to the working directory where it lies in it, else the file's name: a path may tell too much."""
    relative = os.path.relpath(file)
    return cell_name(file) or (Path(file).name if relative.startswith("..") else relative)
