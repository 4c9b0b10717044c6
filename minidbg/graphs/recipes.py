"""The source statements that made a tensor, kept with it, so that a script that was read is written again as it stood."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary


@dataclass(frozen=True, slots=True)
class Recipe:
    """``statements``, run in order, leave the tensor under ``name``; ``version`` is the tensor's after that."""

    name: str
    statements: tuple[str, ...]
    version: int = 0

    def named(self, name: str) -> Recipe:
        """The same statements with the tensor called ``name``."""
        if name == self.name:
            return self
        return Recipe(name, tuple(_renamed(text, self.name, name) for text in self.statements), self.version)


_recipes: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def remember(tensor: Tensor, recipe: Recipe) -> None:
    """Keep ``recipe`` for as long as ``tensor`` lives and nobody writes to it."""
    _recipes[tensor] = Recipe(recipe.name, recipe.statements, _version(tensor))


def recall(tensor: Tensor) -> Recipe | None:
    """The recipe of ``tensor``, unless it has none or has been written to since."""
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
    steps = [_Step(dedented(function_source, node), _bound(node), _used(node)) for node in body]
    returned = function.body[-1].value
    values = returned.elts if isinstance(returned, ast.Tuple | ast.List) else []
    if len(values) != len(names):
        return {}
    made = {}
    for name, value in zip(names, values, strict=True):
        recipe = _recipe(steps, name, value, function_source)
        if recipe is not None:
            made[name] = recipe
    return made


def _recipe(steps: Sequence[_Step], name: str, value: ast.expr, source: str) -> Recipe | None:
    if isinstance(value, ast.Name):
        return _closed(Recipe(value.id, _needed(steps, value.id)).named(name))
    text = f"{name} = {dedented(source, value)}"
    last = _Step(text, frozenset({name}), _names(value, ast.Load) - _GIVEN)
    return _closed(Recipe(name, _needed([*steps, last], name)))


def _closed(recipe: Recipe) -> Recipe | None:
    """``recipe`` if it runs wherever ``inputs`` does, and makes the name it says."""
    tree = ast.parse("\n".join(recipe.statements))
    free = _names(tree, ast.Load) - _names(tree, ast.Store) - _GIVEN
    return None if free or recipe.name not in _names(tree, ast.Store) else recipe


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
    """The statements that ``name``'s last value depends on, backwards from the end, in their order."""
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


def _bound(node: ast.stmt) -> frozenset[str]:
    return _names(node, ast.Store)


def _used(node: ast.stmt) -> frozenset[str]:
    used = _names(node, ast.Load) - _GIVEN
    # x += 1 and x[0] = nan need the value that was there.
    return used | (_bound(node) if isinstance(node, ast.AugAssign | ast.With) else frozenset())


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
    """The lines that begin inside a string."""
    return {
        line
        for child in ast.walk(node)
        if isinstance(child, ast.Constant | ast.JoinedStr)
        and isinstance(getattr(child, "value", ""), str | bytes)
        for line in range(child.lineno + 1, (child.end_lineno or child.lineno) + 1)
    }


def _renamed(text: str, old: str, new: str) -> str:
    """``text`` with the variable ``old`` called ``new``, everything else as it is written."""
    places = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name) and node.id == old]
    lines = [line.encode() for line in text.split("\n")]
    for node in sorted(places, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        line = lines[node.lineno - 1]
        lines[node.lineno - 1] = line[: node.col_offset] + new.encode() + line[node.end_col_offset :]
    return b"\n".join(lines).decode()
