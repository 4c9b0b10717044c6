"""Where a node and an input come from: the user's line in a comment, the statements of a script that was read."""

from __future__ import annotations

import ast
import io
import itertools
import os
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.weak import WeakTensorKeyDictionary

from minidbg.backends.statements import edited

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


def user_frames(node: fx.Node) -> Iterator[tuple[str, str, str]]:
    trace = node.meta.get("stack_trace")
    lines = trace.split("\n") if isinstance(trace, str) else []
    for line, below in reversed(list(itertools.zip_longest(lines, lines[1:], fillvalue=""))):
        match = _FRAME.fullmatch(line)
        if match and is_the_users(match[1]):
            yield match[1], match[2], below.strip()


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


def traces_of(graph_module: fx.GraphModule) -> dict[str, Any]:
    """Of each call the stack trace that ends in the user's line, as ``location`` names it, for another process.

    ``texts`` are the traces, each once; ``graphs`` has, by the path of each graph, the number of every node's.
    """
    texts = {"": 0}
    cut: dict[Any, int] = {}
    graphs: dict[str, list[int]] = {}
    for path, graph in _graphs(graph_module).items():
        numbers = graphs[path] = []
        for node in graph.nodes:
            known = str(node.meta.get("stack_trace")) if node.op not in ("placeholder", "output") else ""
            if known not in cut:
                cut[known] = texts.setdefault(_users_frame(node) if known else "", len(texts))
            numbers.append(cut[known])
    return {"texts": list(texts), "graphs": graphs}


def put_traces(graph_module: fx.GraphModule, table: Mapping[str, Any]) -> None:
    found = _graphs(graph_module)
    for path in found.keys() & table["graphs"].keys():
        for node, number in zip(found[path].nodes, table["graphs"][path], strict=True):
            if number:
                node.meta["stack_trace"] = table["texts"][number]


def _users_frame(node: fx.Node) -> str:
    place = location(node)
    text = next((text for _, _, text in user_frames(node)), "")
    return (stack_trace(place) or "") + (f"    {text}\n" if text else "") if place else ""


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


@dataclass(frozen=True, slots=True)
class Recipe:
    """``statements``, run in order, leave the tensor under ``name``; ``version`` is the tensor's after that."""

    name: str
    statements: tuple[str, ...]
    version: int = 0

    def named(self, name: str) -> Recipe:
        if name == self.name:
            return self
        return Recipe(name, tuple(_renamed(text, self.name, name) for text in self.statements), self.version)


_recipes: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def remember(tensor: Tensor, recipe: Recipe) -> None:
    _recipes[tensor] = Recipe(recipe.name, recipe.statements, _version(tensor))


def recall(tensor: Tensor) -> Recipe | None:
    found: Recipe | None = _recipes.get(tensor)  # type: ignore[no-untyped-call]  # torch has no types there
    return found if found is not None and found.version == _version(tensor) else None


def _version(tensor: Tensor) -> int:
    # Inference tensors have no version counter.
    return -1 if tensor.is_inference() else tensor._version


def read_recipes(function_source: str, names: Sequence[str]) -> dict[str, Recipe]:
    """How a straight-line ``def inputs(device=...)`` makes what it returns; empty for any other function.

    ``names`` are what to call the returned values, in order. Statements are kept as they are written; seeding and marks of
    dynamic dimensions belong to no recipe. Recipes that need more than torch, ``device`` and ``stored`` are left out.
    """
    function = ast.parse(function_source).body[0]
    if not isinstance(function, ast.FunctionDef) or not isinstance(function.body[-1], ast.Return):
        return {}
    body = [node for node in function.body[:-1] if not _is_frame(node)]
    if not all(isinstance(node, ast.Assign | ast.Expr | ast.With | ast.AugAssign) for node in body):
        return {}
    steps = [_Step(dedented(function_source, node), _names(node, ast.Store), _used(node)) for node in body]
    returned = function.body[-1].value
    values = returned.elts if isinstance(returned, ast.Tuple | ast.List) else []
    if len(values) != len(names):
        return {}
    made = (_recipe(steps, name, value, function_source) for name, value in zip(names, values, strict=True))
    return {name: recipe for name, recipe in zip(names, made, strict=True) if recipe is not None}


def _recipe(steps: Sequence[_Step], name: str, value: ast.expr, source: str) -> Recipe | None:
    if isinstance(value, ast.Name):
        return _closed(Recipe(value.id, _needed(steps, value.id)).named(name))
    text = f"{name} = {dedented(source, value)}"
    last = _Step(text, frozenset({name}), _names(value, ast.Load) - _GIVEN)
    return _closed(Recipe(name, _needed([*steps, last], name)))


def _closed(recipe: Recipe) -> Recipe | None:
    tree = ast.parse("\n".join(recipe.statements))
    bound = _names(tree, ast.Store)
    return recipe if _names(tree, ast.Load) <= bound | _GIVEN and recipe.name in bound else None


_GIVEN = frozenset(
    {"torch", "device", "stored", "float", "complex", "range", "slice", "tuple", "list", "len", "int", "bool"}
)
"""Names that a statement may use and that no recipe has to make."""


@dataclass(frozen=True, slots=True)
class _Step:
    text: str
    bound: frozenset[str]
    used: frozenset[str]


def _needed(steps: Iterable[_Step], name: str) -> tuple[str, ...]:
    wanted, texts = {name}, []
    for step in reversed(list(steps)):
        # A statement that binds nothing (x[0] = nan, x.requires_grad_()) may write to whatever it mentions.
        if step.bound & wanted or (not step.bound and step.used & wanted):
            texts.append(step.text)
            wanted |= step.used
    return tuple(reversed(texts))


def _is_frame(node: ast.stmt) -> bool:
    if isinstance(node, ast.Return) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return True
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return False
    called = ast.unparse(node.value.func)
    return called in ("torch.manual_seed", "torch._dynamo.mark_dynamic", "torch._dynamo.maybe_mark_dynamic")


def _names(node: ast.AST, context: type[ast.expr_context]) -> frozenset[str]:
    return frozenset(
        child.id for child in ast.walk(node) if isinstance(child, ast.Name) and isinstance(child.ctx, context)
    )


def _used(node: ast.stmt) -> frozenset[str]:
    used = _names(node, ast.Load) - _GIVEN
    # x += 1 and x[0] = nan need the value that was there.
    return used | _names(node, ast.Store) if isinstance(node, ast.AugAssign | ast.With) else used


def dedented(source: str, node: ast.stmt | ast.expr, indent: int | None = None) -> str:
    """The text of ``node`` in ``source`` as it would stand at the left margin; ``indent`` is its statement's column.

    Lines inside a string stay as they are, since they are its value.
    """
    indent = node.col_offset if indent is None else indent
    lines = source.encode().split(b"\n")[node.lineno - 1 : node.end_lineno]
    lines[-1] = lines[-1][: node.end_col_offset]
    lines[0] = lines[0][node.col_offset :]
    inside = _string_lines(node)
    moved = [
        line[indent:] if number not in inside and not line[:indent].strip() else line
        for number, line in enumerate(lines[1:], node.lineno + 1)
    ]
    return b"\n".join([lines[0], *moved]).decode()


def _string_lines(node: ast.AST) -> set[int]:
    return {
        line
        for child in ast.walk(node)
        if isinstance(child, ast.Constant | ast.JoinedStr)
        and isinstance(getattr(child, "value", ""), str | bytes)
        for line in range(child.lineno + 1, (child.end_lineno or child.lineno) + 1)
    }


def _renamed(text: str, old: str, new: str) -> str:
    names = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name) and node.id == old)
    return edited(text, ((node.lineno, node.col_offset, node.end_col_offset or 0, new) for node in names))
