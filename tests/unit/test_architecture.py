"""ARCHITECTURE.md names files and what is defined in them: all of it is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "minidbg"
TEXT = (PACKAGE / "ARCHITECTURE.md").read_text(encoding="utf-8")
FILE = re.compile(r"`([a-z_]+(?:/[a-z_]+)*\.py)`")
NAMED = re.compile(r"`([a-z_]+(?:/[a-z_]+)*\.py)`: ((?:`[\w.]+`(?:, )?)+)")
JOURNEYS = ("From a failing graph to its script", "From a save to a verdict")


def named_in(text: str) -> list[tuple[str, str]]:
    return [(file, name) for file, names in NAMED.findall(text) for name in re.findall(r"`([\w.]+)`", names)]


NAMES = named_in(TEXT)


@cache
def tree_of(file: str) -> ast.Module:
    return ast.parse((PACKAGE / file).read_text(encoding="utf-8"))


@cache
def defined_in(file: str) -> dict[str, ast.stmt]:
    """Functions, classes and ``Class.method``."""
    found: dict[str, ast.stmt] = {}
    for node in tree_of(file).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{one.name}": one for one in node.body if isinstance(one, ast.FunctionDef)}
    return found


@cache
def constants_of(file: str) -> dict[str, ast.expr]:
    """Module-level constants: a name in text for another process, a table of passes, the file itself."""
    plain = (node for node in tree_of(file).body if isinstance(node, ast.Assign | ast.AnnAssign))
    targets = ((node, node.targets if isinstance(node, ast.Assign) else [node.target]) for node in plain)
    return {
        one.id: node.value
        for node, names in targets
        for one in names
        if isinstance(one, ast.Name) and node.value
    }


def words_of(node: ast.AST) -> set[str]:
    """The identifiers in the code; of its texts only those that name a function for another process."""
    found = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Name | ast.Attribute):
            found.add(one.id if isinstance(one, ast.Name) else one.attr)
        elif isinstance(one, ast.Constant) and isinstance(one.value, str):
            found |= set(re.findall(r"(?:\w:|import )(\w+)", one.value))
    return found


def called_by(file: str, name: str) -> set[str]:
    """What the stop refers to, constants of its file followed."""
    found = words_of(defined_in(file)[name])
    for constant in found & constants_of(file).keys():
        found |= words_of(constants_of(file)[constant])
    return found


def names_for(file: str, name: str) -> set[str]:
    """How code refers to the stop: by its name, or by a constant of its file that names it; ``main`` by one that is the file's path."""
    last = name.rpartition(".")[2]
    wanted = {last, "__file__"} if last == "main" else {last}
    return {last} | {one for one, value in constants_of(file).items() if words_of(value) & wanted}


def test_it_names_enough() -> None:
    assert len(NAMES) > 50
    assert len(TEXT.splitlines()) <= 150


@pytest.mark.parametrize(("file", "name"), NAMES)
def test_each_call_of_the_journeys_is_where_it_says(file: str, name: str) -> None:
    assert name in defined_in(file)


@pytest.mark.parametrize("journey", JOURNEYS)
def test_each_stop_of_a_journey_is_called_by_an_earlier_one(journey: str) -> None:
    text = TEXT.partition(f"## {journey}")[2].partition("\n## ")[0]
    first, *stops = named_in(text)
    called = called_by(*first)
    for stop in stops:
        assert called & names_for(*stop), stop
        called |= called_by(*stop)


@pytest.mark.parametrize("file", sorted(set(FILE.findall(TEXT))))
def test_each_file_is_there(file: str) -> None:
    assert (PACKAGE / file).is_file() or (PACKAGE.parent / file).is_file()


def test_each_room_stands_on_a_floor() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    floors = TEXT.partition("## Floors")[2].partition("\n## ")[0]
    assert rooms <= set(re.findall(r"`([a-z_]+)`", floors))
