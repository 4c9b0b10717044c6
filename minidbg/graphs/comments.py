"""The comments of written source: where a line came from, what an input is. Read back, they are meta again."""

from __future__ import annotations

import io
import os
import re
import tokenize
from typing import Any

import torch
from torch import fx

from minidbg.graphs.cells import cell_name

INPUT_KEY = "input_comment"
"""Key in a placeholder's ``meta``: what its comment said, for a graph that was read from source."""

_FRAME = re.compile(r'File "(.*)", line (\d+)')
_LOCATION = re.compile(r"(.+):(\d+)")
_TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep


def plain(text: str) -> str:
    """``text`` on one line, without characters that could end a comment or hide in it."""
    return "".join(char if char.isprintable() else "?" for char in text).strip()


def location(node: fx.Node) -> str:
    """``train.py:41`` of the innermost user frame known for ``node``, or nothing."""
    trace = node.meta.get("stack_trace")
    if not isinstance(trace, str):
        return ""
    for path, line in reversed(_FRAME.findall(trace)):
        cell = cell_name(path)
        if cell:
            return f"{cell}:{line}"
        # <...> is code that was generated, by us or by others
        if not path.startswith((_TORCH_FOLDER, "<")):
            return f"{plain(os.path.basename(path))}:{line}"
    return ""


def stack_trace(comment: str) -> str | None:
    """The stack trace that ``location`` reads as ``comment``, or None for another comment."""
    match = _LOCATION.fullmatch(comment)
    return f'  File "{match[1]}", line {match[2]}, in forward\n' if match else None


def describe_input(value: Any) -> str:
    """``float32[4, 8]`` for a tensor, ``int 5`` for a number; nothing for other values."""
    if isinstance(value, torch.Tensor):
        shape = ", ".join(str(size) for size in value.shape)
        return f"{str(value.dtype).removeprefix('torch.')}[{shape}]"
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        kind = type(value).__name__.removeprefix("Sym").lower()
        return plain(f"{kind} {value}")
    if value is None or isinstance(value, bool | int | float | str):
        return plain(f"{type(value).__name__} {value!r}") if value is not None else "None"
    return ""


def input_comment(node: fx.Node, value: Any = None, *, has_value: bool = False) -> str:
    """What to say about a placeholder: from its value, else its meta, else what an earlier comment said."""
    if has_value:
        return describe_input(value)
    for key in ("example_value", "val"):
        if key in node.meta:
            return describe_input(node.meta[key])
    return plain(str(node.meta.get(INPUT_KEY, "")))


def comments_by_line(source: str) -> dict[int, str]:
    """Line number (from 1) to comment text without ``#``, of correct source."""
    return {
        token.start[0]: token.string.removeprefix("#").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
