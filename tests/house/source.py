"""The package as syntax trees, parsed once for all rules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "minidbg"


@cache
def trees() -> dict[str, ast.Module]:
    """Path below ``minidbg/`` -> the file's tree."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


@cache
def nodes_of(name: str) -> list[ast.AST]:
    return list(ast.walk(trees()[name]))


def dotted(node: ast.AST) -> str:
    """``a.b.c`` for such an expression; of any other only the attributes at its end. Quicker than ``ast.unparse``."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def room_of(name: str) -> str:
    return name.partition("/")[0].removesuffix(".py")


def imported_modules(name: str) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of each module that a file imports, relative forms and ``importlib`` calls included."""
    package = ["minidbg", *name.split("/")[:-1]]
    for node in nodes_of(name):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
            yield node.lineno, base
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and dotted(node.func).endswith("import_module"):
            argument = node.args[0] if node.args else None
            if isinstance(argument, ast.Constant):
                yield node.lineno, str(argument.value)
