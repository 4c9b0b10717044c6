"""What no entry point reaches is dead: only tests hold it, and it goes.

By names alone: a definition is reached where code that is reached says its name, as an identifier or as a word in a text (a table of
commands, a call for another process, a template). So two things of one name hide each other, and nothing that is used is called dead.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass

import minidbg
from house.source import PACKAGE, ROOT, trees

WORD = re.compile(r"[A-Za-z_]\w*")
CALLED_BY_OTHERS = {
    "create_module": "Python's import system",
    "_repr_markdown_": "notebooks",
    "_repr_pretty_": "IPython",
    "TYPE_CHECKING": "type checkers",
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Definition:
    """A function, a class, a method or a constant of a module, with what its own code says."""

    where: str
    name: str
    nodes: tuple[ast.AST, ...]
    within: str = ""
    """The class of a method."""

    def said(self) -> set[str]:
        return {word for node in self.nodes for word in words_of(node)}


def words_of(node: ast.AST) -> Iterator[str]:
    """Names that are no local variables, attributes, and words of texts that are code or the name of something."""
    everything = list(ast.walk(node))
    documentation = {id(one.value) for one in everything if isinstance(one, ast.Expr) and is_text(one.value)}
    local = set[str]()
    if isinstance(node, Function):
        local = {one.arg for one in everything if isinstance(one, ast.arg)}
        local |= {
            one.id for one in everything if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
        }
        local -= {name for one in everything if isinstance(one, ast.Global) for name in one.names}
    for one in everything:
        match one:
            case ast.Name(id=name, ctx=ast.Load()) if name not in local:
                yield name
            case ast.Attribute(attr=name):
                yield name
            case ast.Constant(value=str(text)) if id(one) not in documentation and is_code(text):
                yield from WORD.findall(text)


def is_code(text: str) -> bool:
    return "import " in text or re.fullmatch(r"[\w.]*[:.]\w+|\w+_\w+", text) is not None


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def definitions(where: str, body: list[ast.stmt]) -> Iterator[Definition]:
    """Those of a module; what it runs when it is imported is called ``""``."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                decorated = "" if any(is_registered(one) for one in node.decorator_list) else node.name
                yield Definition(f"{where}:{node.lineno}", decorated, (node,))
            case ast.ClassDef():
                yield from of_class(where, node)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield Definition(f"{where}:{node.lineno}", name, (node,))
            case ast.If() | ast.Try() | ast.With():
                inner = [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.stmt)]
                yield from definitions(where, inner)
            case ast.Import() | ast.ImportFrom():
                pass
            case _:
                yield Definition(f"{where}:{node.lineno}", "", (node,))


def is_registered(decorator: ast.expr) -> bool:
    """Whether a decorator hands the function to a table of somebody else's."""
    return bool({"register", "command", "fixture", "hookimpl", "route"} & set(words_of(decorator)))


def of_class(where: str, node: ast.ClassDef) -> Iterator[Definition]:
    """The class with its fields and what Python calls by itself, and each other method."""
    methods = [one for one in node.body if isinstance(one, Function)]
    foreign = [
        base for base in node.bases if not set(words_of(base)) & {"Protocol", "Generic", *own_classes()}
    ]
    own = [one for one in methods if not foreign and not one.name.startswith("__")]
    rest = [one for one in ast.iter_child_nodes(node) if one not in own]
    yield Definition(f"{where}:{node.lineno}", node.name, tuple(rest))
    for one in own:
        yield Definition(f"{where}:{one.lineno}", one.name, (one,), node.name)


def own_classes() -> set[str]:
    return {node.name for tree in trees().values() for node in tree.body if isinstance(node, ast.ClassDef)}


def from_outside() -> set[str]:
    """Names that users, installers and scripts say."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    points = [
        *project["scripts"].values(),
        *(p for one in project["entry-points"].values() for p in one.values()),
    ]
    templates = [path.read_text() for path in (ROOT / "repro_templates").rglob("*") if path.is_file()]
    help_pages = [path.read_text() for path in PACKAGE.rglob("*.md") if path.parent.name == "help"]
    said = {word for text in (*points, *templates, *help_pages) for word in WORD.findall(text)}
    return (
        said
        | set(minidbg.__all__)
        | {"__getattr__", "__dir__", "__version__", "__all__", "main"}
        | set(CALLED_BY_OTHERS)
    )


def unreached() -> list[str]:
    everything = [one for name, tree in trees().items() for one in definitions(name, tree.body)]
    plugin = {
        id(one)
        for one in everything
        if one.where.startswith("pytest_plugin.py") and one.name.startswith("pytest_")
    }
    said, waiting = from_outside(), everything
    while True:
        reached = [
            one for one in waiting if not one.name or id(one) in plugin
            or (one.name in said and (not one.within or one.within in said))
        ]  # fmt: skip
        if not reached:
            return sorted(f"{one.where}: {one.name}" for one in waiting)
        for one in reached:
            said |= one.said()
        done = set(map(id, reached))
        waiting = [one for one in waiting if id(one) not in done]


def test_what_nothing_calls_is_found() -> None:
    tree = ast.parse("""
import os
A = 1
def f(g): return g
def g(): return A
class C(Foreign):
    def used_by_nobody(self): f(1)
""")
    found = {one.name: one.said() for one in definitions("x.py", tree.body)}
    assert found == {"A": set(), "f": set(), "g": {"A"}, "C": {"Foreign", "f"}}


def test_every_definition_is_reached_from_an_entry_point() -> None:
    assert unreached() == []
